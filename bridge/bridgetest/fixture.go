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

// A fixture is the environment of one rule: a mesh and a bridge.
type fixture struct {
	testing.TB
	kit    *Kit
	ctx    context.Context // ends with the time limit of the rule
	bridge bridge.Bridge
	mesh   *Mesh

	forbidden string // another action that the policy refuses; set before the first call
}

// policy refuses the actions secret and forbidden.
func (b *fixture) policy(t interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if m.Name == secret || m.Name == b.forbidden && m.Name != "" {
			return interact.Fail(interact.Errorf(interact.Forbidden, policyHint, "rule 7 forbids it"))
		}
		return t.Do(ctx, m)
	})
}

const policyHint = "ask the operator"

// importAgent imports an agent of the kit into the mesh.
func (b *fixture) importAgent(name string) (*Foreign, *Script, *bridge.Agent, *td.Description) {
	b.Helper()
	s := newScript()
	f := b.kit.Start(b, s)
	b.Cleanup(s.end)
	a, d := b.importFrom(f, name)
	b.Cleanup(s.end) // also before Close, which would wait for a run that does not end
	return f, s, a, d
}

func (b *fixture) importFrom(f *Foreign, name string) (*bridge.Agent, *td.Description) {
	b.Helper()
	as := f.As
	as.Name, as.Capabilities = name, append(slices.Clone(as.Capabilities), "urn:example:tea")
	a, err := b.bridge.Import(b.ctx, f.Target, as)
	if err != nil {
		b.Fatalf("import of %s: %v", f.Target, err)
	}
	a.Close = sync.OnceFunc(a.Close)
	b.Cleanup(a.Close)
	return a, b.mesh.Publish(b, a.TD, a.Thing)
}

// exposeStage publishes a Thing of the suite.
func (b *fixture) exposeStage(id string) (*Script, *td.Description) {
	b.Helper()
	s := newScript()
	b.Cleanup(s.end)
	return s, b.mesh.Publish(b, stageTD(id), &stage{Script: s})
}

// connect exports the mesh, and returns a client of a Thing.
func (b *fixture) connect(name string) Client {
	b.Helper()
	return b.kit.Connect(b, Serve(b, b.bridge.Export(b.mesh)), name)
}

// message invokes an act.
func message(d *td.Description, act string, input any) *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: act, ID: interact.NewID(), Data: encoded(input)}
}

func encoded(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // the suite's own value
	}
	return raw
}

type fields = map[string]any

// invoke invokes an act, and returns its output as text.
func (b *fixture) invoke(d *td.Description, act string, input any) (string, error) {
	r, err := interact.Call(b.ctx, b.mesh, message(d, act, input))
	if err != nil {
		return "", err
	}
	return text(r), nil
}

// text returns the data of a message as text.
func text(m *interact.Message) string {
	var words string
	if td.IsJSON(m.Media()) && json.Unmarshal(m.Data, &words) == nil {
		return words
	}
	return string(m.Data)
}

// checkAgent checks that an agent answers.
func (b *fixture) checkAgent(d *td.Description) {
	b.Helper()
	if got, err := b.invoke(d, Echo, fields{"text": "hé <&>"}); err != nil || got != "hé <&>" {
		b.Errorf("%s returns %q, %v, want its input", Echo, got, err)
	}
}

// checkClient checks that a client gets an answer.
func (b *fixture) checkClient(c Client) {
	b.Helper()
	if got, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": "hé <&>"})}); err != nil || got != "hé <&>" {
		b.Errorf("%s returns %q, %v, want its input", Echo, got, err)
	}
}

// checkError checks an error of a consumer: its code is one of codes, or any if there are none, and it has a text and a hint.
func (b *fixture) checkError(what string, err error, codes ...interact.Code) {
	b.Helper()
	e := interact.AsError(err)
	switch {
	case e == nil:
		b.Errorf("%s: no error", what)
	case len(codes) > 0 && !slices.Contains(codes, e.Code) || e.Code == interact.Internal:
		b.Errorf("%s: the error is %v %q, want %v", what, e.Code, e, codes)
	case e.Code != interact.Cancelled && (e.Hint == "" && e.Next == nil || e.Error() == ""):
		b.Errorf("%s: %v %q has the hint %q, want one", what, e.Code, e, e.Hint)
	case strings.Contains(e.Error(), "\x1b"):
		b.Errorf("%s: %q contains control codes", what, e)
	}
}

// checkFailure checks the failure of a client: the kind of the protocol for code, and the words in its text.
func (b *fixture) checkFailure(what string, err error, code interact.Code, words ...string) {
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
			b.Errorf("%s: the failure says %q, want %q in it", what, interact.Clip(f.Text, 500), word)
		}
	}
}

// waitFor waits for an event.
func (b *fixture) waitFor(what string, c <-chan struct{}) {
	b.Helper()
	select {
	case <-c:
	case <-b.ctx.Done():
		b.Errorf("timed out waiting for %s", what)
	}
}

// inOrder returns an error if one of n steps is missing or out of order in a text.
func inOrder(text string, n int) error {
	at := 0
	for i := range n {
		k := strings.Index(text[at:], step(i))
		if k < 0 {
			return fmt.Errorf("%s is missing or out of order in %s", step(i), interact.Clip(text, 500))
		}
		at += k + len(step(i))
	}
	return nil
}
