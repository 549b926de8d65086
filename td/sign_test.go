package td

import (
	"bytes"
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/did"
)

func TestSign(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	s := published(t, readFile(t, "weather.td.json"), k, 7)
	d := verified(t, s)
	got := *d.Record
	got.Raw, got.Inline, got.digest, got.Hash = nil, nil, [32]byte{}, [32]byte{}
	want := Record{
		Owner: k.DID(), Thing: "urn:example:agent:weather", Seq: 7, Issued: epoch, Expires: epoch.Add(6 * time.Hour), Size: len(s.TD),
		Hosts:        lease(7, k.DID()).Hosts,
		Capabilities: []string{"getweather", "urn:example:weather:current", "urn:example:weather:forecast"},
		Title:        "Weather", Summary: "Answers questions about the weather, today and in the next days, anywhere in Europe.",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Record{})); diff != "" {
		t.Error(diff)
	}
	if d.ProofMethod != string(k.DID())+"#"+k.DID().Multibase() || !d.ProofCreated.Equal(epoch) || !d.ProofExpires.IsZero() {
		t.Errorf("proof: %s %v %v", d.ProofMethod, d.ProofCreated, d.ProofExpires)
	}
	if !bytes.Equal(d.Signed.TD, s.TD) || !bytes.Equal(d.Raw, s.TD) || !bytes.Equal(d.Signed.Record, s.Record) {
		t.Error("bytes differ")
	}
}

func TestSignRejects(t *testing.T) {
	t.Parallel()
	k, other := signer(t, 1), signer(t, 2)
	complete := func(raw string) *Thing {
		thing, err := Complete([]byte(raw), k.DID())
		if err != nil {
			t.Fatal(err)
		}
		return thing
	}
	plain := func() *Thing { return complete(tdWith(`"id": "urn:x"`)) }
	large := tdWith(`"id": "urn:x"`, `"x": "`+strings.Repeat("x", MaxTD-500)+`"`)
	var wide []string
	for _, c := range manyCapabilities(MaxCaps) {
		wide = append(wide, `"`+c+strings.Repeat("x", 150)+`"`)
	}
	tests := []struct {
		name  string
		thing *Thing
		with  did.Signer
		lease Lease
		want  string
	}{
		{"a TD without id", mustParse(t, tdWith()), k, lease(1),
			`"id" is missing: complete the TD before it is signed`},
		{"a TD without contexts", mustParse(t, tdWith(`"id": "urn:x"`)), k, lease(1),
			"lacks contexts: complete the TD before it is signed"},
		{"no time", plain(), k, Lease{Seq: 1, Lifetime: time.Hour}, "a lease with a time"},
		{"no life", plain(), k, Lease{Seq: 1, Now: epoch}, "at least 1 s"},
		{"a life too long", plain(), k, Lease{Seq: 1, Now: epoch, Lifetime: 25 * time.Hour},
			"valid for 90000 s, the limit is 24h0m0s"},
		{"the last seq", plain(), k, Lease{Seq: math.MaxUint64, Now: epoch, Lifetime: time.Hour},
			"only a tombstone may have the last seq"},
		{"the id of another owner", complete(tdWith(`"id": "` + string(k.DID()) + `"`)), other, lease(1), "belongs to"},
		{"five hosts", plain(), k,
			lease(1, k.DID(), other.DID(), signer(t, 3).DID(), signer(t, 4).DID(), signer(t, 5).DID()),
			"5 hosts, 4 are allowed"},
		{"a TD too large with its proof", complete(large), k, lease(1), "the signed TD of urn:x: too large"},
		{"more capabilities than a record holds",
			complete(tdWith(`"id": "urn:x"`, `"lmos:capabilities": [`+strings.Join(wide, ",")+`]`)), k, lease(1),
			"use fewer or shorter capability ids"},
		{"a signer that fails", plain(), failingSigner{k.DID()}, lease(1), "key unavailable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := Sign(tt.thing, tt.with, tt.lease); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

type failingSigner struct{ id did.DID }

func (f failingSigner) DID() did.DID                      { return f.id }
func (failingSigner) Sign(string, []byte) ([]byte, error) { return nil, errors.New("key unavailable") }

// A TD that does not fit into the record when compressed is separate.
func TestLargeTDIsNotInline(t *testing.T) {
	t.Parallel()
	var noise strings.Builder
	for i := range 3000 {
		noise.WriteString(Slug(time.Duration(i * i * 7919).String()))
	}
	s := published(t, []byte(tdWith(`"id": "urn:x"`, `"x": "`+noise.String()+`"`)), signer(t, 1), 1)
	if d := verified(t, s); d.Record.Inline != nil {
		t.Errorf("%d bytes inside", len(d.Record.Inline))
	}
	_, err := (&Signed{Record: s.Record}).Verify(context.Background(), NewVerifier(did.Keys()), epoch)
	if !errors.Is(err, ErrNoTD) {
		t.Errorf("got %v, want %v", err, ErrNoTD)
	}
}

// The summary is one line of limited length for every description.
func TestSummary(t *testing.T) {
	t.Parallel()
	raw := tdWith(`"id": "urn:x"`, `"description": "a\n\t\u001b[31m b  `+strings.Repeat("ü", 500)+`"`)
	got := verified(t, published(t, []byte(raw), signer(t, 1), 1)).Record.Summary
	if n := len([]rune(got)); n != MaxDescription || !strings.HasPrefix(got, "a [31m b ü") || !strings.HasSuffix(got, "ü…") {
		t.Errorf("%d: %q", n, got)
	}
}

func TestRenew(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	d := verified(t, published(t, readFile(t, "weather.td.json"), k, 7))
	later := Lease{Seq: 8, Now: epoch.Add(time.Hour), Lifetime: time.Hour}
	s, err := Renew(d, k, later)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Verify(context.Background(), NewVerifier(did.Keys()), later.Now)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Raw, d.Raw) || got.Record.Seq != 8 || len(got.Record.Hosts) != 0 || got.Record.Title != "Weather" ||
		len(got.Record.Capabilities) != 3 || got.Record.Expires != later.Now.Add(time.Hour) {
		t.Errorf("got %+v", got.Record)
	}
	if _, err := Renew(d, signer(t, 2), later); !errors.Is(err, ErrOwner) {
		t.Errorf("by another: %v", err)
	}
	d.Record.Kind = KindTombstone
	if _, err := Renew(d, k, later); err == nil {
		t.Error("a tombstone was renewed")
	}
}

func TestSignTombstone(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	for _, final := range []bool{false, true} {
		l := Lease{Seq: 8, Now: epoch, Lifetime: 30 * 24 * time.Hour, Hosts: lease(1, k.DID()).Hosts}
		s, err := SignTombstone(k, "urn:x", l, final, "urn:a")
		if err != nil {
			t.Fatal(err)
		}
		d := verified(t, s)
		r := d.Record
		if d.Thing != nil || r.Kind != KindTombstone || r.Thing != "urn:x" || r.Final() != final || len(r.Hosts) != 0 ||
			r.Capabilities[0] != "urn:a" || d.Signed.TD != nil || (r.Seq == 8) == final {
			t.Errorf("got %+v", r)
		}
	}
	if _, err := SignTombstone(k, "", lease(1), false); !errors.Is(err, ErrMalformed) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	k, successor := signer(t, 1), signer(t, 2).DID()
	minted := "urn:lmos:" + string(k.DID()) + ":weather"
	for id, want := range map[string]string{"urn:x": "urn:x", minted: "urn:lmos:" + string(successor) + ":weather",
		string(k.DID()): string(successor)} {
		s, err := Move(k, id, successor, Lease{Seq: 7, Now: epoch, Lifetime: 30 * 24 * time.Hour}, "urn:a")
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewVerifier(nil).Record(s.Record, epoch)
		if err != nil || r.Kind != KindMoved || r.Successor != successor || r.Seq != 7 || len(r.Hosts) != 0 || len(r.Capabilities) != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
		if got := r.SuccessorRef(); got != (Ref{want, string(successor), ""}) {
			t.Errorf("%s becomes %+v, want %s", id, got, want)
		}
	}
	if _, err := Move(k, "urn:x", "not a DID", Lease{Seq: 7, Now: epoch, Lifetime: time.Hour}); !errors.Is(err, ErrMalformed) {
		t.Errorf("an invalid successor: %v", err)
	}
}

func TestWithoutTD(t *testing.T) {
	t.Parallel()
	s := published(t, readFile(t, "weather.td.json"), signer(t, 1), 7)
	bare, err := s.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	if len(bare.Record) >= len(s.Record) || !bytes.Equal(bare.TD, s.TD) {
		t.Errorf("%d bytes of %d", len(bare.Record), len(s.Record))
	}
	if d := verified(t, bare); d.Record.Inline != nil {
		t.Error("the TD is inside")
	}
	within, err := bare.WithInlineTD()
	if err != nil || !bytes.Equal(within.Record, s.Record) {
		t.Errorf("put inside again: %v", err)
	}
	if same, err := (&Signed{Record: bare.Record}).WithInlineTD(); err != nil || !bytes.Equal(same.Record, bare.Record) {
		t.Errorf("without a TD: %v", err)
	}
	if _, err := (&Signed{Record: []byte("x")}).WithInlineTD(); !errors.Is(err, ErrMalformed) {
		t.Errorf("of nonsense: %v", err)
	}
	again, err := bare.WithoutTD()
	if err != nil || !bytes.Equal(again.Record, bare.Record) {
		t.Errorf("a second time: %v", err)
	}
	if _, err := (&Signed{Record: []byte("x")}).WithoutTD(); !errors.Is(err, ErrMalformed) {
		t.Errorf("of garbage: %v", err)
	}
	if i, err := Select([][]byte{bare.Record, s.Record}); err != nil || i != 1 {
		t.Errorf("the record with its TD inside was not selected: %d %v", i, err)
	}
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	v := NewVerifier(did.Keys())
	d := verified(t, published(t, readFile(t, "weather.td.json"), k, 7))
	later := epoch.Add(time.Hour)
	renewed, err := Renew(d, k, Lease{Seq: 8, Now: later, Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Refresh(v, renewed.Record, later)
	if err != nil {
		t.Fatal(err)
	}
	if got.Thing != d.Thing || got.Record.Seq != 8 || !bytes.Equal(got.Signed.TD, d.Signed.TD) || d.Record.Seq != 7 {
		t.Errorf("got %+v", got.Record)
	}
	other := published(t, []byte(tdWith(`"id": "urn:example:agent:weather"`)), k, 9).Record
	if _, err := d.Refresh(v, other, epoch); !errors.Is(err, ErrHash) {
		t.Errorf("with another TD: %v", err)
	}
	copied := published(t, readFile(t, "weather.td.json"), signer(t, 2), 9).Record
	if _, err := d.Refresh(v, copied, epoch); !errors.Is(err, ErrHash) {
		t.Errorf("with the TD of another owner: %v", err)
	}
	if _, err := d.Refresh(v, renewed.Record, epoch.Add(24*time.Hour)); !errors.Is(err, ErrExpired) {
		t.Errorf("with an old record: %v", err)
	}
	d.ProofExpires = epoch
	if _, err := d.Refresh(v, renewed.Record, later); !errors.Is(err, ErrExpired) {
		t.Errorf("with a proof that ended: %v", err)
	}
}

// A Thing from the mesh is already signed: only its owner can publish it again.
func TestSignAgain(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	d := verified(t, published(t, readFile(t, "weather.td.json"), k, 7))
	s, err := Sign(d.Thing, k, lease(8))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.TD, d.Raw) || verified(t, s).Record.Seq != 8 {
		t.Error("the TD differs")
	}
	if _, err := Sign(d.Thing, signer(t, 2), lease(8)); !errors.Is(err, ErrOwner) {
		t.Errorf("by another: %v", err)
	}
	changed := &Thing{ID: d.ID, Raw: bytes.Replace(d.Raw, []byte("Europe"), []byte("Africa"), 1)}
	if _, err := Sign(changed, k, lease(8)); !errors.Is(err, ErrSignature) {
		t.Errorf("changed: %v", err)
	}
	if _, err := Sign(&Thing{ID: d.ID, Raw: []byte("x")}, k, lease(8)); err == nil {
		t.Error("garbage was signed")
	}
}

// Sign returns no record if the signature of the signer has an invalid length. A receiver rejects a wrong signature of 64 bytes.
func TestSignerWithInvalidResult(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	thing, err := Complete([]byte(tdWith(`"id": "urn:x"`)), k.DID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Sign(thing, fixedSigner{k.DID(), make([]byte, 10)}, lease(1)); err == nil || !strings.Contains(err.Error(), "of 10 bytes") {
		t.Errorf("got %v", err)
	}
	s, err := Sign(thing, fixedSigner{k.DID(), make([]byte, 64)}, lease(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(context.Background(), NewVerifier(did.Keys()), epoch); !errors.Is(err, ErrSignature) {
		t.Errorf("got %v, want %v", err, ErrSignature)
	}
}

type fixedSigner struct {
	id        did.DID
	signature []byte
}

func (s fixedSigner) DID() did.DID                        { return s.id }
func (s fixedSigner) Sign(string, []byte) ([]byte, error) { return s.signature, nil }

// Equal leases of equal TDs have equal bytes: the order of maps does not matter.
func TestSignIsDeterministic(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	first := published(t, readFile(t, "weather.td.json"), k, 7)
	for range 5 {
		if again := published(t, readFile(t, "weather.td.json"), k, 7); !bytes.Equal(again.Record, first.Record) {
			t.Fatal("the same lease gives another record")
		}
	}
}

// The description that Verifier.Sign returns is that of a receiver.
func TestSignedDescription(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	for _, name := range []string{"weather.td.json", "plain", "signed"} {
		raw := []byte(tdWith(`"id": "urn:x"`))
		switch name {
		case "weather.td.json":
			raw = readFile(t, name)
		case "signed":
			raw = published(t, raw, k, 6).TD
		}
		thing, err := Complete(raw, k.DID())
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := NewVerifier(nil).Sign(t.Context(), thing, k, lease(7, k.DID()))
		if err != nil {
			t.Fatal(name, err)
		}
		want, err := (&Signed{Record: got.Signed.Record, TD: got.Signed.TD}).Verify(t.Context(), NewVerifier(nil), epoch)
		if err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, ok := got.Compact(); !ok {
			t.Errorf("%s: no compact form", name)
		}
	}
}

// A signer whose signature is of another key is detected.
func TestSignWithWrongKey(t *testing.T) {
	t.Parallel()
	thing, err := Complete([]byte(tdWith(`"id": "urn:x"`)), signer(t, 1).DID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewVerifier(nil).Sign(t.Context(), thing, swapped{signer(t, 1), signer(t, 2)}, lease(7, signer(t, 1).DID())); !errors.Is(err, ErrSignature) {
		t.Errorf("got %v, want %v", err, ErrSignature)
	}
}

// swapped has the DID of the first signer, and signs with the second.
type swapped struct {
	did.Signer
	with did.Signer
}

func (s swapped) Sign(p did.Purpose, b []byte) ([]byte, error) { return s.with.Sign(p, b) }
