package group

import (
	"flag"
	"testing"

	"github.com/lmosd/lmosd/internal/testmain"
)

// hostCount is the number of members in TestGroupOverHosts.
var hostCount = flag.Int("hosts", 12, "members of the group over real hosts")

func TestMain(m *testing.M) { testmain.Run(m) }
