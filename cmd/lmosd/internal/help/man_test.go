package help

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestManualPages(t *testing.T) {
	t.Parallel()
	out, err := help(t, "man call")
	for _, want := range []string{".TH LMOSD-CALL 1 \"2026-01-01\" \"lmosd dev\" \"lmosd manual\"\n", "\nlmosd\\-call \\- call an agent\n", "\n\\fBlmosd call\\fR <agent> [flags]\n",
		".TP\n\\fB\\-\\-async\\fR\ndo not wait\n", ".SH EXAMPLES\n.nf\n  lmosd call weather\n.fi\n", "\nlmosd find, lmosd task\n"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("no %q in %q, %v", want, out, err)
		}
	}
	out, err = help(t, "man")
	if err != nil || !strings.Contains(out, ".BR lmosd\\-call (1)\nCall an agent.\n") || strings.Contains(out, "secret") {
		t.Errorf("got %q, %v", out, err)
	}
	out, err = help(t, "man exit-codes")
	if err != nil || !strings.HasPrefix(out, ".TH LMOSD-EXIT-CODES 7 ") || !strings.Contains(out, "\n    0   ok\n") {
		t.Errorf("got %q, %v", out, err)
	}
	_, err = help(t, "man cal")
	if e := interact.AsError(err); err == nil || e.Code != interact.Usage || e.Hint != `did you mean "call"?` {
		t.Errorf("an unknown page gives %v", err)
	}
}

func TestManualPagesInAFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	out, err := help(t, "man -o json --dir "+dir)
	if err != nil || !strings.Contains(out, `"kind":"ManPageList"`) || !strings.Contains(out, `/lmosd-call.1"`) {
		t.Fatalf("got %q, %v", out, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "lmosd*.[17]"))
	if want := strings.Count(out, `"name":`); err != nil || len(files) != want || want < len(topicNames())+3 {
		t.Errorf("%d files of %d pages, %v", len(files), want, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = help(t, "man --dir "+filepath.Join(dir, "file"))
	if e := interact.AsError(err); err == nil || e.Code != interact.DiskFull {
		t.Errorf("a folder that is a file gives %v", err)
	}
}

func TestDateOfManualPages(t *testing.T) {
	t.Parallel()
	if date, err := manDate("1767225600"); date != "2026-01-01" || err != nil {
		t.Errorf("got %q, %v", date, err)
	}
	if _, err := manDate("yesterday"); err == nil {
		t.Error("SOURCE_DATE_EPOCH=yesterday is accepted")
	}
}

// Letters that mean something to roff stay letters, at the beginning of a line too.
func TestLinesOfManualPages(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{".so /etc/passwd": `\&.so /etc/passwd`, "'br": `\&\(aqbr`, `a\fBb --x`: `a\(rsfBb \-\-x`, "k=v…": `k=v\[u2026]`} {
		if got := plain(line); got != want {
			t.Errorf("%q becomes %q, want %q", line, got, want)
		}
	}
}
