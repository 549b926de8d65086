package bridgetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A bed is where one rule is checked: a mesh, and a bridge.
type bed struct {
	testing.TB
	kit    *Kit
	ctx    context.Context // ends when patience does
	bridge bridge.Bridge
	mesh   *Mesh

	forbidden string // an action that the policy refuses, beside what is secret; it is set before anything is asked
}

// policy refuses what is secret or forbidden.
func (b *bed) policy(t interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if m.Name == secret || m.Name == b.forbidden && m.Name != "" {
			return interact.Fail(interact.Errorf(interact.Forbidden, askWhom, "rule 7 says no"))
		}
		return t.Do(ctx, m)
	})
}

const askWhom = "ask the operator"

// joined imports an agent of the kit, and offers it to the mesh.
func (b *bed) joined(name string) (*Foreign, *Script, *bridge.Agent, *td.Description) {
	b.Helper()
	s := newScript()
	f := b.kit.Start(b, s)
	b.Cleanup(s.end)
	a, d := b.joins(f, name)
	b.Cleanup(s.end) // before Close, too: a bridge that does not end a run would wait for it
	return f, s, a, d
}

func (b *bed) joins(f *Foreign, name string) (*bridge.Agent, *td.Description) {
	b.Helper()
	as := f.As
	as.Name, as.Capabilities = name, append(slices.Clone(as.Capabilities), "urn:example:tea")
	a, err := b.bridge.Import(b.ctx, f.Target, as)
	if err != nil {
		b.Fatalf("import of %s: %v", f.Target, err)
	}
	a.Close = sync.OnceFunc(a.Close)
	b.Cleanup(a.Close)
	return a, b.mesh.Offer(b, a.TD, a.Thing)
}

// staged offers a thing that does the acts.
func (b *bed) staged(id string) (*Script, *td.Description) {
	b.Helper()
	s := newScript()
	b.Cleanup(s.end)
	return s, b.mesh.Offer(b, stageTD(id), &stage{Script: s})
}

// serves exports the mesh, and returns a client of a thing.
func (b *bed) serves(name string) Client {
	b.Helper()
	return b.kit.Connect(b, Serve(b, b.bridge.Export(b.mesh)), name)
}

// message asks for an act.
func message(d *td.Description, act string, input any) *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: act, ID: interact.NewID(), Data: encoded(input)}
}

func encoded(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is the suite's own
	}
	return raw
}

type fields = map[string]any

// ask asks for an act, and returns what it gives as text.
func (b *bed) ask(d *td.Description, act string, input any) (string, error) {
	r, err := interact.Ask(b.ctx, b.mesh, message(d, act, input))
	if err != nil {
		return "", err
	}
	return text(r), nil
}

// text is the data of a message in words.
func text(m *interact.Message) string {
	var words string
	if td.IsJSON(m.Media()) && json.Unmarshal(m.Data, &words) == nil {
		return words
	}
	return string(m.Data)
}

// works checks that an agent answers.
func (b *bed) works(d *td.Description) {
	b.Helper()
	if got, err := b.ask(d, Echo, fields{"text": "hé <&>"}); err != nil || got != "hé <&>" {
		b.Errorf("%s gives %q, %v, want what was said", Echo, got, err)
	}
}

// answers checks that a client is answered.
func (b *bed) answers(c Client) {
	b.Helper()
	if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": "hé <&>"})}); err != nil || got != "hé <&>" {
		b.Errorf("%s gives %q, %v, want what was said", Echo, got, err)
	}
}

// told checks an error that a consumer gets: its code is one of codes, or any if there are none, and it says what happened and
// what to do.
func (b *bed) told(what string, err error, codes ...interact.Code) {
	b.Helper()
	e := interact.AsError(err)
	switch {
	case e == nil:
		b.Errorf("%s: no error", what)
	case len(codes) > 0 && !slices.Contains(codes, e.Code) || e.Code == interact.Internal:
		b.Errorf("%s: the error is %v %q, want %v", what, e.Code, e, codes)
	case e.Code != interact.Cancelled && (e.Hint == "" || e.Error() == ""):
		b.Errorf("%s: %v %q has the hint %q, want one", what, e.Code, e, e.Hint)
	case strings.Contains(e.Error(), "\x1b"):
		b.Errorf("%s: %q moves the cursor", what, e)
	}
}

// failed checks what a client was told: the kind that its protocol has for code, with all words.
func (b *bed) failed(what string, err error, code interact.Code, words ...string) {
	b.Helper()
	var f *Failure
	if !errors.As(err, &f) {
		b.Errorf("%s: got %v, want a failure", what, err)
		return
	}
	if want, ok := b.kit.Kinds[code]; !ok || f.Kind != want {
		b.Errorf("%s: the failure is of kind %q (%s), want %q", what, f.Kind, interact.Clip(f.Text, 500), want)
	}
	for _, word := range words {
		if !strings.Contains(f.Text, word) {
			b.Errorf("%s: the client is told %q, want %q in it", what, interact.Clip(f.Text, 500), word)
		}
	}
}

// waits waits for something that another does.
func (b *bed) waits(what string, c <-chan struct{}) {
	b.Helper()
	select {
	case <-c:
	case <-b.ctx.Done():
		b.Errorf("waited in vain: %s", what)
	}
}

// inOrder reports which of n steps is not in a text after those before it.
func inOrder(text string, n int) error {
	at := 0
	for i := range n {
		k := strings.Index(text[at:], step(i))
		if k < 0 {
			return fmt.Errorf("%s is not where it belongs in %s", step(i), interact.Clip(text, 500))
		}
		at += k + len(step(i))
	}
	return nil
}
