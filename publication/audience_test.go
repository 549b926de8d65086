package publication

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// restrictedTool returns the TD of a tool for an audience.
func restrictedTool(v td.Visibility) []byte {
	return bytes.Replace(tool("Echo", "urn:x:echo"), []byte("{"), []byte(`{"lmosd:visibility":"`+v.String()+`",`), 1)
}

// A Thing that becomes restricted is withdrawn publicly first. The tombstone is announced in its place, also after a restart, until the Thing
// is public again.
func TestANarrowerAudienceWithdraws(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	record := func(s *td.Signed) *td.Record {
		t.Helper()
		if s == nil {
			return nil
		}
		r, err := d.o.Verifier.Record(s.Record, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	public := d.publish("Echo", "urn:x:echo")
	var told []*td.Signed
	d.o.OnRestricted = func(s *td.Signed) { told = append(told, s) }
	restricted, err := d.Publisher.publish(t.Context(), restrictedTool(td.Partners), nil, Registration{})
	if err != nil {
		t.Fatal(err)
	}
	gone := record(d.announcement(restricted.Publication))
	if r := restricted.Description.Record; gone == nil || gone.Kind != td.KindTombstone || gone.Audience != td.Public || gone.Seq <= public.Seq ||
		gone.Seq >= r.Seq || r.Audience != td.Partners {
		t.Fatalf("got the tombstone %+v before %+v", gone, r)
	}
	d.announce(t.Context(), restricted.Publication, attempt{}, new(progress))
	if len(told) != 1 || told[0] != restricted.Signed {
		t.Errorf("the carrier of restricted records gets %d", len(told))
	}
	again := fixtureOver(t, d.o.Signer.(*keystore.Key), d.disk.Batching)
	if err := again.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := again.Get("urn:x:echo"); !p.isRestricted() || again.announcement(p) == nil {
		t.Errorf("after a restart: %+v", p)
	}
	narrower, err := d.Publisher.publish(t.Context(), restrictedTool(td.Private), nil, Registration{})
	if err != nil || record(d.announcement(narrower.Publication)).Seq != gone.Seq {
		t.Errorf("the tombstone has changed: %v", err)
	}
	ended := d.withdraw("urn:x:echo")
	if r := record(ended.Signed); r.Audience != td.Private || r.Kind != td.KindTombstone || record(d.announcement(ended)).Seq != gone.Seq {
		t.Errorf("the withdrawal is %+v", r)
	}
	if p := d.publish("Echo", "urn:x:echo"); p.isRestricted() || p.Public != nil || d.announcement(p) != p.Signed {
		t.Errorf("it is public again: %+v", p)
	}
}

// A Thing that was never public has no public tombstone.
func TestARestrictedThingIsNotAnnounced(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	p, err := d.Publisher.publish(t.Context(), restrictedTool(td.Partners), nil, Registration{})
	if err != nil || d.announcement(p.Publication) != nil {
		t.Fatalf("got %v, %v", p, err)
	}
	if got := d.announcement(d.withdraw("urn:x:echo")); got != nil {
		t.Error("its tombstone is announced")
	}
}

// Peers find only what they may see in the index, and get for other Things what they get for unknown ones.
func TestTheIndexIsForItsCaller(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	d.Index.sees = directory.ByRelation
	p, err := d.Publisher.publish(t.Context(), restrictedTool(td.Partners), nil, Registration{})
	if err != nil {
		t.Fatal(err)
	}
	peer := func(r did.Relation) context.Context {
		p := did.NodePrincipal("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", "")
		p.Relation = r
		return did.WithPrincipal(t.Context(), p)
	}
	for r, want := range map[did.Relation]bool{did.Untrusted: false, did.Partner: false, did.Own: true} {
		ctx := peer(r)
		_, body := d.Body(ctx, p.Description.Record.Hash)
		_, err := d.Locate(ctx, p.Description.Ref())
		if body != want || (err == nil) != want || (d.Count(ctx) == 1) != want || (len(d.Restricted(ctx)) == 1) != want ||
			(d.States(ctx, [][32]byte{p.Description.Record.Key()})[0] != 0) != want {
			t.Errorf("%s: body %t, %v, %d Things, %d records", r, body, err, d.Count(ctx), len(d.Restricted(ctx)))
		}
		if len(d.Hosted(ctx, td.Query{})) != 0 {
			t.Errorf("%s: the records protocol gives it out", r)
		}
	}
	ended := d.withdraw("urn:x:echo")
	for _, ref := range []string{"urn:x:echo", td.ExactRef("urn:x:echo", p.Description.Record.Owner), "echo"} {
		_, err := d.Locate(peer(did.Untrusted), ref)
		if want := interact.NotOffered(ref); interact.AsError(err).Error() != want.Error() || interact.AsError(err).Code != interact.NotFound {
			t.Errorf("%s: got %v, want %v", ref, err, want)
		}
	}
	if got := d.Restricted(peer(did.Own)); len(got) != 1 || got[0] != ended.Signed {
		t.Errorf("the withdrawal is not given to the audience")
	}
}
