package arch

import (
	"path/filepath"
	"testing"
)

// Pages and comments name decisions by number.
func TestEachDecisionHasANumberOfItsOwn(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/decisions/[0-9][0-9][0-9][0-9]-*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	by := map[string]string{}
	for _, f := range files {
		name := filepath.Base(f)
		if other := by[name[:4]]; other != "" {
			t.Errorf("%s and %s have one number: give the later one the next that is free", other, name)
		}
		by[name[:4]] = name
	}
}
