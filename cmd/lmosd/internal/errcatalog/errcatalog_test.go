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

// Every warning is explained, and a node adds no warning that is not in the catalogue.
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
	var files []string
	for _, folder := range []string{"node/status", "gateway"} {
		in, err := filepath.Glob("../../../../" + folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, slices.DeleteFunc(in, func(name string) bool { return strings.HasSuffix(name, "_test.go") })...)
	}
	added := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:add\(|Code: )"(?:LMOS-)?(W\d{3})", (?:Title: )?"([a-z-]+)"`).FindAllStringSubmatch(string(b), -1) {
			added++
			if !slices.ContainsFunc(all, func(w warningCode) bool { return w.Code == "LMOS-"+m[1] && w.Slug == m[2] }) {
				t.Errorf("%s adds %s %s, which is not in the catalogue", filepath.Base(file), m[1], m[2])
			}
		}
	}
	if added < 13 {
		t.Errorf("found only %d warnings in node/status and gateway", added)
	}
}
