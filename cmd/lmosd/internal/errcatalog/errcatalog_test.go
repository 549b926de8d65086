package errcatalog

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	for _, c := range interact.Codes() {
		if e := explanations[c]; !strings.HasSuffix(e.meaning, ".") || e.remedy == "" {
			t.Errorf("%s is not explained: %+v", c, e)
		}
	}
	if len(explanations) != len(interact.Codes()) {
		t.Errorf("%d codes, %d explanations", len(interact.Codes()), len(explanations))
	}
}
