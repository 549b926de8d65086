package node

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	libp2p "github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// A list has the current states of tasks: an ended task is final without a query, and a task at a failed host is unknown, with its last state.
func TestListOfTasks(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	consumer, host := nodes[0], nodes[1]
	enough := make(chan struct{})
	thing, _, err := host.mesh.publisher.Attach(t.Context(), []byte(sleepDraft), sleeper(enough))
	if err != nil {
		t.Fatal(err)
	}
	knows(t, consumer, thing)
	begin := func() (id string) {
		t.Helper()
		for r, err := range asConsumer(consumer).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: thing, Name: "sleep", Detach: true}) {
			if err != nil {
				t.Fatal(err)
			}
			return r.ActionID
		}
		return ""
	}
	tasks := func() map[string]api.Task {
		t.Helper()
		list, err := consumer.Client().Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]api.Task{}
		for _, one := range list.Items {
			all[one.ID] = one
		}
		return all
	}
	first := begin()
	until(t, "it runs", func() bool { return tasks()[first].Status == "running" })
	began := time.Now()
	close(enough)
	until(t, "it is said to be done", func() bool { return tasks()[first].Status == "completed" })
	if done := tasks()[first]; done.Ended.IsZero() || done.Ended.Before(began) || done.Reason != "" || !done.LastSeen.IsZero() || done.Output != nil {
		t.Errorf("of what is done the list says %+v", done)
	}

	thing, _, err = host.mesh.publisher.Attach(t.Context(), []byte(strings.ReplaceAll(sleepDraft, "Sleeper", "Dreamer")), sleeper(make(chan struct{})))
	if err != nil {
		t.Fatal(err)
	}
	knows(t, consumer, thing)
	second := begin()
	until(t, "it runs", func() bool { return tasks()[second].Status == "running" })
	if err := host.stop(); err != nil {
		t.Fatal(err)
	}
	lost := tasks()[second]
	if lost.Status == "running" || lost.Status == api.UnknownTask && (lost.LastStatus != "running" || lost.LastSeen.IsZero() || lost.Reason == "") {
		t.Errorf("of what ran at a host that is gone the list says %+v", lost)
	}
	if lost.Status != api.UnknownTask {
		t.Errorf("the host has ended and said %s of it", lost.Status)
	}
	if again := tasks()[first]; again.Status != "completed" {
		t.Errorf("what is done is now %+v", again)
	}
	known, err := consumer.Client().KnownTasks(t.Context())
	if err != nil || len(known.Items) != 2 || known.Items[0].Status != "running" || known.Items[0].LastSeen.IsZero() {
		t.Errorf("known are %+v, %v", known, err)
	}
	b, err := json.Marshal(lost)
	if err != nil || !strings.Contains(string(b), `"status":"unknown","last_status":"running","last_seen":"2`) {
		t.Errorf("%s, %v", b, err)
	}
}

// A node that loses its membership or a role loses its tasks, and its connection if it may not connect any more. A node whose membership
// cannot be decided yet stays connected.
func TestLostStandingEndsTasksAndConnections(t *testing.T) {
	t.Parallel()
	consumer := start(t, quiet())
	standing := func(change func(*did.Principal)) *did.Principal {
		p := did.NodePrincipal(consumer.DID(), "")
		p.Relation, p.Org, p.Roles = did.Own, "did:web:acme.example", []string{"a", "b"}
		change(p)
		return p
	}
	member := standing(func(*did.Principal) {})
	for name, c := range map[string]struct {
		after             *did.Principal
		cancels, connects bool
	}{
		"nothing":     {standing(func(p *did.Principal) { p.Roles = []string{"b", "a", "c"} }), false, true},
		"a role":      {standing(func(p *did.Principal) { p.Roles = []string{"b"} }), true, true},
		"undecided":   {standing(func(p *did.Principal) { p.Relation, p.Org, p.Roles, p.Pending = did.Untrusted, "", nil, "wait" }), true, true},
		"a member":    {standing(func(p *did.Principal) { p.Relation, p.Org, p.Roles = did.Untrusted, "", nil }), true, false},
		"a partner":   {standing(func(p *did.Principal) { p.Relation, p.Org = did.Partner, "did:web:globex.example" }), true, false},
		"all, barred": {standing(func(p *did.Principal) { p.Relation, p.Barred = did.Untrusted, "revoked" }), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Pointer[did.Principal]
			now.Store(member)
			o := quiet()
			o.Policy.Connect = access.ConnectMembers
			o.Policy.Principal = func(did.DID) *did.Principal { return now.Load() }
			host := start(t, o)
			connect(t, consumer, host)
			ended := make(chan struct{})
			agent := interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				return func(func(*interact.Message, error) bool) {
					<-ctx.Done()
					close(ended)
				}
			})
			thing, _, err := host.mesh.publisher.Attach(t.Context(), []byte(strings.ReplaceAll(sleepDraft, "Sleeper", "For "+strings.ReplaceAll(name, ",", ""))), agent)
			if err != nil {
				t.Fatal(err)
			}
			knows(t, consumer, thing)
			for _, err := range asConsumer(consumer).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: thing, Name: "sleep", Detach: true}) {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			now.Store(c.after)
			host.standingChanged(consumer.DID(), member, c.after)
			if c.cancels {
				<-ended
			}
			is := func() bool { return host.network.Network().Connectedness(consumer.network.ID()) == libp2p.Connected }
			if c.connects && !is() {
				t.Error("it was disconnected")
			}
			if !c.connects {
				until(t, "it is disconnected", func() bool { return !is() })
			}
			if !c.cancels {
				select {
				case <-ended:
					t.Error("its task was cancelled")
				default:
				}
				host.servient.CancelOf(consumer.DID()) // Close would wait for it
				<-ended
			}
		})
	}
}
