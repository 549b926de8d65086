package node

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/td"
)

// twice signs two TDs of one id with one number.
func twice(t testing.TB, key *keystore.Key, id string) (both [2]*td.Signed) {
	t.Helper()
	now := time.Now()
	for i, title := range []string{"One", "Other"} {
		thing, err := td.Complete(tool(title, id), key.DID())
		if err != nil {
			t.Fatal(err)
		}
		if both[i], err = td.Sign(thing, key, td.Lease{Seq: 7, Now: now, Lifetime: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	return both
}

func TestEquivocationIsReported(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Key = didtest.NewKey()
	n := start(t, o)
	liar := didtest.NewKey()
	publish(t, n, tool("Honest", "urn:x:honest"))
	if s := n.Status(); len(s.Equivocations) != 0 {
		t.Errorf("before: %+v", s.Equivocations)
	}
	for _, s := range twice(t, liar, "urn:x:forked") {
		n.mesh.directory.Enqueue(s)
	}
	seen := func(k int) func() bool { return func() bool { return len(n.Status().Equivocations) == k } }
	until(t, "it is seen", seen(1))
	s, err := n.Client().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := s.Equivocations[0]
	if e.ID != "urn:x:forked" || e.Owner != liar.DID() || e.Seq != 7 || e.Records != nil || s.State != "ready" {
		t.Errorf("the status has %+v and is %s", e, s.State)
	}
	if w := warningOf(s); w.Severity != "medium" || !strings.Contains(w.Text, "urn:x:forked") || !strings.Contains(fmt.Sprint(w.Next), "show [urn:x:forked@") {
		t.Errorf("got %+v, want what it is about and what to do", w)
	}
	for _, g := range found(t, n) {
		if e := g.Equivocation; (e != nil) != (g.ID == "urn:x:forked") || e != nil && (e.Seq != 7 || e.Records != nil) {
			t.Errorf("%s: equivocation %+v", g.ID, e)
		}
	}
	d, err := n.Client().Agent(t.Context(), "urn:x:forked")
	if err != nil || d.Agent.Equivocation == nil || len(d.Agent.Equivocation.Records) != 2 {
		t.Fatalf("got %+v, %v; want the evidence", d, err)
	}
	for _, raw := range d.Agent.Equivocation.Records {
		if r, err := td.NewVerifier(nil).Record(raw, time.Now()); err != nil || r.Seq != 7 || r.Owner != liar.DID() {
			t.Errorf("the evidence has %+v, %v", r, err)
		}
	}

	for _, s := range twice(t, o.Key, "urn:x:copied") { // by another process with this node's key
		n.mesh.directory.Enqueue(s)
	}
	until(t, "it is seen of this node's key", seen(2))
	if s := n.Status(); s.State != "degraded" || warningOf(s).Severity != "high" || !strings.Contains(warningOf(s).Hint, "identity.pem") {
		t.Errorf("the node is %s and says %+v", s.State, warningOf(s))
	}
}

// warningOf returns the first warning about equivocation.
func warningOf(s *api.Status) (none api.Warning) {
	for _, w := range s.Warnings {
		if w.Title == "equivocation" {
			return w
		}
	}
	return none
}

func TestEquivocationIsReportedForADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := opened(t, Options{})
		var r *td.Record
		for _, s := range twice(t, didtest.NewKey(), "urn:x:forked") {
			d, err := s.Verify(t.Context(), n.mesh.verifier, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			r = d.Record
			_, _ = n.mesh.directory.Add(d) // one of them is refused
		}
		for _, want := range []bool{true, false} {
			_, ok := n.reporter.Equivocation(r)
			if s := n.Status(); ok != want || (len(s.Equivocations) > 0) != want || (warningOf(s).Code != "") != want {
				t.Errorf("got %t, %+v; want it shown: %t", ok, s.Equivocations, want)
			}
			time.Sleep(24 * time.Hour)
		}
	})
}
