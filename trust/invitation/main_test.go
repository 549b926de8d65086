package invitation

import (
	"testing"

	"github.com/lmosd/lmosd/internal/testmain"
)

// TestMain fails if a goroutine is left: the package starts none.
func TestMain(m *testing.M) { testmain.Run(m) }
