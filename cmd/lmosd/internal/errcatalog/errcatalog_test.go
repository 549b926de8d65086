package errcatalog

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
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

// Every warning of a node has a kind, and every kind is explained and used.
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
	source := ""
	for _, folder := range []string{"node/status", "gateway"} {
		files, err := filepath.Glob("../../../../" + folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				source += readFile(t, file)
			}
		}
	}
	if strings.Contains(source, `Code: "LMOS-W`) {
		t.Error("a warning is of no kind of package api")
	}
	kinds := regexp.MustCompile(`(?m)^\t(\w+) += WarningKind{"(LMOS-W\d{3})"`).FindAllStringSubmatch(readFile(t, "../../../../api/warnings.go"), -1)
	if len(kinds) != len(api.WarningKinds()) {
		t.Errorf("%d kinds of warnings, %d in the list", len(kinds), len(api.WarningKinds()))
	}
	for _, m := range kinds {
		if !slices.ContainsFunc(all, func(w warningCode) bool { return w.Code == m[2] }) || !strings.Contains(source, "api."+m[1]) {
			t.Errorf("%s is not in the catalogue, or no node has this warning", m[1])
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
