package cli

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

const (
	quietFor  = time.Second // the time for which a command waits before it says so
	lineEvery = time.Second // between two updates of the line
)

// eraseLine moves to the beginning of the line and erases it (ECMA-48 §8.3.41).
const eraseLine = "\r\x1b[K"

// A statusLine is the last line of a terminal, which has what the command waits for, and for how long. All that is printed erases it first.
type statusLine struct {
	screen *terminal.Screen
	to     io.Writer // of screen, without the guard

	mu sync.Mutex
	// mu owns the following fields, and what is written to the terminal.
	waits  []*wait
	timer  *time.Timer
	shown  bool
	inText bool // the last output did not end its line, so there is no room
}

// A wait is one thing that a command waits for.
type wait struct {
	what  func() string
	since time.Time
}

func newStatusLine(s *terminal.Screen) *statusLine { return &statusLine{screen: s, to: s.Writer} }

// Waiting shows on a terminal, from one second on and until end is called, what the command waits for and for how long. Of several, the last one is shown.
func (c *Console) Waiting(what func() string) (end func()) {
	if c.line == nil {
		return func() {}
	}
	w := &wait{what, time.Now()}
	c.line.add(w)
	return func() { c.line.remove(w) }
}

// Requesting is [Console.Waiting] for a request to the node (api.Client.Observe).
func (c *Console) Requesting(method, path string) (end func()) {
	return c.Waiting(func() string { return waitsFor(method, path) })
}

// waitsFor describes what a request waits for.
func waitsFor(method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	part := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case part[0] == "things" && len(part) > 2:
		return "waiting for the agent"
	case part[0] != "v1" || len(part) < 2:
		return "waiting for the node"
	}
	switch part[1] {
	case "find", "route", "agents":
		return "searching the mesh"
	case "ping", "paths":
		return "measuring the path"
	case "topology":
		return "asking the members of the organization"
	case "doctor":
		return "checking the node"
	case "peers":
		if method == http.MethodPost {
			return "connecting to the peer"
		}
	case "publish", "move":
		return "announcing to the mesh"
	}
	return "waiting for the node"
}

func (l *statusLine) add(w *wait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits = append(l.waits, w); len(l.waits) > 1 {
		return
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(quietFor, l.draw)
	} else {
		l.timer.Reset(quietFor)
	}
}

func (l *statusLine) remove(w *wait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits = slices.DeleteFunc(l.waits, func(one *wait) bool { return one == w })
	if len(l.waits) == 0 && l.timer != nil {
		l.timer.Stop()
		l.erase()
	}
}

// draw shows the line, and again after [lineEvery].
func (l *statusLine) draw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waits) == 0 {
		return
	}
	l.timer.Reset(lineEvery)
	w := l.waits[len(l.waits)-1]
	took := time.Since(w.since)
	if l.inText || took < quietFor-lineEvery/10 { // a newer one waits for less
		return
	}
	l.screen.Resize()
	text := terminal.Cut(fmt.Sprintf("%s · %d s", terminal.OneLine(w.what()), int(took.Round(time.Second).Seconds())), l.screen.Width-1)
	_, _ = io.WriteString(l.to, eraseLine+l.screen.Paint(terminal.Dim, text))
	l.shown = true
}

func (l *statusLine) erase() {
	if l.shown {
		l.shown = false
		_, _ = io.WriteString(l.to, eraseLine)
	}
}

// guard returns w, to which only is written after the line was erased.
func (l *statusLine) guard(w io.Writer) io.Writer { return &guarded{w, l} }

type guarded struct {
	to   io.Writer
	line *statusLine
}

// Write implements [io.Writer].
func (g *guarded) Write(b []byte) (int, error) {
	g.line.mu.Lock()
	defer g.line.mu.Unlock()
	g.line.erase()
	if len(b) > 0 {
		g.line.inText = b[len(b)-1] != '\n'
	}
	return g.to.Write(b)
}

// Unguarded returns the stream of a screen for another process.
func Unguarded(s *terminal.Screen) io.Writer {
	if g, ok := s.Writer.(*guarded); ok {
		return g.to
	}
	return s.Writer
}
