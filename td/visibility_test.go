package td

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
)

// restrict returns the TD of the test data with further members.
func restrict(t *testing.T, members string) []byte {
	t.Helper()
	return []byte(strings.Replace(string(readFile(t, "weather.td.json")), "{", "{"+members+",", 1))
}

func TestVisibilityOfATD(t *testing.T) {
	t.Parallel()
	for members, want := range map[string]Visibility{
		`"lmosd:visibility":"public"`:                       Public,
		`"lmosd:visibility":"partners"`:                     Partners,
		`"lmosd:visibility":"organization"`:                 Organization,
		`"lmosd:visibility":"private"`:                      Private,
		`"lmosd:unlisted":true`:                             Private,
		`"lmosd:unlisted":false`:                            Public,
		`"lmosd:unlisted":true,"lmosd:visibility":"public"`: Private,
	} {
		thing, err := Parse(restrict(t, members))
		if err != nil || thing.Visibility != want {
			t.Errorf("%s: got %v, %v, want %s", members, thing, err, want)
		}
	}
	for value, want := range map[string]string{`"secret"`: "expected public, partners, organization, named or private", `7`: "expected string"} {
		_, err := Parse(restrict(t, `"lmosd:visibility":`+value))
		if invalid, ok := errors.AsType[*ValidationError](err); !ok || !strings.Contains(err.Error(), want) || invalid.Issues[0].Pointer != "/lmosd:visibility" {
			t.Errorf("%s: got %v, want an issue %q", value, err, want)
		}
	}
}

func TestVisibilityAsText(t *testing.T) {
	t.Parallel()
	type doc struct{ V Visibility }
	for _, v := range []Visibility{Public, Partners, Organization, Named, Private} {
		text, err := json.Marshal(doc{v})
		var got doc
		if err != nil || json.Unmarshal(text, &got) != nil || got.V != v {
			t.Errorf("%s: got %s, %v", v, text, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"V":"all"}`), new(doc)); err == nil || !strings.Contains(err.Error(), "public, partners, organization, named or private") {
		t.Errorf("got %v", err)
	}
}

// The record of a restricted Thing has its audience, which the signature covers; renewals, tombstones and moves have it, too.
func TestAudienceOfRecords(t *testing.T) {
	t.Parallel()
	k, v := signer(t, 1), NewVerifier(did.Keys())
	s := published(t, restrict(t, `"lmosd:visibility":"partners"`), k, 7)
	d, err := s.Verify(t.Context(), v, epoch)
	if err != nil || d.Record.Audience != Partners || d.Visibility != Partners {
		t.Fatalf("got %+v, %v", d, err)
	}
	l := lease(8)
	again, err := Renew(d, k, l)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := v.Record(again.Record, epoch); err != nil || r.Audience != Partners {
		t.Errorf("renewed: got %+v, %v", r, err)
	}
	if fresh, err := d.Refresh(v, again.Record, epoch); err != nil || fresh.Record.Audience != Partners {
		t.Errorf("refreshed: got %v", err)
	}
	l.Audience = Organization
	gone, err := SignTombstone(k, d.ID, l, false)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := Move(k, d.ID, signer(t, 2).DID(), l)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []*Signed{gone, moved} {
		if r, err := v.Record(one.Record, epoch); err != nil || r.Audience != Organization {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	widened := append([]byte(nil), s.Record...)
	widened[len(widened)-1]++
	if _, err := v.Record(widened, epoch); !errors.Is(err, ErrSignature) {
		t.Errorf("a changed audience: got %v", err)
	}
	bare, err := s.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := v.Record(bare.Record, epoch); err != nil || r.Audience != Partners || len(r.Inline) > 0 {
		t.Errorf("without the TD: got %+v, %v", r, err)
	}
}

// A record whose audience differs from its TD is rejected, in both directions.
func TestAudienceDiffersFromTheTD(t *testing.T) {
	t.Parallel()
	k, v := signer(t, 1), NewVerifier(did.Keys())
	for members, change := range map[string]func(w *wireRecord){
		`"lmosd:visibility":"partners"`: func(w *wireRecord) { w.Version, w.Audience = 1, 0 },
		`"lmosd:visibility":"public"`:   func(w *wireRecord) { w.Version, w.Audience = 2, 1 },
		`"lmosd:visibility":"private"`:  func(w *wireRecord) { w.Version, w.Audience = 2, 1 },
	} {
		s := published(t, restrict(t, members), k, 7)
		_, w, err := decodeRecord(s.Record)
		if err != nil {
			t.Fatal(err)
		}
		change(w)
		w.Inline = nil
		m, err := w.signed()
		if err != nil {
			t.Fatal(err)
		}
		if w.Signature, err = k.Sign(did.PurposeRecord, m); err != nil {
			t.Fatal(err)
		}
		forged, err := w.encode(s.TD)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := forged.Verify(t.Context(), v, epoch); !errors.Is(err, ErrAudience) {
			t.Errorf("%s: got %v", members, err)
		}
	}
}

func TestRestrict(t *testing.T) {
	t.Parallel()
	owner := signer(t, 1).DID()
	const plain = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", "security": "n", "securityDefinitions": {"n": {"scheme": "nosec"}}}`
	complete := func(raw string) *Thing {
		c, err := Complete([]byte(raw), owner)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, c := range map[string]struct {
		raw  string
		v    Visibility
		want Visibility
	}{
		"none":            {plain, Partners, Partners},
		"private":         {plain, Private, Private},
		"public":          {plain, Public, Public},
		"stated narrower": {strings.Replace(plain, "{", `{"lmosd:visibility": "private", `, 1), Partners, Private},
		"stated wider":    {strings.Replace(plain, "{", `{"lmosd:visibility": "public", `, 1), Partners, Public},
		"unlisted":        {strings.Replace(plain, "{", `{"lmosd:unlisted": true, `, 1), Partners, Private},
	} {
		before := complete(c.raw)
		after, err := Restrict(before, c.v, owner)
		if err != nil || after.Visibility != c.want || after.ID != before.ID || before.Visibility == c.want && after != before {
			t.Errorf("%s: %+v, %v", name, after, err)
		}
		if again, err := Complete(after.Raw, owner); err != nil || string(again.Raw) != string(after.Raw) {
			t.Errorf("%s: it is not complete: %v", name, err)
		}
	}
}

// The numbers of the audiences in records never change: nodes have stored such records.
func TestAudiencesInRecords(t *testing.T) {
	t.Parallel()
	for v, want := range map[Visibility]uint64{Public: 0, Partners: 1, Organization: 2, Private: 3, Named: 4} {
		if v.audience() != want || visibilityOf(want) != v {
			t.Errorf("%s: %d, %s", v, v.audience(), visibilityOf(want))
		}
	}
}
