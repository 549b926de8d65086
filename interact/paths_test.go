package interact

import (
	"context"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A road is a Thing that fails with err, or replies with its name.
type road struct {
	name  string
	err   error
	takes time.Duration
	asked int
}

func (r *road) Do(_ context.Context, m *Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		r.asked++
		time.Sleep(r.takes)
		if r.err != nil {
			yield(nil, r.err)
			return
		}
		yield(m.Reply(ActionStatus, "text/plain", []byte(r.name)), nil)
	}
}

func roads(rs ...*road) *Paths {
	d := &td.Thing{Title: "lamp", Actions: map[string]*td.Action{"get": {Safe: true}, "add": {}}}
	var all []Path
	for i, r := range rs {
		all = append(all, Path{Name: r.name, HasAddress: func(via string) bool { return via == r.name+"://x" }, Thing: r, Rank: i})
	}
	return NewPaths(d, all...)
}

func TestNextPathIsTriedBeforeTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := &Error{Code: Unreachable}
		for name, c := range map[string]struct {
			err    error
			action string
			want   string // "" : the error
		}{
			"unreachable":            {gone, "add", "second"},
			"it may have started":    {&Error{Code: Unreachable, Started: true}, "add", ""},
			"it may be repeated":     {&Error{Code: Unreachable, Started: true}, "get", "second"},
			"the remote side failed": {&Error{Code: Unreachable, Remote: true}, "get", ""},
			"no credentials here":    {&Error{Code: Unauthenticated}, "add", "second"},
			"the agent failed":       {&Error{Code: AgentFailed, Remote: true}, "get", ""},
			"the input is wrong":     {&Error{Code: Invalid}, "get", ""},
		} {
			second := &road{name: "second"}
			r, err := Call(t.Context(), roads(&road{name: "first", err: c.err}, second), &Message{Type: InvokeAction, Name: c.action})
			if c.want == "" && (err == nil || second.asked != 0) || c.want != "" && (err != nil || string(r.Data) != c.want) {
				t.Errorf("%s: got %v, %v, second was called %d times", name, r, err, second.asked)
			}
		}
	})
}

func TestPathsListAllFailures(t *testing.T) {
	t.Parallel()
	_, err := Call(t.Context(), roads(&road{name: "mesh", err: Errorf(Unreachable, "h", "no host")}, &road{name: "http", err: Errorf(Unreachable, "h", "refused")}),
		&Message{Type: InvokeAction, Name: "add"})
	e := AsError(err)
	if e.Code != Unreachable || !strings.Contains(e.Error(), "no host") || !strings.Contains(e.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

func TestPathsRememberFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := &road{name: "first", err: &Error{Code: Unreachable}}, &road{name: "second"}
		p := roads(first, second)
		ask := func() string {
			r, err := Call(t.Context(), p, &Message{Type: InvokeAction, Name: "add"})
			if err != nil {
				t.Fatal(err)
			}
			return string(r.Data)
		}
		ask()
		ask()
		if first.asked != 1 || !p.States(time.Now())[1].Down {
			t.Errorf("the failed path was called %d times: %+v", first.asked, p.States(time.Now()))
		}
		first.err = nil
		time.Sleep(downFor)
		if got := ask(); got != "first" {
			t.Errorf("after a while: got %s", got)
		}
	})
}

func TestPathsPreferMuchFasterOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow, fast := &road{name: "slow", takes: time.Second}, &road{name: "fast", takes: time.Millisecond}
		p := roads(slow, fast)
		for _, via := range []string{"slow", "fast"} {
			if _, err := Call(t.Context(), p, &Message{Type: InvokeAction, Name: "add", Via: via}); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Call(t.Context(), p, &Message{Type: InvokeAction, Name: "add", Timing: &Timing{}})
		if err != nil || string(r.Data) != "fast" || r.Timing == nil || r.Timing.Path != "fast" {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

func TestPathsByVia(t *testing.T) {
	t.Parallel()
	p := roads(&road{name: "ws"}, &road{name: "http"})
	for _, via := range []string{"http", "http://x"} {
		r, err := Call(t.Context(), p, &Message{Type: InvokeAction, Name: "add", Via: via})
		if err != nil || string(r.Data) != "http" {
			t.Errorf("%s: got %v, %v", via, r, err)
		}
	}
	if r, err := Call(t.Context(), p, &Message{Type: InvokeAction, Name: "add", Via: "ws"}); err != nil || string(r.Data) != "ws" {
		t.Errorf("ws: got %v, %v", r, err)
	}
	if _, err := Call(t.Context(), p, &Message{Type: InvokeAction, Via: "coap"}); AsError(err).Code != Unreachable || !strings.Contains(AsError(err).Hint, "http") {
		t.Errorf("an unknown path: got %v", err)
	}
	p.all[0].Supports = func(*Message) bool { return false }
	p.all[1].Supports = p.all[0].Supports
	if _, err := Call(t.Context(), p, &Message{Type: ReadProperty}); AsError(err).Code != NotAllowed {
		t.Errorf("no path supports it: got %v", err)
	}
}

// TestNoOtherPathAfterAReply: after the first reply no other path is tried.
func TestNoOtherPathAfterAReply(t *testing.T) {
	t.Parallel()
	half := Func(func(_ context.Context, m *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) {
			if yield(m.Reply(ActionStatus, "", nil), nil) {
				yield(nil, &Error{Code: Unreachable})
			}
		}
	})
	second := &road{name: "second"}
	p := NewPaths(&td.Thing{}, Path{Name: "half", Thing: half}, Path{Name: "second", Thing: second, Rank: 1})
	if _, err := Call(t.Context(), p, &Message{Type: ReadProperty}); AsError(err).Code != Unreachable || second.asked != 0 {
		t.Errorf("got %v, second was called %d times", err, second.asked)
	}
}
