package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// TestManualPagesOfFormatters reads pages with the formatters of Debian, which warn about everything that is not in man(7).
func TestManualPagesOfFormatters(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"mandoc", "-T", "lint", "-W", "warning"}, {"groff", "-ww", "-man", "-Tutf8", "-z"}} {
		t.Run(command[0], func(t *testing.T) {
			t.Parallel()
			testprogram.Path(t, command[0])
			dir := t.TempDir()
			if r := lmosd(t.Context(), home(t, "SOURCE_DATE_EPOCH=1767225600"), "", "man", "--dir", dir); r.code != 0 {
				t.Fatal(r.errors)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || len(files) < 50 {
				t.Fatal(files, err)
			}
			if out, err := exec.Command(command[0], append(command[1:], files...)...).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
