package ws

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
)

// FuzzConversation sends arbitrary frames to a server, which continues to respond.
func FuzzConversation(f *testing.F) {
	all, err := os.ReadFile("frame/testdata/frames.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if line[0] == '{' {
			f.Add(strings.TrimSpace(line))
		}
	}
	l := newLab()
	l.unblock.Do(func() { close(l.release) })
	_, url := serve(f, l, ServerOptions{Rate: 1e9, MaxPending: 1e6, MaxSubscriptions: 4})
	w := dial(f, url)
	f.Fuzz(func(t *testing.T, frame string) {
		if !utf8.ValidString(frame) {
			return
		}
		w.t = t
		w.say(frame)
		w.quietAs(interact.NewID())
	})
}
