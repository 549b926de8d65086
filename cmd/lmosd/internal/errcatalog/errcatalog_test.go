package errcatalog

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// Every warning is explained, and node/status adds no warning that is not in the catalogue.
func TestEveryWarningIsExplained(t *testing.T) {
	t.Parallel()
	all := warningCodes()
	for _, w := range all {
		if !strings.HasSuffix(w.Meaning, ".") || w.Remedy == "" || w.Severity == "" {
			t.Errorf("%s is not explained: %+v", w.Code, w)
		}
	}
	if len(warningExplanations) != len(all) {
		t.Errorf("%d warnings, %d explanations", len(all), len(warningExplanations))
	}
	files, err := filepath.Glob("../../../../node/status/*.go")
	if err != nil {
		t.Fatal(err)
	}
	added := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(?:LMOS-)?(W\d{3})", (?:Title: )?"([a-z-]+)"`).FindAllStringSubmatch(string(b), -1) {
			added++
			if !slices.ContainsFunc(all, func(w warningCode) bool { return w.Code == "LMOS-"+m[1] && w.Slug == m[2] }) {
				t.Errorf("%s adds %s %s, which is not in the catalogue", filepath.Base(file), m[1], m[2])
			}
		}
	}
	if added < 12 {
		t.Errorf("found only %d warnings in node/status", added)
	}
}
