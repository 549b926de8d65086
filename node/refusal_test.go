package node

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// Each call of an agent whose host refuses the caller returns that refusal, over each transport. The host is refused, not unreachable, and its
// failure is not reported to peers.
func TestRefusalIsReported(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]string{"TCP": "/ip4/127.0.0.1/tcp/0", "QUIC": "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quiet()
			o.Listen = []string{listen}
			caller := start(t, o)
			o.Policy = denying(caller.DID())
			host := start(t, o)
			ref := publish(t, host, toolAt("Echo", "", newAgent(t).url))
			d := host.mesh.index.Find(ref).Description
			if _, err := caller.mesh.directory.Add(d); err != nil { // a third node told of it
				t.Fatal(err)
			}
			for range 3 {
				if e := wantCode(t, ask(t, caller, ref), interact.Forbidden); !e.Remote {
					t.Errorf("%v: want it to be said by the far end", e)
				}
			}
			wantCode(t, caller.Client().Connect(t.Context(), host.Addrs()[0]), interact.Forbidden)
			if p := caller.mesh.monitor.Presence(d); p.State != reachability.Refused {
				t.Errorf("the agent is %s", p.State)
			}
			a, err := caller.Client().Agent(t.Context(), ref)
			if err != nil || a.Agent.State != api.StateRefused {
				t.Errorf("show says %+v, %v", a, err)
			}
			list, err := caller.Client().Find(t.Context(), td.Query{}, time.Second)
			if err != nil || len(list.Items) != 1 || list.Items[0].State != api.StateRefused || list.Coverage.Refused != 1 {
				t.Errorf("find says %+v, %v", list, err)
			}
			for _, question := range []route.Request{{Message: "echo", All: true}, {Message: "echo", Filter: td.Query{Name: "echo"}}} {
				got, err := caller.router.Route(did.AsProcess(t.Context()), question)
				if err != nil || got.Agent != nil || len(got.Candidates) > 0 || !strings.Contains(got.Reason, "rejects this node") {
					t.Errorf("the router says %+v, %v", got, err)
				}
			}
			if caller.mesh.directory.IsDown(host.DID()) {
				t.Error("a host that refuses counts as one that failed")
			}
			if e := wantCode(t, host.Client().Connect(t.Context(), caller.Addrs()[0]), interact.Forbidden); e.Remote {
				t.Errorf("%v: it is the host's own policy", e)
			}
		})
	}
}

// A node that no rule of its own permits publishes, finds and calls its own agents.
func TestRulesWithoutTheNodeItself(t *testing.T) {
	t.Parallel()
	caller := start(t, quiet())
	for name, allow := range map[string][]access.Rule{"empty": nil, "with another node": {allowed(caller.DID())}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quiet()
			o.Policy = withRules(access.UntrustedNone, allow...)
			host := start(t, o)
			ref := publish(t, host, toolAt("Echo", "", newAgent(t).url))
			if err := ask(t, host, ref); err != nil {
				t.Error(err)
			}
			if list := found(t, host); len(list) != 1 || list[0].State != api.StateReachable {
				t.Errorf("found %+v", list)
			}
			if len(allow) > 0 {
				connect(t, caller, host)
				knows(t, caller, ref)
				if err := ask(t, caller, ref); err != nil {
					t.Errorf("a node on the list: %v", err)
				}
			}
		})
	}
}

// TestOneOfTwoHostsRefuses: a thing that another host offers, too, is not refused.
func TestOneOfTwoHostsRefuses(t *testing.T) {
	t.Parallel()
	refused, other := didtest.NewKey().DID(), didtest.NewKey().DID()
	o := quiet()
	o.Policy = denying(refused)
	n := start(t, o)
	for want, hosts := range map[reachability.State][]td.Host{
		reachability.Refused: {{Node: refused}},
		reachability.Unknown: {{Node: refused}, {Node: other}},
	} {
		d := &td.Description{Thing: &td.Thing{ID: "urn:x:1"}, Record: &td.Record{Owner: other, Thing: "urn:x:1", Issued: time.Now(), Hosts: hosts}}
		if p := n.mesh.monitor.Presence(d); p.State != want {
			t.Errorf("with %d hosts it is %s, want %s", len(hosts), p.State, want)
		}
	}
}

// The record of a denied owner enters the directory by no carrier, although a node in between has it and forwards it.
func TestDeniedOwnersEnterByNoCarrier(t *testing.T) {
	t.Parallel()
	owner, between, open := start(t, quiet()), start(t, quiet()), start(t, quiet())
	o := quiet()
	o.Policy = denying(owner.DID())
	closed := start(t, o)
	for _, n := range []*running{owner, open, closed} {
		connect(t, n, between)
	}
	agent := newAgent(t).url
	ref := publish(t, owner, toolAt("Echo", "urn:x:denied", agent)) // by gossip
	other := publish(t, between, toolAt("Echo", "urn:x:other", agent))
	knows(t, open, ref)
	knows(t, between, ref)
	knows(t, closed, other)
	signed := between.mesh.directory.Signed(td.Key(owner.DID(), "urn:x:denied"))
	if signed == nil {
		t.Fatal("the node in between does not give the record")
	}
	for name, carry := range map[string]func() error{
		"gossip": func() error {
			closed.mesh.directory.Enqueue(signed)
			knows(t, closed, publish(t, between, toolAt("Echo", "urn:x:later", agent)))
			return nil
		},
		"reconciliation": func() error {
			closed.mesh.directory.Ingest(t.Context(), signed)
			_, err := closed.mesh.sync.Sync(t.Context(), between.network.ID())
			return err
		},
		"the DHT, by its reference": func() error {
			if err := ask(t, open, ref); err != nil {
				return err
			}
			_, err := closed.mesh.directory.Get(did.AsProcess(t.Context()), ref)
			wantCode(t, err, interact.NotFound)
			return nil
		},
		"a search": func() error {
			for _, a := range found(t, closed) {
				if a.ID == "urn:x:denied" {
					t.Error("it is found")
				}
			}
			return nil
		},
		"the trust protocol": func() error {
			if err := closed.mesh.directory.IngestRestricted(t.Context(), signed, owner.DID()); err == nil {
				t.Error("it is taken")
			}
			return nil
		},
	} {
		if err := carry(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if has(closed, ref) || !has(closed, other) {
			t.Errorf("%s: the denied record is there: %t", name, has(closed, ref))
		}
	}
}
