package main

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// maxCallLines limits the lines of one second.
const maxCallLines = 10

// callLines print a line for each interaction with an agent of this process: time, caller, action, result and duration.
type callLines struct {
	to  *terminal.Screen
	now func() time.Time

	mu     sync.Mutex
	second time.Time // of the last lines; owned by mu
	shown  int       // lines of that second; owned by mu
	hidden int       // calls of it without a line; owned by mu
}

// withLines returns a Thing that prints a line for each interaction with t.
func (l *callLines) withLines(t interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			began := l.now()
			var failed error
			left := false
			for r, err := range t.Do(ctx, m) {
				if err != nil {
					failed = err
				}
				if left = !yield(r, err); left {
					break
				}
			}
			result := "ok"
			switch {
			case failed != nil:
				result = failure(failed)
			case left && ctx.Err() != nil:
				result = "the caller left"
			}
			l.print(began, m, result)
		}
	})
}

// failure returns an error as text: its code, its title, and the cause if there is one.
func failure(err error) string {
	e := interact.AsError(err)
	text := e.Title
	if text == "" {
		text = e.Code.Title()
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return e.Code.String() + " " + interact.Excerpt(text, 200)
}

// print prints the line of an interaction; beyond the limit of a second, their number with the next line.
func (l *callLines) print(began time.Time, m *interact.Message, result string) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if second := now.Truncate(time.Second); !second.Equal(l.second) {
		if l.hidden > 0 {
			l.to.Line(l.to.Paint(terminal.Dim, "  … and "+terminal.Count(l.hidden, "more call", "more calls")))
		}
		l.second, l.shown, l.hidden = second, 0, 0
	}
	if l.shown++; l.shown > maxCallLines {
		l.hidden++
		return
	}
	color := terminal.Green
	if result != "ok" {
		color = terminal.Red
	}
	l.to.Line(fmt.Sprintf("%s  %s  %s  %s  %s", l.to.Paint(terminal.Dim, began.Local().Format("15:04:05")), terminal.OneLine(callerName(m.From)),
		terminal.OneLine(m.Name), terminal.Millis(api.Milliseconds(now.Sub(began))), l.to.Paint(color, terminal.OneLine(result))))
}

// callerName returns the name of a caller with the beginning of its key.
func callerName(p *did.Principal) string {
	switch {
	case p == nil:
		return "local"
	case p.DID == "":
		return p.ID()
	case p.Name != "":
		return p.DID.Short() + "#" + p.Name
	}
	return p.DID.Short()
}
