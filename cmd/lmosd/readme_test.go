package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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

// TestReadmeByHand types what the README says under "By hand": the first two lines start nodes and the third joins their organization, publish and unpublish are
// for the first, the others for the second.
func TestReadmeByHand(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x.weather()
	lines := commands(readme(t, "lmosd run --mesh.bootstrap"))
	if len(lines) < 8 || lines[0] != "lmosd run" {
		t.Fatalf("the commands are %q", lines)
	}
	a := x.node("a", "--trust.untrusted", "find")
	x.at(a).ok("org", "init", "home.internal", "--recovery", filepath.Join(x.home, "recovery.pem"))
	joining := regexp.MustCompile(`/ip4/…/p2p/12D3KooW…`).ReplaceAllString(lines[1], a.P2P[0])
	b := x.node("b", append(strings.Fields(joining)[2:], "--trust.untrusted", "find")...)
	eventually(t, "the nodes are meshed", func() bool { return x.at(a).lmosd("peers", "--exit-status").code == 0 })
	for _, line := range lines[2:] {
		on := x.at(b)
		line = strings.ReplaceAll(line, "lmos-invite:…", strings.TrimSpace(x.at(a).ok("org", "invite", "--quiet")))
		if strings.Contains(line, "publish") {
			on = x.at(a)
		}
		if strings.HasPrefix(line, "lmosd find") {
			eventually(t, "the agent is found", func() bool { return strings.Contains(on.typed(line).out, "weather@") })
		}
		if r := on.typed(line); r.code != 0 {
			t.Errorf("$ %s\nexit code %d\n%s%s", line, r.code, r.out, r.errors)
		}
	}
	eventually(t, "the agent is gone", func() bool { return x.at(b).ok("find", "-o", "name") == "" })
}

// TestReadmeFilesExist checks the commands in the running text.
func TestReadmeFilesExist(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	content := readFile(t, "README.md")
	for _, m := range regexp.MustCompile("`(lmosd [^`]+)`").FindAllStringSubmatch(content, -1) {
		line := m[1]
		if strings.HasPrefix(line, "lmosd testnet") || strings.HasPrefix(line, "lmosd expose") { // they would go on
			line += " --help"
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
