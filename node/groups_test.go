package node

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// grouped are the options of a node with a data directory, at which untrusted nodes find and call nothing without a rule.
func grouped(t *testing.T) Options {
	o := quiet()
	o.Dir, o.Policy = t.TempDir(), policy.Rules{}
	return o
}

// A group has nodes without a common organization. Its members find and call an agent that is for the group; others do not, and cannot tell whether
// it exists. The subscription of a member ends when it is removed, and it calls nothing more. Events reach the members only.
func TestGroupOfNodes(t *testing.T) {
	t.Parallel()
	ada, ben, eve := start(t, grouped(t)), start(t, grouped(t)), start(t, grouped(t))
	for _, n := range []*running{ben, eve} {
		connect(t, n, ada)
	}
	g, err := ada.Client().CreateGroup(t.Context(), api.GroupCreate{Name: "claims"})
	if err != nil {
		t.Fatal(err)
	}
	join := func(n *running) {
		t.Helper()
		i, err := ada.Client().InviteToGroup(t.Context(), "claims", api.GroupInvite{For: n.DID()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Client().JoinGroup(t.Context(), api.GroupJoin{Invitation: i.Invitation}); err != nil {
			t.Fatal(err)
		}
	}
	join(ben)
	raw := []byte(strings.Replace(string(tool("Payout", "urn:x:payout")), `"actions":{`, `"events":{"paid":{"data":{"type":"number"},"forms":[{"href":"http://127.0.0.1:1/paid","op":["subscribeevent"]}]}},"actions":{`, 1))
	p, err := ada.Offer(publication.WithCallers(t.Context(), []string{"group:claims"}), raw, payouts())
	if err != nil {
		t.Fatal(err)
	}
	if d, err := ada.view.Get(did.AsProcess(t.Context()), p.Ref); err != nil || d.Visibility != td.Named {
		t.Fatalf("%+v, %v", d, err)
	}
	knows(t, ben, p.Ref)
	if err := ask(t, ben, p.Ref); err != nil {
		t.Errorf("a member calls: %v", err)
	}
	if has(eve, p.Ref) {
		t.Error("a node outside of the group knows it")
	}
	none := ask(t, eve, "urn:x:nothing@"+ada.DID().Multibase())
	if err := ask(t, eve, p.Ref); codeOf(err) != codeOf(none) {
		t.Errorf("a node outside of the group calls: %v; what does not exist: %v", err, none)
	}

	events := make(chan api.GroupEvent, 9)
	ended := make(chan error, 1)
	watch, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		var last error
		for e, err := range ben.Client().WatchGroup(watch, g.ID) {
			if last = err; err == nil {
				events <- e
			}
		}
		ended <- last
	}()
	until(t, "an event arrives", func() bool {
		d, err := ada.Client().SendToGroup(t.Context(), "claims", "claim", json.RawMessage(`{"claim":4711}`))
		if err != nil || d.Delivered != 1 {
			t.Errorf("sent: %+v, %v", d, err)
		}
		return len(events) > 0
	})
	if e := <-events; e.Member != ada.DID() || e.Type != "claim" || string(e.Data) != `{"claim":4711}` {
		t.Errorf("%+v", e)
	}
	if _, err := eve.Client().Group(t.Context(), g.ID); codeOf(err) != interact.NotFound {
		t.Errorf("the group at another node: %v", err)
	}

	paid := make(chan error, 1)
	first := make(chan bool, 1)
	go func() {
		var last error
		for _, err := range asConsumer(ben).Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Thing: p.Ref, Name: "paid"}) {
			if last = err; err == nil && len(first) == 0 {
				first <- true
			}
		}
		paid <- last
	}()
	<-first
	if _, err := ada.Client().ChangeGroup(t.Context(), "claims", api.GroupChange{Kind: api.GroupRemove, Member: ben.DID()}); err != nil {
		t.Fatal(err)
	}
	for what, ch := range map[string]chan error{"the subscription": paid, "the stream of events": ended} {
		select {
		case err := <-ch:
			if err == nil {
				t.Errorf("%s ended without an error", what)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s goes on", what)
		}
	}
	if err := ask(t, ben, p.Ref); codeOf(err) != codeOf(none) {
		t.Errorf("a former member calls: %v", err)
	}
	if d, err := ben.Client().Group(t.Context(), "claims"); err != nil || d.State != api.GroupRemoved {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := ada.Client().ChangeGroup(t.Context(), "claims", api.GroupChange{Kind: api.GroupDissolve}); err != nil || d.State != api.GroupDissolved {
		t.Errorf("%+v, %v", d, err)
	}
	log, err := ada.Client().GroupLog(t.Context(), "claims")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := chain.Read(log, time.Now()); err != nil || c.Group() != g.ID || !c.State().Dissolved {
		t.Errorf("the log: %v", err)
	}
}

// payouts is an agent that answers, and pays all the time.
func payouts() interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			if m.Type != interact.SubscribeEvent {
				yield(&interact.Message{Type: m.Type, Data: m.Data, ContentType: m.ContentType}, nil)
				return
			}
			for backoff.Sleep(ctx, 10*time.Millisecond) == nil {
				if !yield(&interact.Message{Type: interact.Event, Name: m.Name, Data: []byte("1"), ContentType: interact.JSON}, nil) {
					return
				}
			}
		}
	})
}
