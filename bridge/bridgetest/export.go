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
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/td"
)

// exportRules are the rules of Things of the mesh for clients of the protocol.
var exportRules = []rule{
	{"export: a client lists the actions of the Thing, and calls them", nil, (*fixture).exportServes},
	{"export, errors: a client gets the cause and the hint", nil, (*fixture).exportFails},
	{"export, errors: input outside the schema does not reach the Thing", nil, (*fixture).exportInvalid},
	{"export, errors: a panic of the Thing fails only its call", nil, (*fixture).exportPanics},
	{"export, cancel: a client that leaves, or cancels, ends the Thing's run", nil, (*fixture).exportCancels},
	{"export, stream: all partial outputs arrive at once and in order", []Part{Streams}, (*fixture).exportStreams},
	{"export, stream: buffering of an endless output is bounded", []Part{large}, (*fixture).exportFloods},
	{"export, input: the client provides the input that the Thing requires", []Part{Inputs}, (*fixture).exportInput},
	{"export, input: a client that cannot provide input gets an error, and the run ends", []Part{Inputs, InputErrors}, (*fixture).exportNoInput},
	{"export, limits: an output or an input over the limit is an error, and the next call works", []Part{large}, (*fixture).exportLimits},
	{"export, change: a client sees changes", nil, (*fixture).exportChanges},
	{"export, change: a client is notified of changes", []Part{Notifications}, (*fixture).exportNotifies},
	{"export, withdrawal: a withdrawn Thing is not found, and another is", nil, (*fixture).exportWithdrawn},
	{"export, withdrawal: Close ends open calls and their runs", nil, (*fixture).exportCloses},
	{"export, policy: a refusal is an error of the protocol, and does not reach the Thing", nil, (*fixture).exportRefuses},
	{"export: concurrent clients each get their own answer", nil, (*fixture).exportConcurrent},
}

func (b *fixture) exportServes() {
	b.exposeStage("stage")
	b.exposeStage("other")
	c := b.connect("stage")
	names, err := c.Names(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	for act := range Acts {
		if !slices.Contains(names, act) {
			b.Errorf("%s is not among the names %q", act, names)
		}
	}
	b.checkClient(c)
	for _, text := range []string{"", " ", "日本語\n\t\"'\\", strings.Repeat("long ", 10_000)} {
		if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": text})}); err != nil || got != text {
			b.Errorf("%q gives %q, %v", interact.Clip(text, 50), interact.Clip(got, 50), err)
		}
	}
}

func (b *fixture) exportFails() {
	b.exposeStage("stage")
	c := b.connect("stage")
	_, err := c.Call(b.ctx, Call{Name: Fail})
	b.checkFailure("what fails", err, interact.AgentFailed, Trouble, troubleHint)
	_, err = c.Call(b.ctx, Call{Name: "dance"})
	b.checkFailure("an unknown action", err, interact.NoAffordance, "dance")
	b.checkClient(c)
}

func (b *fixture) exportInvalid() {
	s, _ := b.exposeStage("stage")
	c := b.connect("stage")
	for _, input := range []fields{{}, {"text": 7}, {"text": "x", "more": true}} {
		_, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(input)})
		b.checkFailure(fmt.Sprintf("the input %v", input), err, interact.Invalid)
	}
	if n := s.calls.Load(); n != 0 {
		b.Errorf("the Thing was called %d times", n)
	}
	b.checkClient(c)
}

func (b *fixture) exportPanics() {
	s, _ := b.exposeStage("stage")
	c := b.connect("stage")
	ended := b.startCall(b.ctx, c, s, "w", nil)
	_, err := c.Call(b.ctx, Call{Name: broken})
	b.checkFailure("a Thing that panics", err, interact.Internal)
	b.checkClient(c)
	select {
	case err := <-ended:
		b.Errorf("another call ends, too: %v", err)
	default:
	}
}

// startCall starts a slow run as a client, and returns the channel of its result.
func (b *fixture) startCall(ctx context.Context, c Client, s *Script, word string, known func(cancel func(context.Context) error)) <-chan error {
	b.Helper()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	var calling sync.WaitGroup
	calling.Go(func() {
		_, err := c.Call(ctx, Call{Name: Slow, Input: encoded(fields{"word": word}), OnStart: known})
		ended <- err
	})
	b.Cleanup(func() { cancel(); calling.Wait() })
	select {
	case <-s.run(word).started:
	case err := <-ended:
		b.Fatalf("%s ends with %v before it starts", Slow, err)
	case <-b.ctx.Done():
		b.Fatalf("%s does not start", Slow)
	}
	return ended
}

func (b *fixture) exportCancels() {
	s, _ := b.exposeStage("stage")
	b.checkCancel(s, b.connect("stage"))
}

// checkCancel checks that a client ends a run: it disconnects, and if runs survive that, it cancels.
func (b *fixture) checkCancel(s *Script, c Client) {
	b.Helper()
	ctx, leave := context.WithCancel(b.ctx)
	defer leave()
	known := make(chan func(context.Context) error, 1)
	ended := b.startCall(ctx, c, s, "left", func(cancel func(context.Context) error) { known <- cancel })
	var cancel func(context.Context) error
	if b.kit.Detached {
		select {
		case cancel = <-known:
		case <-b.ctx.Done():
			b.Fatal("the client does not learn the id of its run")
		}
	}
	leave()
	if err := b.waitEnd("leaving", ended); err == nil {
		b.Error("a call has an output after its client has left")
	}
	b.checkClient(c)
	if cancel != nil {
		select {
		case <-s.run("left").ended:
			b.Error("the run does not survive its client")
		default:
		}
		if err := cancel(b.ctx); err != nil {
			b.Errorf("cancel: %v", err)
		}
	}
	b.waitFor("the end of the run", s.run("left").ended)
	b.checkClient(c)
}

func (b *fixture) exportStreams() {
	s, _ := b.exposeStage("stage")
	const n = 20
	received, got := b.checkStream(s, b.connect("stage"), n)
	if !strings.HasPrefix(received.String(), step(0)) {
		b.Errorf("the partial outputs are %q", received)
	}
	if err := inOrder(got, n); err != nil {
		b.Error(err)
	}
}

// checkStream checks that a client receives steps as they are made, and returns all steps and the output.
func (b *fixture) checkStream(s *Script, c Client, n int) (received *journal, out string) {
	b.Helper()
	release := s.hold()
	defer release()
	received = &journal{}
	out, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": n}), OnProgress: func(text string) {
		received.write(text)
		if strings.Contains(text, step(0)) {
			release() // the first step arrived while the Thing waits
		}
	}})
	if err != nil {
		b.Fatalf("the stream ends with %v after %q", err, received)
	}
	return received, out
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

func (b *fixture) exportFloods() {
	s, _ := b.exposeStage("stage")
	c := b.connect("stage")
	before := liveheap.Bytes()
	_, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": floodSteps, "bytes": floodStepBytes})})
	if f := (*Failure)(nil); !errors.As(err, &f) || f.Text == "" { // either the limit or the speed of the client ends it first
		b.Errorf("a flood ends with %v, want a failure", err)
	}
	if kept := liveheap.Bytes() - before; kept > maxFloodBuffered {
		b.Errorf("%d MiB of a flood are buffered, after %d steps", kept>>20, s.steps.Load())
	}
	b.checkClient(c)
}

func (b *fixture) exportInput() {
	b.exposeStage("stage")
	b.checkInput(b.connect("stage"))
}

// checkInput checks that a client can provide input.
func (b *fixture) checkInput(c Client) {
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
	b.checkClient(c)
}

func (b *fixture) exportNoInput() {
	b.exposeStage("stage")
	c := b.connect("stage")
	_, err := c.Call(b.ctx, Call{Name: Ask})
	b.checkFailure("a client that cannot provide input", err, interact.InputNeeded)
	for b.mesh.Running() > 0 && b.ctx.Err() == nil { // the error may arrive before the run ends
		b.checkClient(c)
	}
	if n := b.mesh.Running(); n > 0 {
		b.Errorf("%d runs wait for a client that cannot provide input", n)
	}
}

func (b *fixture) exportLimits() {
	s, _ := b.exposeStage("stage")
	url := Serve(b, b.bridge.Export(b.mesh))
	c := b.kit.Connect(b, url, "stage")
	_, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": b.kit.over()})})
	b.checkFailure("an output over the limit", err, interact.TooLarge)
	b.checkClient(c)
	asked := s.calls.Load()
	if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": strings.Repeat("x", b.kit.over())})}); err == nil {
		b.Errorf("an input over the limit gives %d bytes", len(got))
	}
	if s.calls.Load() != asked {
		b.Error("an input over the limit reached the Thing")
	}
	c = b.kit.Connect(b, url, "stage") // the client may have closed its connection
	b.checkClient(c)
	if out, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": 1 << 20})}); err != nil || len(out) != 1<<20 {
		b.Errorf("an output of 1 MiB has %d bytes, %v", len(out), err)
	}
}

// changeStage publishes a Thing again, with one more act and without one that it had.
func (b *fixture) changeStage(id string) *td.Description {
	b.Helper()
	return b.mesh.Publish(b, []byte(strings.Replace(string(stageTD(id, Extra)), `"`+Fail+`":`, `"stumble":`, 1)), &stage{Script: newScript()})
}

func (b *fixture) exportChanges() {
	b.exposeStage("stage")
	c := b.connect("stage")
	if _, err := c.Names(b.ctx); err != nil {
		b.Fatal(err)
	}
	b.changeStage("stage")
	names, err := c.Names(b.ctx)
	if err != nil || !slices.Contains(names, Extra) || slices.Contains(names, Fail) {
		b.Errorf("after the change the names are %q, %v", names, err)
	}
	if got, err := c.Call(b.ctx, Call{Name: Extra}); err != nil || got != "more" {
		b.Errorf("%s gives %q, %v", Extra, got, err)
	}
	_, err = c.Call(b.ctx, Call{Name: Fail})
	b.checkFailure("a removed action", err, interact.NoAffordance)
	b.checkClient(c)
}

func (b *fixture) exportNotifies() {
	b.exposeStage("stage")
	c := b.connect("stage")
	if _, err := c.Names(b.ctx); err != nil {
		b.Fatal(err)
	}
	b.changeStage("stage")
	b.waitFor("the notification of the change", c.Changed())
	if names, err := c.Names(b.ctx); err != nil || !slices.Contains(names, Extra) {
		b.Errorf("after the change the names are %q, %v", names, err)
	}
}

func (b *fixture) exportWithdrawn() {
	s, d := b.exposeStage("stage")
	b.exposeStage("other")
	url := Serve(b, b.bridge.Export(b.mesh))
	c, other := b.kit.Connect(b, url, "stage"), b.kit.Connect(b, url, "other")
	b.checkClient(c)
	asked := s.calls.Load()
	b.mesh.Withdraw(b, d)
	for range 2 {
		_, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": "x"})})
		b.checkFailure("a withdrawn Thing", err, interact.Withdrawn)
		b.checkClient(other)
	}
	if s.calls.Load() != asked {
		b.Error("a withdrawn Thing is called")
	}
	b.exposeStage("stage") // published again
	b.checkClient(b.kit.Connect(b, url, "stage"))
}

func (b *fixture) exportCloses() {
	s, _ := b.exposeStage("stage")
	h := b.bridge.Export(b.mesh)
	another := b.bridge.Export(b.mesh)
	c := b.kit.Connect(b, Serve(b, h), "stage")
	other := b.kit.Connect(b, Serve(b, another), "stage")
	ended := b.startCall(b.ctx, c, s, "w", nil)
	h.Close()
	if err := b.waitEnd("Close", ended); err == nil {
		b.Error("the call has an output after Close")
	}
	b.waitFor("the end of the run behind it", s.run("w").ended)
	if _, err := c.Call(b.ctx, Call{Name: Slow, Input: encoded(fields{"word": "late"})}); err == nil {
		b.Error("a closed handler starts a run")
	}
	b.checkClient(other)
}

func (b *fixture) exportRefuses() {
	s, _ := b.exposeStage("stage")
	c := b.connect("stage")
	_, err := c.Call(b.ctx, Call{Name: secret})
	b.checkFailure("a refused action", err, interact.Forbidden, "rule 7 forbids it", policyHint)
	if n := s.calls.Load(); n != 0 {
		b.Errorf("the Thing was called %d times", n)
	}
	b.checkClient(c)
}

func (b *fixture) exportConcurrent() {
	s, _ := b.exposeStage("stage")
	url := Serve(b, b.bridge.Export(b.mesh))
	var all sync.WaitGroup
	for range 3 {
		c := b.kit.Connect(b, url, "stage")
		for i := range 8 {
			all.Go(func() { b.oneOfMany(c, i, true) })
		}
	}
	for range 8 { // the Thing changes during the calls
		b.mesh.Publish(b, stageTD("stage", Extra), &stage{Script: s})
		b.mesh.Publish(b, stageTD("stage"), &stage{Script: s})
	}
	all.Wait()
}

// oneOfMany makes calls concurrently with other clients. Whole: outputs contain all partial outputs.
func (b *fixture) oneOfMany(c Client, i int, whole bool) {
	text := interact.NewID()
	if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": text})}); err != nil || got != text {
		b.Errorf("%s of %s gives %q, %v", Echo, text, got, err)
	}
	switch i % 4 {
	case 0:
		_, err := c.Call(b.ctx, Call{Name: Fail})
		b.checkFailure("what fails", err, interact.AgentFailed, Trouble)
	case 1:
		if got, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": 100 << 10})}); err != nil || len(got) != 100<<10 {
			b.Errorf("%s gives %d bytes, %v", Big, len(got), err)
		}
	case 2:
		got, err := c.Call(b.ctx, Call{Name: Count, Input: encoded(fields{"n": 5}), OnProgress: func(string) {}})
		if err == nil && whole {
			err = inOrder(got, 5)
		}
		if err != nil {
			b.Errorf("%s: %v", Count, err)
		}
	}
}
