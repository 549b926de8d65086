package bridgetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// exportRules are those of things of the mesh, for clients of the protocol.
var exportRules = []rule{
	{"export: a client finds what the thing does, and calls it", nil, (*bed).exportServes},
	{"export, errors: a client is told what happened and what to do about it", nil, (*bed).exportFails},
	{"export, errors: input outside the schema is refused before the thing is asked", nil, (*bed).exportInvalid},
	{"export, errors: a thing that panics ends its call, and nothing else", nil, (*bed).exportPanics},
	{"export, cancel: a client that leaves, or cancels, ends the thing's run", nil, (*bed).exportCancels},
	{"export, stream: what comes on the way comes at once, in order, and all of it", []Part{Streams}, (*bed).exportStreams},
	{"export, stream: what a thing says without end is not kept without bound", []Part{large}, (*bed).exportFloods},
	{"export, input: the client is asked what the thing wants to know, and the thing gets the answer", []Part{Inputs}, (*bed).exportAsks},
	{"export, input: a client that cannot be asked is told so, and nothing waits for it", []Part{Inputs, Refuses}, (*bed).exportCannotAsk},
	{"export, limits: an output or an input over the limit is an error, and the next call works", []Part{large}, (*bed).exportLimits},
	{"export, change: a client sees what has changed", nil, (*bed).exportChanges},
	{"export, change: a client is told that something has changed", []Part{Tells}, (*bed).exportTells},
	{"export, withdrawal: a thing that is withdrawn is not found, and another is", nil, (*bed).exportWithdrawn},
	{"export, withdrawal: Close ends calls that go on, and the runs behind them", nil, (*bed).exportCloses},
	{"export, policy: what the policy refuses is refused in the words of the protocol, and nobody is asked", nil, (*bed).exportRefuses},
	{"export: many clients at once get each their own", nil, (*bed).exportMany},
}

func (b *bed) exportServes() {
	b.staged("stage")
	b.staged("other")
	c := b.serves("stage")
	names, err := c.Names(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	for act := range Acts {
		if !slices.Contains(names, act) {
			b.Errorf("%s is not among the names %q", act, names)
		}
	}
	b.answers(c)
	for _, text := range []string{"", " ", "日本語\n\t\"'\\", strings.Repeat("long ", 10_000)} {
		if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": text})}); err != nil || got != text {
			b.Errorf("%q gives %q, %v", interact.Clip(text, 50), interact.Clip(got, 50), err)
		}
	}
}

func (b *bed) exportFails() {
	b.staged("stage")
	c := b.serves("stage")
	_, err := c.Call(b.ctx, Call{Name: Fail})
	b.failed("what fails", err, interact.AgentFailed, Trouble, mend)
	_, err = c.Call(b.ctx, Call{Name: "dance"})
	b.failed("what is not there", err, interact.NoAffordance, "dance")
	b.answers(c)
}

func (b *bed) exportInvalid() {
	s, _ := b.staged("stage")
	c := b.serves("stage")
	for _, input := range []fields{{}, {"text": 7}, {"text": "x", "more": true}} {
		_, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(input)})
		b.failed(fmt.Sprintf("the input %v", input), err, interact.Invalid)
	}
	if n := s.asked.Load(); n != 0 {
		b.Errorf("the thing was asked %d times", n)
	}
	b.answers(c)
}

func (b *bed) exportPanics() {
	s, _ := b.staged("stage")
	c := b.serves("stage")
	ended := b.begun(b.ctx, c, s, "w", nil)
	_, err := c.Call(b.ctx, Call{Name: broken})
	b.failed("a thing that panics", err, interact.Internal)
	b.answers(c)
	select {
	case err := <-ended:
		b.Errorf("another call ends, too: %v", err)
	default:
	}
}

// begun begins a slow run as a client, and returns how the call ends.
func (b *bed) begun(ctx context.Context, c Client, s *Script, word string, known func(cancel func(context.Context) error)) <-chan error {
	b.Helper()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	var calling sync.WaitGroup
	calling.Go(func() {
		_, err := c.Call(ctx, Call{Name: Slow, Input: encoded(fields{"word": word}), Begun: known})
		ended <- err
	})
	b.Cleanup(func() { cancel(); calling.Wait() })
	select {
	case <-s.word(word).began:
	case err := <-ended:
		b.Fatalf("%s ends with %v before it begins", Slow, err)
	case <-b.ctx.Done():
		b.Fatalf("%s does not begin", Slow)
	}
	return ended
}

func (b *bed) exportCancels() {
	s, _ := b.staged("stage")
	b.cancels(s, b.serves("stage"))
}

// cancels checks that a client ends a run: it leaves, or where that is not enough it cancels.
func (b *bed) cancels(s *Script, c Client) {
	b.Helper()
	ctx, leave := context.WithCancel(b.ctx)
	defer leave()
	known := make(chan func(context.Context) error, 1)
	ended := b.begun(ctx, c, s, "left", func(cancel func(context.Context) error) { known <- cancel })
	var cancel func(context.Context) error
	if b.kit.Survives {
		select {
		case cancel = <-known:
		case <-b.ctx.Done():
			b.Fatal("the client does not learn what it began")
		}
	}
	leave()
	if err := b.ending("leaving", ended); err == nil {
		b.Error("a call has an output after its client has left")
	}
	b.answers(c)
	if cancel != nil {
		select {
		case <-s.word("left").ended:
			b.Error("the run does not survive its client")
		default:
		}
		if err := cancel(b.ctx); err != nil {
			b.Errorf("cancel: %v", err)
		}
	}
	b.waits("the run to end", s.word("left").ended)
	b.answers(c)
}

func (b *bed) exportStreams() {
	s, _ := b.staged("stage")
	const n = 20
	heard, got := b.streams(s, b.serves("stage"), n)
	if !strings.HasPrefix(heard.String(), step(0)) {
		b.Errorf("on the way came %q", heard)
	}
	if err := inOrder(got, n); err != nil {
		b.Error(err)
	}
}

// streams checks that a client hears of steps as they are made, and returns all that it hears, and the output.
func (b *bed) streams(s *Script, c Client, n int) (heard *journal, out string) {
	b.Helper()
	release := s.hold()
	defer release()
	heard = &journal{}
	out, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": n}), Heard: func(text string) {
		heard.write(text)
		if strings.Contains(text, step(0)) {
			release() // it came while the thing waits
		}
	}})
	if err != nil {
		b.Fatalf("the stream ends with %v after %q", err, heard)
	}
	return heard, out
}

// A journal is what was heard, one after the other.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) write(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text.WriteString(text)
}

// String is all of it.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (b *bed) exportFloods() {
	s, _ := b.staged("stage")
	c := b.serves("stage")
	before := heap()
	_, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": tideSteps, "bytes": tideBytes})})
	if f := (*Failure)(nil); !errors.As(err, &f) || f.Text == "" { // it is too large, or the client too slow for it: who sees it first says so
		b.Errorf("a flood ends with %v, want a failure", err)
	}
	if kept := heap() - before; kept > tideKept {
		b.Errorf("%d MiB are kept of a flood, after %d steps", kept>>20, s.steps.Load())
	}
	b.answers(c)
}

func (b *bed) exportAsks() {
	b.staged("stage")
	b.asks(b.serves("stage"))
}

// asks checks that a client is asked, and that its answer counts.
func (b *bed) asks(c Client) {
	b.Helper()
	for _, city := range []string{"Bonn", "Köln"} {
		asked := ""
		got, err := c.Call(b.ctx, Call{Name: Ask, Answer: func(question string) json.RawMessage {
			asked = question
			return encoded(fields{"city": city})
		}})
		if err != nil || got != "in "+city || !strings.Contains(asked, Question) {
			b.Errorf("%s gives %q, %v, after %q", Ask, got, err, asked)
		}
	}
	b.answers(c)
}

func (b *bed) exportCannotAsk() {
	b.staged("stage")
	c := b.serves("stage")
	_, err := c.Call(b.ctx, Call{Name: Ask})
	b.failed("a client that cannot be asked", err, interact.InputNeeded)
	for b.mesh.Running() > 0 && b.ctx.Err() == nil { // it was told before the run ends
		b.answers(c)
	}
	if n := b.mesh.Running(); n > 0 {
		b.Errorf("%d runs wait for a client that cannot be asked", n)
	}
}

func (b *bed) exportLimits() {
	s, _ := b.staged("stage")
	url := Serve(b, b.bridge.Export(b.mesh))
	c := b.kit.Connect(b, url, "stage")
	_, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": b.kit.over()})})
	b.failed("an output over the limit", err, interact.TooLarge)
	b.answers(c)
	asked := s.asked.Load()
	if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": strings.Repeat("x", b.kit.over())})}); err == nil {
		b.Errorf("an input over the limit gives %d bytes", len(got))
	}
	if s.asked.Load() != asked {
		b.Error("the thing was asked with an input over the limit")
	}
	c = b.kit.Connect(b, url, "stage") // a client may take it as the end of its connection
	b.answers(c)
	if out, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": 1 << 20})}); err != nil || len(out) != 1<<20 {
		b.Errorf("an output of 1 MiB has %d bytes, %v", len(out), err)
	}
}

// changed offers a thing again, with one more act and without one that it had.
func (b *bed) changed(id string) *td.Description {
	b.Helper()
	return b.mesh.Offer(b, []byte(strings.Replace(string(stageTD(id, Extra)), `"`+Fail+`":`, `"stumble":`, 1)), &stage{Script: newScript()})
}

func (b *bed) exportChanges() {
	b.staged("stage")
	c := b.serves("stage")
	if _, err := c.Names(b.ctx); err != nil {
		b.Fatal(err)
	}
	b.changed("stage")
	names, err := c.Names(b.ctx)
	if err != nil || !slices.Contains(names, Extra) || slices.Contains(names, Fail) {
		b.Errorf("after the change the names are %q, %v", names, err)
	}
	if got, err := c.Call(b.ctx, Call{Name: Extra}); err != nil || got != "more" {
		b.Errorf("%s gives %q, %v", Extra, got, err)
	}
	_, err = c.Call(b.ctx, Call{Name: Fail})
	b.failed("what is there no more", err, interact.NoAffordance)
	b.answers(c)
}

func (b *bed) exportTells() {
	b.staged("stage")
	c := b.serves("stage")
	if _, err := c.Names(b.ctx); err != nil {
		b.Fatal(err)
	}
	b.changed("stage")
	b.waits("the client to be told of the change", c.Changed())
	if names, err := c.Names(b.ctx); err != nil || !slices.Contains(names, Extra) {
		b.Errorf("after the change the names are %q, %v", names, err)
	}
}

func (b *bed) exportWithdrawn() {
	s, d := b.staged("stage")
	b.staged("other")
	url := Serve(b, b.bridge.Export(b.mesh))
	c, other := b.kit.Connect(b, url, "stage"), b.kit.Connect(b, url, "other")
	b.answers(c)
	asked := s.asked.Load()
	b.mesh.Withdraw(b, d)
	for range 2 {
		_, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": "x"})})
		b.failed("a thing that was withdrawn", err, interact.Withdrawn)
		b.answers(other)
	}
	if s.asked.Load() != asked {
		b.Error("a thing that was withdrawn is asked")
	}
	b.staged("stage") // and comes back
	b.answers(b.kit.Connect(b, url, "stage"))
}

func (b *bed) exportCloses() {
	s, _ := b.staged("stage")
	h := b.bridge.Export(b.mesh)
	another := b.bridge.Export(b.mesh)
	c := b.kit.Connect(b, Serve(b, h), "stage")
	other := b.kit.Connect(b, Serve(b, another), "stage")
	ended := b.begun(b.ctx, c, s, "w", nil)
	h.Close()
	if err := b.ending("Close", ended); err == nil {
		b.Error("the call has an output after Close")
	}
	b.waits("the run behind it to end", s.word("w").ended)
	if _, err := c.Call(b.ctx, Call{Name: Slow, Input: encoded(fields{"word": "late"})}); err == nil {
		b.Error("a handler that is closed begins a run")
	}
	b.answers(other)
}

func (b *bed) exportRefuses() {
	s, _ := b.staged("stage")
	c := b.serves("stage")
	_, err := c.Call(b.ctx, Call{Name: secret})
	b.failed("what the policy refuses", err, interact.Forbidden, "rule 7 says no", askWhom)
	if n := s.asked.Load(); n != 0 {
		b.Errorf("the thing was asked %d times", n)
	}
	b.answers(c)
}

func (b *bed) exportMany() {
	s, _ := b.staged("stage")
	url := Serve(b, b.bridge.Export(b.mesh))
	var all sync.WaitGroup
	for range 3 {
		c := b.kit.Connect(b, url, "stage")
		for i := range 8 {
			all.Go(func() { b.oneOfMany(c, i, true) })
		}
	}
	for range 8 { // and the thing changes meanwhile
		b.mesh.Offer(b, stageTD("stage", Extra), &stage{Script: s})
		b.mesh.Offer(b, stageTD("stage"), &stage{Script: s})
	}
	all.Wait()
}

// oneOfMany is what one client does at once with others. Whole says that outputs have all that was said on the way.
func (b *bed) oneOfMany(c Client, i int, whole bool) {
	text := interact.NewID()
	if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": text})}); err != nil || got != text {
		b.Errorf("%s of %s gives %q, %v", Echo, text, got, err)
	}
	switch i % 4 {
	case 0:
		_, err := c.Call(b.ctx, Call{Name: Fail})
		b.failed("what fails", err, interact.AgentFailed, Trouble)
	case 1:
		if got, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": 100 << 10})}); err != nil || len(got) != 100<<10 {
			b.Errorf("%s gives %d bytes, %v", Big, len(got), err)
		}
	case 2:
		got, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": 5}), Heard: func(string) {}})
		if err == nil && whole {
			err = inOrder(got, 5)
		}
		if err != nil {
			b.Errorf("%s: %v", Count, err)
		}
	}
}
