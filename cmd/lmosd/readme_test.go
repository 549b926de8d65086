package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// readme returns the piece of code of the README that holds a text.
func readme(t *testing.T, holds string) string {
	t.Helper()
	for _, b := range blocks(t, "README.md") {
		if strings.Contains(b.text, holds) {
			return b.text
		}
	}
	t.Fatalf("no piece of code in the README has %q", holds)
	return ""
}

// commands returns the command lines of a piece of code, without comments.
func commands(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// TestFirstScreenOfTheReadme holds the first screen: two commands, and what the demo prints.
func TestFirstScreenOfTheReadme(t *testing.T) {
	t.Parallel()
	first := blocks(t, "README.md")[0]
	if got := commands(first.text); len(got) != 2 || got[0] != "go run ./cmd/lmosd demo" || got[1] != "go test ./..." {
		t.Errorf("the README begins with %q", got)
	}
	x := newUser(t)
	contains(t, x.ok("demo", "--help"), "Usage:\n  lmosd demo\n")
	shown := strings.Split(readme(t, "✓ "), "\n")
	for i, name := range demoSteps {
		if !strings.HasPrefix(shown[i], "✓ "+name+" ") {
			t.Errorf("line %d of the demo in the README is %q, want the step %q", i+1, shown[i], name)
		}
	}
}

// TestReadmeByHand pastes what the README has under "By hand" into a shell, without the line that builds the program.
func TestReadmeByHand(t *testing.T) {
	t.Parallel()
	text := readme(t, "make build")
	first, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "make build && export PATH=") {
		t.Fatalf("the first line is %q", first)
	}
	x := newUser(t, goEnvironment(t)...)
	x.env = append(x.env, "LMOSD_PROFILE=test")
	rest = strings.ReplaceAll(rest, "weather.td.json", filepath.Join(x.home, "weather.td.json"))
	cmd := exec.CommandContext(patient(t), "bash", "-c", "set -em\n"+rest) // jobs, as in the shell of a terminal
	var printed buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = x.env, "../..", &printed, &printed
	cmd.WaitDelay = time.Minute // the node and the agent have the same output
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, printed.String())
	}
	for _, want := range []string{"published weather@z6Mk", "1 agent", "Light rain, 12 °C, until 16:00.", `"modelName":"a-table"`, "withdrawn weather@z6Mk"} {
		contains(t, printed.String(), want)
	}
}

// goEnvironment returns the variables with which the program go uses the cache and the modules of this user.
func goEnvironment(t *testing.T) (env []string) {
	t.Helper()
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOFLAGS", "GOPROXY", "GOTOOLCHAIN"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(out)))
	}
	return env
}

// TestReadmeFilesExist checks the commands in the running text.
func TestReadmeFilesExist(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	content := readFile(t, "README.md")
	for _, m := range regexp.MustCompile("`(lmosd [^`]+)`").FindAllStringSubmatch(content, -1) {
		line := m[1]
		if slices.Contains([]string{"demo", "expose", "org", "run", "service", "testnet"}, strings.Fields(line)[1]) {
			line = strings.Join(append(strings.Fields(line)[:2], "--help"), " ") // it would go on, change the host, or need other nodes
		}
		if r := x.typed(line); r.code != 0 {
			t.Errorf("$ %s\nexit code %d\n%s", line, r.code, r.errors)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(content, -1) {
		if gone("../../" + m[1]) {
			t.Errorf("the README leads to %s, which is not there", m[1])
		}
	}
}
