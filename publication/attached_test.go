package publication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// says is an agent whose actions return a fixed text.
func says(text string) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		r := m.Reply(interact.ActionStatus, interact.JSON, fmt.Appendf(nil, "%q", text))
		r.Status = interact.StatusCompleted
		return r, nil
	})
}

const echoDraft = `{"title": "Echo", "id": "urn:x:echo", "actions": {"echo": {"input": {"type": "string"}, "output": {"type": "string"}}}}`

// attach attaches an agent that answers with text.
func (f *fixture) attach(text string) (detach func(final bool)) {
	f.t.Helper()
	id, detach, err := f.Attach(f.t.Context(), []byte(echoDraft), says(text))
	if err != nil || id != "urn:x:echo" {
		f.t.Errorf("attach: %s, %v", id, err)
	}
	return detach
}

// wantAnswer checks the answer of the agent; empty means that its Thing is withdrawn.
func (f *fixture) wantAnswer(when, want string) {
	f.t.Helper()
	got, code := "", interact.Code(0)
	agent, err := f.Locate(f.t.Context(), "urn:x:echo")
	if err == nil {
		var r *interact.Message
		if r, err = interact.Call(f.t.Context(), agent, &interact.Message{Type: interact.InvokeAction, Thing: "urn:x:echo", Name: "echo"}); err == nil {
			got = string(r.Data)
		}
	}
	if code = codeOf(err); want == "" && code != interact.Withdrawn || want != "" && got != `"`+want+`"` {
		f.t.Errorf("%s: got %s, %v; want %q", when, got, err, want)
	}
}

func (f *fixture) countAttached() int {
	f.attached.mu.Lock()
	defer f.attached.mu.Unlock()
	return len(f.attached.agents)
}

// A failed Attach replaces no connection for good, and does not keep the Thing of a disconnected agent published.
func TestFailedAttachHasNoEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		detaches string // when the first agent detaches: "before" the second Attach, "during" it or "never"
		want     string // the answer half a minute later; empty if the Thing is withdrawn
	}{
		"the first stays":           {"never", "first"},
		"the first is disconnected": {"before", ""},
		"the first detaches during": {"during", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				detach := f.attach("first")
				if c.detaches == "before" {
					detach(false)
				}
				time.Sleep(Grace / 2)
				f.dir.denyBy(func() error {
					if c.detaches == "during" {
						detach(false)
					}
					return errors.New("the directory is full")
				})
				if _, _, err := f.Attach(t.Context(), []byte(echoDraft), says("second")); err == nil {
					t.Error("it was accepted")
				}
				f.dir.denyBy(nil)
				time.Sleep(2 * Grace)
				f.wantAnswer("at last", c.want)
				if got := f.countAttached(); got != min(len(c.want), 1) {
					t.Errorf("%d agents are attached", got)
				}
			})
		})
	}
}

// An agent that attaches again at the end of the grace stays published, and so does a Thing that replaced it.
func TestADetachedAgentIsWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for range 3 { // Each disconnection has its own grace.
			f.attach("short connection")(false)
			time.Sleep(Grace * 2 / 3)
		}
		detach := f.attach("first")
		time.Sleep(2 * Grace)
		f.wantAnswer("after short disconnections", "first")

		began, goOn := f.disk.hold() // a tombstone, and the mark of the next agent
		detach(true)
		<-began // it is being withdrawn
		again := make(chan func(bool))
		go func() { again <- f.attach("second") }()
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := f.Attach(ended, []byte(echoDraft), says("x")); codeOf(err) != interact.Timeout {
			t.Errorf("while it is withdrawn: %v", err)
		}
		close(goOn)
		detach = <-again
		time.Sleep(2 * Grace)
		f.wantAnswer("after it attached again at the last moment", "second")

		f.publish("Echo", "urn:x:echo")
		detach(true)
		time.Sleep(2 * Grace)
		if !f.Offers("urn:x:echo") {
			t.Error("the Thing that was published in its place was withdrawn")
		}
		if got := f.countAttached(); got != 0 {
			t.Errorf("%d agents are attached", got)
		}
	})
}

func TestInvalidDraftsAreNotAttached(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, raw := range []string{`x`, `[]`, `{}`, `{"title": "x", "id": "no uri"}`, `{"title": "x", "actions": {"a": {"input": {"type": "float"}}}}`,
		`{"title": "x", "id": "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"}`} {
		if id, _, err := f.Attach(t.Context(), []byte(raw), says("x")); err == nil || interact.AsError(err).Hint == "" && interact.AsError(err).Next == nil {
			t.Errorf("%s: got %q, %v", raw, id, err)
		}
	}
	if got := f.countAttached(); got != 0 {
		t.Errorf("%d agents are attached", got)
	}
}

// The record of an attached agent outlives the node and the agent. So the next start withdraws the Thing, unless the agent attaches again.
func TestAnAgentThatDoesNotAttachAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for _, id := range []string{"urn:x:gone", "urn:x:echo"} {
			if _, _, err := f.Attach(t.Context(), []byte(strings.Replace(echoDraft, "urn:x:echo", id, 1)), says(id)); err != nil {
				t.Fatal(err)
			}
		}
		f = f.restart(time.Now())
		if len(f.orphans.things()) != 2 {
			t.Errorf("the orphans are %v, want both", f.orphans.things())
		}
		f.attach("again")
		if err := f.endOrphans(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.wantAnswer("attached again", "again")
		if gone := f.Get("urn:x:gone"); gone == nil || gone.Withdrawn.IsZero() {
			t.Errorf("the other is %+v, want it withdrawn", gone)
		}
		if due := f.schedule.due(time.Now(), true); !slices.Contains(due, attempt{thing: "urn:x:gone", gossip: true, dht: true}) {
			t.Errorf("due is %+v, want the announcement of the tombstone", due)
		}
	})
}
