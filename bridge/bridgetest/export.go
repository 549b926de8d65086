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

// exportRules are the rules of Things of the mesh for clients of the protocol.
var exportRules = []rule{
	{"export: a client lists the actions of the Thing, and calls them", nil, (*bed).exportServes},
	{"export, errors: a client gets the cause and the hint", nil, (*bed).exportFails},
	{"export, errors: input outside the schema does not reach the Thing", nil, (*bed).exportInvalid},
	{"export, errors: a panic of the Thing fails only its call", nil, (*bed).exportPanics},
	{"export, cancel: a client that leaves, or cancels, ends the Thing's run", nil, (*bed).exportCancels},
	{"export, stream: all partial outputs arrive at once and in order", []Part{Streams}, (*bed).exportStreams},
	{"export, stream: buffering of an endless output is bounded", []Part{large}, (*bed).exportFloods},
	{"export, input: the client provides the input that the Thing requires", []Part{Inputs}, (*bed).exportAsks},
	{"export, input: a client that cannot provide input gets an error, and the run ends", []Part{Inputs, Refuses}, (*bed).exportCannotAsk},
	{"export, limits: an output or an input over the limit is an error, and the next call works", []Part{large}, (*bed).exportLimits},
	{"export, change: a client sees changes", nil, (*bed).exportChanges},
	{"export, change: a client is notified of changes", []Part{Tells}, (*bed).exportTells},
	{"export, withdrawal: a withdrawn Thing is not found, and another is", nil, (*bed).exportWithdrawn},
	{"export, withdrawal: Close ends open calls and their runs", nil, (*bed).exportCloses},
	{"export, policy: a refusal is an error of the protocol, and does not reach the Thing", nil, (*bed).exportRefuses},
	{"export: concurrent clients each get their own answer", nil, (*bed).exportMany},
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
	b.failed("an unknown action", err, interact.NoAffordance, "dance")
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
		b.Errorf("the Thing was called %d times", n)
	}
	b.answers(c)
}

func (b *bed) exportPanics() {
	s, _ := b.staged("stage")
	c := b.serves("stage")
	ended := b.begun(b.ctx, c, s, "w", nil)
	_, err := c.Call(b.ctx, Call{Name: broken})
	b.failed("a Thing that panics", err, interact.Internal)
	b.answers(c)
	select {
	case err := <-ended:
		b.Errorf("another call ends, too: %v", err)
	default:
	}
}

// begun starts a slow run as a client, and returns the channel of its result.
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
		b.Fatalf("%s ends with %v before it starts", Slow, err)
	case <-b.ctx.Done():
		b.Fatalf("%s does not start", Slow)
	}
	return ended
}

func (b *bed) exportCancels() {
	s, _ := b.staged("stage")
	b.cancels(s, b.serves("stage"))
}

// cancels checks that a client ends a run: it disconnects, and if runs survive that, it cancels.
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
			b.Fatal("the client does not learn the id of its run")
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
	b.waits("the end of the run", s.word("left").ended)
	b.answers(c)
}

func (b *bed) exportStreams() {
	s, _ := b.staged("stage")
	const n = 20
	heard, got := b.streams(s, b.serves("stage"), n)
	if !strings.HasPrefix(heard.String(), step(0)) {
		b.Errorf("the partial outputs are %q", heard)
	}
	if err := inOrder(got, n); err != nil {
		b.Error(err)
	}
}

// streams checks that a client receives steps as they are made, and returns all steps and the output.
func (b *bed) streams(s *Script, c Client, n int) (heard *journal, out string) {
	b.Helper()
	release := s.hold()
	defer release()
	heard = &journal{}
	out, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": n}), Heard: func(text string) {
		heard.write(text)
		if strings.Contains(text, step(0)) {
			release() // the first step arrived while the Thing waits
		}
	}})
	if err != nil {
		b.Fatalf("the stream ends with %v after %q", err, heard)
	}
	return heard, out
}

// A journal collects texts in order.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) write(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text.WriteString(text)
}

// String returns the whole text.
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
	if f := (*Failure)(nil); !errors.As(err, &f) || f.Text == "" { // either the limit or the speed of the client ends it first
		b.Errorf("a flood ends with %v, want a failure", err)
	}
	if kept := heap() - before; kept > tideKept {
		b.Errorf("%d MiB of a flood are buffered, after %d steps", kept>>20, s.steps.Load())
	}
	b.answers(c)
}

func (b *bed) exportAsks() {
	b.staged("stage")
	b.asks(b.serves("stage"))
}

// asks checks that a client can provide input.
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
	b.failed("a client that cannot provide input", err, interact.InputNeeded)
	for b.mesh.Running() > 0 && b.ctx.Err() == nil { // the error may arrive before the run ends
		b.answers(c)
	}
	if n := b.mesh.Running(); n > 0 {
		b.Errorf("%d runs wait for a client that cannot provide input", n)
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
		b.Error("an input over the limit reached the Thing")
	}
	c = b.kit.Connect(b, url, "stage") // the client may have closed its connection
	b.answers(c)
	if out, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": 1 << 20})}); err != nil || len(out) != 1<<20 {
		b.Errorf("an output of 1 MiB has %d bytes, %v", len(out), err)
	}
}

// changed publishes a Thing again, with one more act and without one that it had.
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
	b.failed("a removed action", err, interact.NoAffordance)
	b.answers(c)
}

func (b *bed) exportTells() {
	b.staged("stage")
	c := b.serves("stage")
	if _, err := c.Names(b.ctx); err != nil {
		b.Fatal(err)
	}
	b.changed("stage")
	b.waits("the notification of the change", c.Changed())
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
		b.failed("a withdrawn Thing", err, interact.Withdrawn)
		b.answers(other)
	}
	if s.asked.Load() != asked {
		b.Error("a withdrawn Thing is called")
	}
	b.staged("stage") // published again
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
	b.waits("the end of the run behind it", s.word("w").ended)
	if _, err := c.Call(b.ctx, Call{Name: Slow, Input: encoded(fields{"word": "late"})}); err == nil {
		b.Error("a closed handler starts a run")
	}
	b.answers(other)
}

func (b *bed) exportRefuses() {
	s, _ := b.staged("stage")
	c := b.serves("stage")
	_, err := c.Call(b.ctx, Call{Name: secret})
	b.failed("a refused action", err, interact.Forbidden, "rule 7 says no", askWhom)
	if n := s.asked.Load(); n != 0 {
		b.Errorf("the Thing was called %d times", n)
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
	for range 8 { // the Thing changes during the calls
		b.mesh.Offer(b, stageTD("stage", Extra), &stage{Script: s})
		b.mesh.Offer(b, stageTD("stage"), &stage{Script: s})
	}
	all.Wait()
}

// oneOfMany makes calls concurrently with other clients. Whole: outputs contain all partial outputs.
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
