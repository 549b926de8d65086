package directory

import (
	"testing"

	"github.com/lmosd/lmosd/did"
)
