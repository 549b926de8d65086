package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// A block is one fenced block of the page: its language, the name of its file, and its text.
type block struct{ language, file, text string }

var fence = regexp.MustCompile("(?ms)^```(\\w*) ?([\\w.]*)\n(.*?)^```$")

func page(t *testing.T) (blocks []block) {
	t.Helper()
	raw, err := os.ReadFile("../docs/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fence.FindAllStringSubmatch(string(raw), -1) {
		blocks = append(blocks, block{m[1], m[2], m[3]})
	}
	if len(blocks) < 12 {
		t.Fatalf("the page has %d blocks only", len(blocks))
	}
	return blocks
}

// TestPage: the code of the page is that of the examples, whose tests run it.
func TestPageHasTheExamples(t *testing.T) {
	t.Parallel()
	const examples = "../examples/agents/"
	program, err := os.ReadFile(examples + "go/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range page(t) {
		switch b.language {
		case "go":
			if !strings.Contains(flush(string(program)), flush(b.text)) {
				t.Errorf("this is not in main.go:\n%s", b.text)
			}
		case "python", "js":
			if raw, err := os.ReadFile(examples + b.language + "/" + b.file); err != nil || string(raw) != b.text {
				t.Errorf("%s is another one: %v", b.file, err)
			}
		case "console", "": // without a language: text, not a program
		default:
			t.Errorf("no test runs %s", b.language)
		}
	}
}

// comment is a line with only a comment.
var comment = regexp.MustCompile(`(?m)^\s*//.*\n`)

// flush removes indentation, blank lines and lines of comments.
func flush(code string) string {
	var lines []string
	for line := range strings.Lines(comment.ReplaceAllString(code, "")) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// The programs of the page run in an empty folder with what the page installs, and print what it shows.
func TestPageRuns(t *testing.T) {
	t.Parallel()
	testprogram.Path(t, "python3")
	testprogram.Path(t, "node")
	h := newHost(t, "")
	dir := t.TempDir()
	for from, to := range map[string]string{"python/lmosd/__init__.py": "lmosd.py", "js/lmosd.mjs": "lmosd.mjs"} {
		raw, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, to, string(raw))
	}
	ran := 0
	for _, b := range page(t) {
		if b.file != "" {
			write(t, dir, b.file, b.text)
		}
	}
	for _, b := range page(t) {
		if b.language == "console" {
			ran += console(t, h, dir, b.text)
		}
	}
	if ran < 3 {
		t.Errorf("the page runs %d commands only", ran)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// console runs the commands of a block in dir and compares what they print; … stands for anything.
func console(t *testing.T, h *host, dir, text string) (ran int) {
	t.Helper()
	for _, entry := range strings.Split(text, "$ ")[1:] {
		line, want, _ := strings.Cut(entry, "\n")
		args := strings.Fields(line)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), h.env(h.api)...)
		ran++
		if args[len(args)-1] == "&" {
			background(t, h, cmd)
			continue
		}
		out, err := cmd.CombinedOutput()
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", "(?s:.*)")
		if err != nil || !regexp.MustCompile("^"+pattern+"$").Match(out[:max(len(out)-1, 0)]) {
			t.Errorf("%s: %v\n%swant\n%s", line, err, out, want)
		}
	}
	return ran
}

// background starts the forecast and waits until the node knows it.
func background(t *testing.T, h *host, cmd *exec.Cmd) {
	t.Helper()
	cmd.Args = cmd.Args[:len(cmd.Args)-1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	until(t, "the agent is there", func() error {
		_, _, err := h.client.Read(t.Context(), "forecast", "units")
		if e := interact.AsError(err); e != nil {
			return e
		}
		return nil
	})
}
