package td

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/cbor"
)

// granted returns the signed TD of the weather agent and its grant for nodes.
func granted(t testing.TB, owner did.Signer, number uint64, nodes ...did.DID) (*Grant, []byte) {
	t.Helper()
	thing, err := Complete(readFile(t, "weather.td.json"), owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	g, raw, err := SignGrant(thing, owner, GrantLease{Number: number, Now: epoch, Lifetime: GrantLife, Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	return g, raw
}

// hosted returns the record of a node.
func hosted(t testing.TB, g *Grant, td []byte, node did.Signer, seq uint64) *Signed {
	t.Helper()
	s, err := g.Sign(td, node, lease(seq, node.DID()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGrant(t *testing.T) {
	t.Parallel()
	owner, a, b := signer(t, 1), signer(t, 2), signer(t, 3)
	g, raw := granted(t, owner, 7, a.DID(), b.DID())
	again, err := ParseGrant(bytes.Clone(g.Raw))
	if err != nil || again.Number != 7 || !again.Names(b.DID()) || again.Names(owner.DID()) || again.Expires.Sub(again.Issued) != GrantLife {
		t.Fatalf("got %+v, %v", again, err)
	}
	s := hosted(t, g, raw, a, 3)
	d := verified(t, s)
	r := d.Record
	switch {
	case r.Host != a.DID() || r.Signer() != a.DID() || r.Owner != owner.DID() || r.Seq != 3 || r.Grant.Number != 7:
		t.Errorf("got %+v", r)
	case len(r.Hosts) != 1 || r.Hosts[0].Node != a.DID() || len(r.Hosts[0].Addrs) == 0:
		t.Errorf("got hosts %v", r.Hosts)
	case r.Title != g.Title || r.Hash != g.Hash || !slices.Equal(r.Capabilities, g.Capabilities) || len(r.Capabilities) == 0:
		t.Errorf("the record lacks what its grant has: %+v", r)
	case r.Key() != Key(owner.DID(), r.Thing) || r.CarrierKey() != HostKey(owner.DID(), r.Thing, a.DID()):
		t.Error("the key is not that of the Thing at this host")
	}
	// Each host has a record of its own; the form of refreshes is valid, too.
	if other := verified(t, hosted(t, g, raw, b, 1)); other.Record.CarrierKey() == r.CarrierKey() || other.Record.Hash != r.Hash {
		t.Errorf("got %+v", other.Record)
	}
	bare, err := s.WithoutTD()
	if err != nil || len(bare.Record) >= len(s.Record) {
		t.Fatalf("without its TD: %v, %d of %d bytes", err, len(bare.Record), len(s.Record))
	}
	if fresh, err := d.Refresh(NewVerifier(did.Keys()), hosted(t, g, raw, a, 4).Record, epoch); err != nil || fresh.Record.Seq != 4 {
		t.Errorf("a renewal: %v", err)
	}
	if renewed, err := Renew(d, a, lease(5, a.DID())); err != nil || verified(t, renewed).Record.Seq != 5 {
		t.Errorf("a renewal: %v", err)
	}
	if p, ok := d.Compact(); !ok || p.Record().Host != a.DID() || verified(t, &Signed{Record: p.Record().Raw, TD: p.TD()}).Record.Seq != 3 {
		t.Error("the compact form differs")
	}
	drain := lease(6, a.DID())
	drain.State = Draining
	if s, err := g.Sign(raw, a, drain); err != nil || verified(t, s).Record.State != Draining {
		t.Errorf("a draining host: %v", err)
	}
	whole := d.AtHosts(g, []Host{{Node: a.DID()}, {Node: b.DID()}}, epoch.Add(time.Hour))
	if w := whole.Record; w.CarrierKey() != Key(w.Owner, w.Thing) || w.Seq != 7 || len(w.Hosts) != 2 || d.Record.Seq != 3 {
		t.Errorf("got %+v", w)
	}
	golden(t, "grant.hex", []byte(hex.EncodeToString(g.Raw)+"\n"))
	golden(t, "host.hex", []byte(hex.EncodeToString(bare.Record)+"\n"))
	t.Logf("grant of 2 nodes %d bytes, record of a host %d, with its TD %d", len(g.Raw), len(bare.Record), len(s.Record))
}

// A node that the grant does not name cannot sign, nor can one after the end of the grant; a record ends with its grant.
func TestHostsNeedAGrant(t *testing.T) {
	t.Parallel()
	owner, node, other := signer(t, 1), signer(t, 2), signer(t, 3)
	g, raw := granted(t, owner, 7, node.DID())
	if _, err := g.Sign(raw, other, lease(1, other.DID())); !errors.Is(err, ErrOwner) {
		t.Errorf("a node that the grant does not name: %v", err)
	}
	late := lease(1, node.DID())
	late.Now = g.Expires
	if _, err := g.Sign(raw, node, late); !errors.Is(err, ErrExpired) {
		t.Errorf("an expired grant: %v", err)
	}
	late.Now = g.Expires.Add(-time.Minute)
	s, err := g.Sign(raw, node, late)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := NewVerifier(nil).Record(s.Record, late.Now); err != nil || !r.Expires.Equal(g.Expires) {
		t.Errorf("got %v, %v; want the end of the grant", r, err)
	}
	for _, life := range []time.Duration{0, -time.Hour, GrantLife + time.Second} {
		thing, err := Complete(readFile(t, "weather.td.json"), owner.DID())
		if err != nil {
			t.Fatal(err)
		}
		if g, _, err := SignGrant(thing, owner, GrantLease{Number: 1, Now: epoch, Lifetime: life, Nodes: []did.DID{node.DID()}}); !errors.Is(err, ErrMalformed) {
			t.Errorf("a grant for %v: %v, %v", life, g, err)
		}
	}
}

func TestHostRecordsReject(t *testing.T) {
	t.Parallel()
	owner, node, other := signer(t, 1), signer(t, 2), signer(t, 3)
	grant := func(t *testing.T, by *keystore.Key, change func(w *wireGrant)) []byte {
		g, _ := granted(t, owner, 7, node.DID())
		w := new(wireGrant)
		if err := cbor.Unmarshal(g.Raw, w); err != nil {
			t.Fatal(err)
		}
		w.Signature = nil
		change(w)
		message, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		if w.Signature == nil {
			if w.Signature, err = by.Sign(did.PurposeGrant, message); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	same := func(*wireGrant) {}
	for _, tt := range []struct {
		name   string
		want   error
		by     *keystore.Key // signs the grant
		grant  func(*wireGrant)
		change func(*wireRecord)
	}{
		{"a host that the grant does not name", ErrOwner, owner, func(w *wireGrant) { w.Nodes = []string{string(other.DID())} }, nil},
		{"a grant of somebody else", ErrSignature, other, same, nil},
		{"a grant of another owner", ErrMalformed, other, func(w *wireGrant) { w.Owner = string(other.DID()) }, nil},
		{"a grant of another thing", ErrMalformed, owner, func(w *wireGrant) { w.Thing = "urn:example:other" }, nil},
		{"a grant without an end", ErrMalformed, owner, func(w *wireGrant) { w.Expires = 0 }, nil},
		{"a grant for eight days", ErrMalformed, owner, func(w *wireGrant) { w.Expires = w.Issued + 8*86400 }, nil},
		{"a grant for nobody", ErrMalformed, owner, func(w *wireGrant) { w.Nodes = nil }, nil},
		{"a grant for nine nodes", ErrMalformed, owner, func(w *wireGrant) {
			for i := range 8 {
				w.Nodes = append(w.Nodes, string(signer(t, byte(10+i)).DID()))
			}
		}, nil},
		{"a node twice", ErrMalformed, owner, func(w *wireGrant) { w.Nodes = append(w.Nodes, w.Nodes[0]) }, nil},
		{"no number", ErrMalformed, owner, func(w *wireGrant) { w.Number = 0 }, nil},
		{"the last number", ErrMalformed, owner, func(w *wireGrant) { w.Number = finalSeq }, nil},
		{"a later version", ErrVersion, owner, func(w *wireGrant) { w.Version = 2 }, nil},
		{"a grant of the future", ErrFuture, owner, func(w *wireGrant) {
			w.Issued, w.Expires = w.Issued+3600, w.Issued+2*86400
		}, nil},
		{"an unknown audience", ErrMalformed, owner, func(w *wireGrant) { w.Audience = 9 }, nil},
		{"a short hash", ErrMalformed, owner, func(w *wireGrant) { w.Hash = w.Hash[1:] }, nil},
		{"a signature of nothing", ErrSignature, owner, func(w *wireGrant) { w.Signature = make([]byte, 64) }, nil},
		{"a record that outlives its grant", ErrMalformed, owner, func(w *wireGrant) { w.Expires = w.Issued + 60 }, nil},
		{"no grant", ErrMalformed, owner, same, func(w *wireRecord) { w.Grant = nil }},
		{"no host", ErrMalformed, owner, same, func(w *wireRecord) { w.Hosts = nil }},
		{"two hosts", ErrMalformed, owner, same, func(w *wireRecord) { w.Hosts = append(w.Hosts, wireHost{Node: string(other.DID())}) }},
		{"another signer than its host", ErrSignature, owner, func(w *wireGrant) { w.Nodes = append(w.Nodes, string(other.DID())) },
			func(w *wireRecord) { w.Hosts[0].Node = string(other.DID()) }},
		{"capabilities of its own", ErrMalformed, owner, same, func(w *wireRecord) { w.Capabilities = []string{"a"} }},
		{"an audience of its own", ErrMalformed, owner, same, func(w *wireRecord) { w.Audience = 1 }},
		{"a title of its own", ErrMalformed, owner, same, func(w *wireRecord) { w.Title = "T" }},
		{"a hash of its own", ErrMalformed, owner, same, func(w *wireRecord) { w.Hash, w.Size = make([]byte, 32), 1 }},
		{"a move", ErrMalformed, owner, same, func(w *wireRecord) { w.Kind, w.Successor = 2, string(other.DID()) }},
		{"a tombstone", ErrMalformed, owner, same, func(w *wireRecord) { w.Kind = 1 }},
		{"the last seq", ErrMalformed, owner, same, func(w *wireRecord) { w.Seq = finalSeq }},
		{"an unknown state", ErrVersion, owner, same, func(w *wireRecord) { w.State = 3 }},
		{"a grant in the first version", ErrMalformed, owner, same, func(w *wireRecord) {
			w.Version, w.Owner, w.Hash, w.Size = 1, string(node.DID()), make([]byte, 32), 1
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			raw := forge(t, node, func(w *wireRecord) {
				g, _ := granted(t, owner, 7, node.DID())
				w.Version, w.Owner, w.Thing, w.Grant, w.Hash, w.Size, w.Title, w.Summary, w.Capabilities = 3, string(owner.DID()), g.Thing, grant(t, tt.by, tt.grant), nil, 0, "", "", nil
				if tt.change != nil {
					tt.change(w)
				}
			})
			if r, err := NewVerifier(nil).Record(raw, epoch); !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v; want %v", r, err, tt.want)
			}
		})
	}
}

// A bit that changes in the record of a host makes it invalid.
func TestEveryByteOfAHostRecord(t *testing.T) {
	t.Parallel()
	owner, node := signer(t, 1), signer(t, 2)
	g, _ := granted(t, owner, 7, node.DID())
	raw := hosted(t, g, nil, node, 1).Record
	v := NewVerifier(nil)
	for i := range raw {
		raw[i] ^= 0x20
		if r, err := v.Record(raw, epoch); err == nil {
			t.Fatalf("byte %d accepted: %+v", i, r)
		}
		raw[i] ^= 0x20
	}
	if _, err := v.Record(raw, epoch); err != nil {
		t.Fatal(err)
	}
}

func FuzzGrant(f *testing.F) {
	owner, node := signer(f, 1), signer(f, 2)
	g, _ := granted(f, owner, 7, node.DID())
	f.Add(g.Raw)
	f.Add([]byte{0xa1, 0, 1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := decodeGrant(raw)
		if err != nil {
			return
		}
		if len(raw) > MaxGrant || len(g.Nodes) == 0 || len(g.Nodes) > MaxGranted || g.Expires.Sub(g.Issued) > GrantLife || !g.Expires.After(g.Issued) {
			t.Fatalf("out of bounds: %+v", g)
		}
		if g.verify() == nil && g.Owner != owner.DID() {
			t.Fatalf("the signature of %s was forged", g.Owner)
		}
	})
}
