package policy

import (
	"testing"

	"github.com/lmosd/lmosd/internal/testmain"
)

// TestMain fails if a goroutine is left.
func TestMain(m *testing.M) { testmain.Run(m) }
