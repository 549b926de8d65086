package localnet

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func TestReadable(t *testing.T) {
	t.Parallel()
	s := &terminal.Screen{Writer: &bytes.Buffer{}}
	for line, want := range map[string]string{
		"a banner\x1b[2J": "a banner\ufffd[2J",
		`{"time":"2026-11-20T10:00:00Z","level":"WARN","msg":"x","n":1,"text":"a b","list":[1,2]}`: "warning: x  n=1  text=\"a b\"  list=[1,2]",
		`{"level":"INFO","msg":"x\u001b[2J","thing":"y"}`:                                          "x\ufffd[2J  thing=y",
		`{"level":7}`:  `{"level":7}`,
		`{"time":"x"}`: `{"time":"x"}`,
		`{"a`:          `{"a`,
	} {
		if got := readable(s, line); !strings.HasSuffix(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
