package testprogram

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"testing"
)

// A recorder is a test that records how it ends first.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()           {}
func (r *recorder) Skip(args ...any)  { r.ended = cmp.Or(r.ended, "skip: "+fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.ended = cmp.Or(r.ended, "fail: "+fmt.Sprint(args...)) }

// TestPath finds a program by any of its names. Without it, the message has the package, and the test fails in CI only.
func TestPath(t *testing.T) {
	for ci, want := range map[string]string{"": "skip: ", "1": "fail: "} {
		t.Setenv("CI", ci)
		r := &recorder{}
		if path := Path(r, "lmosd-has-no-such-program", "go"); path == "" || r.ended != "" {
			t.Errorf("CI=%q: %q %q", ci, path, r.ended)
		}
		if got := Path(r, "lmosd-has-no-such-program"); got != "" ||
			r.ended != want+"lmosd-has-no-such-program is not installed: apt-get install lmosd-has-no-such-program" {
			t.Errorf("CI=%q: %q %q", ci, got, r.ended)
		}
	}
}

// TestPackages compares the packages with those that .ci/run installs.
func TestPackages(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	needs := regexp.MustCompile(`(?m)^need (\S+) (\S+)`).FindAllStringSubmatch(string(raw), -1)
	if len(needs) < 20 {
		t.Fatalf("%d programs in .ci/run", len(needs))
	}
	for _, m := range needs {
		if got := cmp.Or(packages[m[1]], m[1]); got != m[2] {
			t.Errorf("%s: got package %s, want %s", m[1], got, m[2])
		}
	}
}
