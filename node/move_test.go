package node

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// moveOf moves a thing from one node to another.
func moveOf(t testing.TB, from *running, ref, to, successor string) {
	t.Helper()
	meshed(t, from)
	p, err := from.Client().Move(t.Context(), ref, to)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Withdrawn || p.Ref != ref || p.Successor != successor || p.GossipPeers == 0 {
		t.Errorf("the move of %s gives %+v, want %q as successor", ref, p, successor)
	}
}

// TestAgentMovesToAnotherHost: a consumer goes on calling by the name that it has used.
func TestAgentMovesToAnotherHost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, id string }{{"an id of its own", "urn:x:echo"}, {"an id that carries its owner", ""}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodes := connected(t, 3)
			a, b, c := nodes[0], nodes[1], nodes[2]
			ref := publish(t, a, toolAt("Echo", tt.id, newAgent(t).url))
			knows(t, c, ref)
			knows(t, b, ref)
			if err := ask(t, c, ref); err != nil {
				t.Fatal(err)
			}

			moveOf(t, a, ref, string(b.DID()), "")
			gone := func() bool { _, err := c.view.Get(t.Context(), ref); return codeOf(err) == interact.Withdrawn }
			until(t, "the consumer's node receives the tombstone", gone)
			if e := wantCode(t, ask(t, c, ref), interact.Withdrawn); !strings.Contains(e.Error(), string(b.DID())) {
				t.Errorf("%q does not say where it has gone", e)
			}
			if list := found(t, c); len(list) != 0 {
				t.Errorf("found %+v, want nothing: it is not offered", list)
			}

			there := publish(t, b, toolAt("Echo", tt.id, newAgent(t).url))
			for _, n := range []*running{a, b, c} {
				knows(t, n, there)
				for _, name := range []string{ref, "echo"} {
					if err := ask(t, n, name); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			detail, err := c.Client().Agent(t.Context(), ref)
			if err != nil || detail.Agent.Ref != there || detail.MovedFrom != ref {
				t.Errorf("got %+v, %v; want %s, moved from %s", detail, err, there, ref)
			}
			if raw, err := c.Client().Thing(t.Context(), ref); err != nil || !strings.Contains(string(raw), string(b.DID())) {
				t.Errorf("GET /things gives %s, %v; want the TD that the new owner signed", raw, err)
			}
			if list := found(t, c); len(list) != 1 || list[0].Ref != there {
				t.Errorf("found %+v, want the one at the new host only", list)
			}
			err = func() error { _, err := a.Client().Unpublish(t.Context(), ref); return err }()
			wantCode(t, err, interact.Forbidden)
		})
	}
}

// TestMoveByName: to a thing that is there already; and it is followed by a node that comes later.
func TestMoveByName(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	a, b, c := nodes[0], nodes[1], nodes[2]
	ref := publish(t, a, toolAt("Echo", "urn:x:echo", newAgent(t).url))
	there := publish(t, b, toolAt("Echo", "urn:x:echo", newAgent(t).url))
	other := publish(t, b, toolAt("Other", "urn:x:other", newAgent(t).url))
	for _, r := range []string{there, other} {
		knows(t, a, r)
	}
	for to, code := range map[string]interact.Code{other: interact.Invalid, string(a.DID()): interact.Invalid, "nobody": interact.NotFound,
		"did:web:example.com": interact.Invalid} {
		_, err := a.Client().Move(t.Context(), ref, to)
		wantCode(t, err, code)
	}
	_, err := a.Client().Move(t.Context(), other, string(c.DID()))
	wantCode(t, err, interact.Forbidden)
	moveOf(t, a, ref, there, there)

	late := start(t, quiet())
	connect(t, late, c)
	knows(t, late, there)
	until(t, "a later node follows", func() bool { return ask(t, late, ref) == nil })

	// It may go on from there, and be called by its first name; and come back.
	moveOf(t, b, there, string(c.DID()), "")
	third := publish(t, c, toolAt("Echo", "urn:x:echo", newAgent(t).url))
	knows(t, late, third)
	until(t, "two moves are followed", func() bool { return ask(t, late, ref) == nil })
	moveOf(t, a, ref, string(c.DID()), third) // what has moved can be sent elsewhere
	publish(t, a, toolAt("Echo", "urn:x:echo", newAgent(t).url))
	until(t, "it is back", func() bool { d, err := late.view.Get(t.Context(), ref); return err == nil && d.Record.Owner == a.DID() })
}

func TestMoveSurvivesARestart(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir = t.TempDir()
	n := start(t, o)
	ref := publish(t, n, tool("Echo", "urn:x:echo"))
	to := opened(t, Options{}).DID()
	if _, err := n.publications().Move(t.Context(), ref, string(to)); err != nil {
		t.Fatal(err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n = start(t, o)
	of := n.mesh.index.Get("urn:x:echo")
	now := time.Now()
	if of == nil || of.Moved != to {
		t.Fatalf("after the restart it offers %+v, want it moved", of)
	}
	d, err := of.Signed.Verify(t.Context(), n.mesh.verifier, now)
	if err != nil || d.Record.Kind != td.KindMoved || d.Record.Successor != to || d.Record.Expires.Sub(now).Round(24*time.Hour) != 30*24*time.Hour {
		t.Errorf("got %+v, %v; want it moved for 30 days", d, err)
	}
	_, err = n.view.Get(t.Context(), ref)
	wantCode(t, err, interact.Withdrawn)
	_, err = n.mesh.index.Locate(t.Context(), ref)
	if e := wantCode(t, err, interact.Withdrawn); !strings.Contains(e.Error(), string(to)) {
		t.Errorf("peers receive %q", e)
	}
}
