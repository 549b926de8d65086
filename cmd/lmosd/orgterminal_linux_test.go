package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// atTerminal runs a command line in this process at a terminal, whose user types a text. It returns the output and what the terminal shows.
func atTerminal(t *testing.T, typed string, args ...string) (result, string) {
	t.Helper()
	user, program := pseudoTerminal(t)
	if _, err := user.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	env := home(t, append(withToken(newFakeNode(t)), "NO_COLOR=1")...)
	a := newApp(env, program, &out, program)
	code := a.run(context.Background(), args)
	const end = "-end-"
	if _, err := program.WriteString(end); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	b := make([]byte, 1024)
	for !strings.Contains(shown.String(), end) {
		n, err := user.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(b[:n])
	}
	return result{code: code, out: out.String()}, shown.String()
}

func TestConfirmations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		typed string
		code  int
	}{
		"yes":         {"y\n", 0},
		"yes in full": {"YES\n", 0},
		"no":          {"n\n", cli.ExitInterrupted},
		"only Enter":  {"\n", cli.ExitInterrupted},
		"the end":     {"\x04", cli.ExitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, shown := atTerminal(t, test.typed, "org", "revoke", "beta")
			if r.code != test.code || strings.Contains(r.out, "revoked") != (test.code == 0) {
				t.Errorf("exit code %d, %q", r.code, r.out)
			}
			if !strings.Contains(shown, "Revoke z6MkiTBz1ymu?") || !strings.Contains(shown, "[y/N]") {
				t.Errorf("the terminal shows %q", shown)
			}
		})
	}
}

func TestPassphraseOfTheRootKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		typed, source, want string
		code                int
	}{
		"entered twice":       {"correct\ncorrect\n", "prompt", "-----BEGIN AGE ENCRYPTED FILE-----\ncorrect\n", 0},
		"the second differs":  {"correct\nwrong\nother\nother\n", "prompt", "-----BEGIN AGE ENCRYPTED FILE-----\nother\n", 0},
		"empty":               {"\n", "prompt", "", cli.ExitUsage},
		"from no descriptor":  {"", "fd:77", "", cli.ExitUsage},
		"on the command line": {"", "correct", "", cli.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "root.age")
			r, shown := atTerminal(t, test.typed, "org", "root", "export", file, "--yes", "--passphrase", test.source)
			got, err := os.ReadFile(file)
			if r.code != test.code || string(got) != test.want || (err == nil) != (test.code == 0) {
				t.Errorf("exit code %d, %q, %v; the terminal shows %q", r.code, got, err, shown)
			}
		})
	}
}
