package bridgetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/td"
)

// importRules are the rules of imported agents.
var importRules = []rule{
	{"import: the draft completes, is signed and verified, and has the agent's acts", nil, (*fixture).importDescribes},
	{"import: two agents of one target are independent", nil, (*fixture).importTwice},
	{"import: Close ends what runs", nil, (*fixture).importCloses},
	{"import: an invalid target is refused", nil, (*fixture).importNonsense},
	{"import: waiting for a server that does not answer ends with the context", nil, (*fixture).importSilence},
	{"import: a server with invalid or endless answers is refused", nil, (*fixture).importRubbish},
	{"import, errors: a failure is AgentFailed, with the agent's own text", nil, (*fixture).importFails},
	{"import, errors: an unknown action does not reach the agent", nil, (*fixture).importUnknown},
	{"import, errors: input outside the schema does not reach the agent", []Part{Schemas}, (*fixture).importInvalid},
	{"import, cancel: a consumer that leaves, or whose deadline passes, ends the agent's run", nil, (*fixture).importCancels},
	{"import, stream: all partial outputs arrive at once and in order", []Part{Streams}, (*fixture).importStreams},
	{"import, stream: buffering for a slow consumer is bounded", []Part{Streams, Backpressure, large}, (*fixture).importBackpressure},
	{"import, input: the consumer provides the input that the agent requires", []Part{Inputs}, (*fixture).importInput},
	{"import, limits: an output or an input over the limit is an error, and the next call works", []Part{large}, (*fixture).importLimits},
	{"import, change: a change of the agent is a new draft, which verifies and works", []Part{Changes}, (*fixture).importChanges},
	{"import, withdrawal: a stopped agent is unreachable, and another is not", nil, (*fixture).importStopped},
	{"import: concurrent callers each get their own answer", nil, (*fixture).importConcurrent},
}

func (b *fixture) importDescribes() {
	_, _, a, d := b.importAgent("The Probe")
	for act := range Acts {
		if d.Thing.Actions[act] == nil {
			b.Errorf("no action %s in %s", act, d.Thing.Raw)
		}
	}
	if d.Thing.Title != "The Probe" || !slices.Contains(d.Record.Capabilities, "urn:example:tea") {
		b.Errorf("the title is %q and the capabilities are %v, want those of the import", d.Thing.Title, d.Record.Capabilities)
	}
	for _, w := range a.Warnings {
		if strings.TrimSpace(w) == "" || strings.ContainsAny(w, "\x1b\x00") {
			b.Errorf("the warning %q is empty or has control codes", w)
		}
	}
	b.checkAgent(d)
}

func (b *fixture) importTwice() {
	f, _, one, first := b.importAgent("one")
	_, second := b.importFrom(f, "two")
	b.checkAgent(first)
	b.checkAgent(second)
	one.Close()
	b.checkAgent(second)
}

// startRun starts a slow run of an agent, and returns the channel of its result.
func (b *fixture) startRun(ctx context.Context, s *Script, d *td.Description, word string) <-chan error {
	b.Helper()
	ended := make(chan error, 1)
	m := message(d, Slow, fields{"word": word})
	go func() {
		_, err := interact.Call(ctx, b.mesh, m)
		ended <- err
	}()
	select {
	case <-s.run(word).started:
	case err := <-ended:
		b.Fatalf("%s ends with %v before it starts", Slow, err)
	case <-b.ctx.Done():
		b.Fatalf("%s does not start", Slow)
	}
	return ended
}

// waitEnd returns the result of a run.
func (b *fixture) waitEnd(what string, ended <-chan error) error {
	b.Helper()
	select {
	case err := <-ended:
		return err
	case <-b.ctx.Done():
		b.Fatalf("%s: the call does not end", what)
		return nil
	}
}

func (b *fixture) importCloses() {
	_, s, a, d := b.importAgent("probe")
	ended := b.startRun(b.ctx, s, d, "w")
	a.Close()
	b.checkError("a call during Close", b.waitEnd("Close", ended))
	b.waitFor("the end of the agent's run", s.run("w").ended)
	_, err := b.invoke(d, Echo, fields{"text": "x"})
	b.checkError("a call after Close", err)
}

// checkRefused checks that the import of a target fails.
func (b *fixture) checkRefused(what, target string, codes ...interact.Code) {
	b.Helper()
	a, err := b.bridge.Import(b.ctx, target, bridge.Import{})
	if err == nil {
		a.Close()
		b.Errorf("%s is imported: %s", what, a.TD)
		return
	}
	if e := (*interact.Error)(nil); !errors.As(err, &e) {
		b.Errorf("%s: the error is a %T, want an *interact.Error: %v", what, err, err)
	}
	b.checkError(what, err, codes...)
	if b.ctx.Err() != nil {
		b.Errorf("%s: refused only after the time limit", what)
	}
}

func (b *fixture) importNonsense() {
	for _, target := range b.kit.Nonsense {
		b.checkRefused(fmt.Sprintf("%q", target), target, interact.Usage, interact.ConfigInvalid)
	}
	if b.kit.Target == nil {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	l.Close()
	b.checkRefused("an unused address", b.kit.Target("http://"+l.Addr().String()), interact.Unreachable)
}

func (b *fixture) importSilence() {
	targets := map[string]string{}
	asked := make(chan struct{}, 64)
	if b.kit.Silent != "" {
		targets["a program"] = b.kit.Silent
		asked <- struct{}{}
	}
	if b.kit.Target != nil {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server detects a disconnect only after it has read the body
			asked <- struct{}{}
			<-r.Context().Done()
		}))
		b.Cleanup(server.Close)
		targets["a web server"] = b.kit.Target(server.URL)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		var accepting sync.WaitGroup
		accepting.Go(func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				asked <- struct{}{}
				defer c.Close()
			}
		})
		b.Cleanup(func() { l.Close(); accepting.Wait() })
		targets["a listener"] = b.kit.Target("http://" + l.Addr().String())
	}
	for what, target := range targets {
		ctx, cancel := context.WithCancel(b.ctx)
		go func() {
			<-asked
			cancel()
		}()
		a, err := b.bridge.Import(ctx, target, bridge.Import{})
		if err == nil {
			a.Close()
		}
		if e := (*interact.Error)(nil); err != nil && !errors.As(err, &e) {
			b.Errorf("%s: the error is a %T, want an *interact.Error", what, err)
		}
		b.checkError(what+" that does not answer", err, interact.Cancelled)
	}
}

// rubbish are web servers that are not agents.
var rubbish = map[string]http.HandlerFunc{
	"a page":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<!doctype html><title>Welcome</title>") },
	"nothing":      func(http.ResponseWriter, *http.Request) {},
	"other JSON":   media("application/json", `{"hello":["world",7,null]}`),
	"half of JSON": media("application/json", `{"name":"x","jsonrpc":"2.0","id":`),
	"a list":       media("application/json", `[[[]]]`),
	"no UTF-8":     media("application/json", "{\"name\":\"\xff\xfe\x00\"}"),
	"control codes": func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "\x1b[2J\x1b]0;owned\x07", http.StatusBadRequest)
	},
	"deep JSON":      media("application/json", strings.Repeat(`{"a":[`, 100_000)),
	"events of text": media("text/event-stream", "data: hello\n\ndata: world\n\n"),
	"500":            func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) },
	"404":            http.NotFound,
	"a circle":       func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
	"a broken end":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"name":`); panic(http.ErrAbortHandler) },
	"no end":         endless("application/json"),
	"no end, events": endless("text/event-stream"),
}

func media(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, body)
	}
}

// endless writes until the client disconnects.
func endless(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, err := fmt.Fprint(w, `data: {"name":"`)
		for junk := []byte(strings.Repeat("x", 64<<10)); err == nil; {
			_, err = w.Write(junk)
		}
	}
}

func (b *fixture) importRubbish() {
	for what, target := range b.kit.Bad {
		b.checkRefused(what, target)
	}
	if b.kit.Target == nil {
		return
	}
	for what, h := range rubbish {
		server := httptest.NewServer(h)
		b.checkRefused(what, b.kit.Target(server.URL))
		server.CloseClientConnections()
		server.Close()
	}
}

func (b *fixture) importFails() {
	_, _, _, d := b.importAgent("probe")
	_, err := b.invoke(d, Fail, fields{})
	b.checkError("what fails", err, interact.AgentFailed)
	if e := interact.AsError(err); e != nil && (!e.Remote || !strings.Contains(e.Error(), Trouble)) {
		b.Errorf("the failure is %q, remote %v, want the agent's text %q", e, e.Remote, Trouble)
	}
	b.checkAgent(d)
}

func (b *fixture) importUnknown() {
	_, s, a, d := b.importAgent("probe")
	_, err := b.invoke(d, "dance", fields{})
	b.checkError("an unknown action", err, interact.NoAffordance)
	for r, err := range a.Thing.Do(b.ctx, message(d, "dance", fields{})) { // without the checks of the host
		if err == nil && r.Status == interact.StatusCompleted {
			continue // some agents accept any name
		}
		if err != nil {
			b.checkError("an unknown action, unchecked", err)
		}
	}
	m := message(d, Echo, fields{"text": "x"})
	m.Type = interact.WriteProperty
	_, err = interact.Call(b.ctx, a.Thing, m)
	b.checkError("an unsupported operation", err)
	if n := s.calls.Load(); n > 1 {
		b.Errorf("the agent was called %d times for an unknown action", n)
	}
	b.checkAgent(d)
}

func (b *fixture) importInvalid() {
	_, s, _, d := b.importAgent("probe")
	for _, input := range []any{fields{}, fields{"text": 7}, "text", []int{1}} {
		_, err := b.invoke(d, Echo, input)
		b.checkError(fmt.Sprintf("the input %v", input), err, interact.Invalid)
	}
	if n := s.calls.Load(); n != 0 {
		b.Errorf("the agent was called %d times", n)
	}
}

func (b *fixture) importCancels() {
	_, s, a, d := b.importAgent("probe")
	ctx, cancel := context.WithCancel(b.ctx)
	ended := b.startRun(ctx, s, d, "left")
	cancel()
	b.checkError("a consumer that leaves", b.waitEnd("leaving", ended), interact.Cancelled)
	b.waitFor("the end of the agent's run after its consumer left", s.run("left").ended)

	m := message(d, Slow, fields{"word": "late"})
	m.Deadline = time.Now().Add(200 * time.Millisecond)
	_, err := interact.Call(b.ctx, a.Thing, m) // without the host's middleware: the bridge itself enforces the deadline
	b.checkError("a consumer whose deadline passed", err, interact.Timeout)
	select {
	case <-s.run("late").started:
		b.waitFor("the end of the agent's run after its deadline", s.run("late").ended)
	default: // the deadline passed before the call
	}
	b.checkAgent(d)
}

func (b *fixture) importStreams() {
	_, s, _, d := b.importAgent("probe")
	const n = 20
	release := s.hold()
	defer release()
	var all strings.Builder
	var last *interact.Message
	for r, err := range b.mesh.Do(b.ctx, message(d, Count, fields{"n": n})) {
		if err != nil {
			b.Fatalf("the stream ends with %v after %s", err, all.String())
		}
		if last != nil && last.Status.Final() {
			b.Errorf("%v comes after the end", r.Status)
		}
		if last = r; strings.Contains(string(r.Data), step(0)) {
			release() // the first step arrived while the agent waits
		}
		all.Write(r.Data)
	}
	if last == nil || last.Status != interact.StatusCompleted {
		b.Errorf("the last reply is %+v, want completed", last)
	}
	if err := inOrder(all.String(), n); err != nil {
		b.Error(err)
	}
}

// The output of importBackpressure, 112 MiB in all, and how much of it may be buffered.
const (
	floodSteps       = 224
	floodStepBytes   = 512 << 10
	maxFloodBuffered = 80 << 20
)

func (b *fixture) importBackpressure() {
	_, s, _, d := b.importAgent("probe")
	before := liveheap.Bytes()
	for r, err := range b.mesh.Do(b.ctx, message(d, Count, fields{"n": floodSteps, "bytes": floodStepBytes})) {
		if err != nil {
			b.Fatalf("the stream ends with %v", err)
		}
		if !strings.Contains(string(r.Data), step(0)) {
			continue
		}
		b.waitStalled(s)
		kept := min(liveheap.Bytes()-before, s.steps.Load()*floodStepBytes)
		if kept > maxFloodBuffered {
			b.Errorf("%d MiB are buffered for a consumer that reads nothing, after %d steps", kept>>20, s.steps.Load())
		}
		break
	}
	b.checkAgent(d)
}

// waitStalled waits until the agent is blocked, or has sent everything.
func (b *fixture) waitStalled(s *Script) {
	const still = 100 * time.Millisecond
	tick := time.NewTicker(still)
	defer tick.Stop()
	for last := int64(-1); ; {
		now := s.steps.Load()
		if now == last || now == floodSteps {
			return
		}
		last = now
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatal("the agent is never blocked")
		}
	}
}

func (b *fixture) importInput() {
	_, _, a, d := b.importAgent("probe")
	for _, test := range []struct{ action, city, want string }{{interact.Accept, "Bonn", "in Bonn"}, {interact.Accept, "Köln", "in Köln"},
		{interact.Decline, "", ""}} {
		got, err := b.conversation(d, test.action, test.city)
		if test.action == interact.Decline {
			if err != nil {
				b.checkError("a consumer that declines", err)
			}
			continue
		}
		if err != nil || got != test.want {
			b.Errorf("%s gives %q, %v, want %q", Ask, got, err, test.want)
		}
	}
	_, err := b.invoke(d, Ask, fields{})
	b.checkError("a consumer that cannot provide input", err, interact.InputNeeded)
	_, err = interact.Call(b.ctx, a.Thing, &interact.Message{Type: interact.ContinueAction, ActionID: "unknown", Data: []byte(`{}`)})
	b.checkError("input for an unknown task", err, interact.NoTask)
}

// conversation invokes Ask, and provides the input.
func (b *fixture) conversation(d *td.Description, action, city string) (out string, err error) {
	asked := 0
	for r, err := range b.mesh.Do(b.ctx, message(d, Ask, fields{})) {
		switch {
		case err != nil:
			return "", err
		case r.Status == interact.StatusInputRequired:
			in := interact.Inputs{}
			if err := json.Unmarshal(r.Data, &in); err != nil || len(in) == 0 {
				b.Fatalf("it requires %s: %v", r.Data, err)
			}
			if asked++; asked > 1 {
				return "", errors.New("it requires input again")
			}
			answers := interact.Answers{}
			for key, one := range in {
				if one.Message != Question {
					b.Errorf("it requires %q, want %q", one.Message, Question)
				}
				answers[key] = interact.Answer{Action: action}
				if action == interact.Accept {
					answers[key] = interact.Answer{Action: action, Content: encoded(fields{"city": city})}
				}
			}
			m := message(d, Ask, answers)
			m.Type, m.ActionID = interact.ContinueAction, r.ActionID
			if _, err := interact.Call(b.ctx, b.mesh, m); err != nil {
				return "", fmt.Errorf("the answer: %w", err)
			}
		case len(r.Data) > 0 && r.ContentType != interact.Progress:
			out += text(r)
		}
	}
	return out, nil
}

func (b *fixture) importLimits() {
	_, s, _, d := b.importAgent("probe")
	_, err := b.invoke(d, Big, fields{"bytes": b.kit.over()})
	b.checkError("an output over the limit", err, interact.TooLarge, interact.AgentFailed)
	b.checkAgent(d)
	asked := s.calls.Load()
	_, err = b.invoke(d, Echo, fields{"text": strings.Repeat("x", b.kit.over())})
	b.checkError("an input over the limit", err)
	if s.calls.Load() != asked {
		b.Error("an input over the limit reached the agent")
	}
	b.checkAgent(d)
	if out, err := b.invoke(d, Big, fields{"bytes": 1 << 20}); err != nil || len(out) != 1<<20 {
		b.Errorf("an output of 1 MiB has %d bytes, %v", len(out), err)
	}
}

func (b *fixture) importChanges() {
	f, _, a, d := b.importAgent("probe")
	if a.Changes == nil {
		b.Fatal("the agent reports no changes")
	}
	ctx, stop := context.WithCancel(b.ctx)
	defer stop()
	f.Change()
	var drafts [][]byte
	for draft := range a.Changes(ctx) {
		drafts = append(drafts, draft)
		now := b.mesh.Publish(b, draft, a.Thing)
		if now.Ref() != d.Ref() {
			b.Errorf("the reference is %s now, and was %s", now.Ref(), d.Ref())
		}
		b.checkAgent(now)
		if now.Thing.Actions[Extra] == nil {
			continue
		}
		if got, err := b.invoke(now, Extra, fields{}); err != nil || got != "more" {
			b.Errorf("%s gives %q, %v", Extra, got, err)
		}
		stop() // ends the loop, too
	}
	if ctx.Err() == nil || b.ctx.Err() != nil {
		b.Errorf("no draft has the change; there were %d drafts", len(drafts))
	}
}

func (b *fixture) importStopped() {
	_, _, _, other := b.importAgent("other")
	f, s, _, d := b.importAgent("probe")
	b.checkAgent(d)
	ended := b.startRun(b.ctx, s, d, "w")
	f.Stop()
	b.checkError("a call while the agent stops", b.waitEnd("stopping", ended), interact.Unreachable, interact.AgentFailed)
	for range 3 {
		_, err := b.invoke(d, Echo, fields{"text": "x"})
		if b.kit.Target == nil {
			b.checkError("a call of a program that does not start", err, interact.Unreachable, interact.AgentFailed)
		} else {
			b.checkError("a call of a stopped server", err, interact.Unreachable)
		}
		b.checkAgent(other)
	}
}

func (b *fixture) importConcurrent() {
	_, s, _, d := b.importAgent("probe")
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			want := fmt.Sprint("caller ", i)
			if got, err := b.invoke(d, Echo, fields{"text": want}); err != nil || got != want {
				b.Errorf("%s gives %q, %v, want %q", Echo, got, err, want)
			}
			switch i % 4 {
			case 0:
				_, err := b.invoke(d, Fail, fields{})
				b.checkError("what fails", err, interact.AgentFailed)
			case 1:
				if got, err := b.invoke(d, Big, fields{"bytes": 100 << 10}); err != nil || len(got) != 100<<10 {
					b.Errorf("%s gives %d bytes, %v", Big, len(got), err)
				}
			case 2:
				ctx, cancel := context.WithCancel(b.ctx)
				defer cancel()
				go func() {
					b.waitFor("the start of a run", s.run(want).started)
					cancel()
				}()
				_, err := interact.Call(ctx, b.mesh, message(d, Slow, fields{"word": want}))
				b.checkError("a consumer that leaves", err, interact.Cancelled)
				b.waitFor("the end of a run", s.run(want).ended)
			}
		})
	}
	all.Wait()
}
