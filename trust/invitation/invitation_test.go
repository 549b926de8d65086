package invitation

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/cbor"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func node(n int) did.DID { return didtest.Key(n).DID() }

// addressOf returns an address of a node.
func addressOf(n int) string { return "/ip4/203.0.113.7/udp/4667/quic-v1/p2p/" + node(n).PeerText() }

// newLog returns the log of an organization with these issuing keys, and with another key that may not issue.
func newLog(t testing.TB, keys ...int) *webvh.Log {
	t.Helper()
	l, err := webvh.Create("acme.example", didtest.Key(1), webvh.Update{Now: noon, Document: func(id did.DID) map[string]any {
		var methods, issuing []any
		for n, k := range append(keys, 99) {
			name := string(id) + "#i" + string(rune('1'+n))
			methods = append(methods, map[string]any{"id": name, "type": "Multikey", "controller": string(id), "publicKeyMultibase": node(k).Multibase()})
			if k != 99 {
				issuing = append(issuing, name)
			}
		}
		return map[string]any{"@context": []any{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"}, "id": string(id),
			"verificationMethod": methods, "assertionMethod": issuing}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// template returns the content of an invitation to an organization.
func template(l *webvh.Log) Invitation {
	return Invitation{Network: "lmos", Organization: l.DID(), Kind: Node, Roles: []string{"customer-service"}, Addresses: []string{addressOf(2), addressOf(3)}}
}

// invite returns an invitation that the key 2 signed.
func invite(t testing.TB, l *webvh.Log, change func(*Invitation)) (*Invitation, string) {
	t.Helper()
	i := template(l)
	if change != nil {
		change(&i)
	}
	out, text, err := New(i, didtest.Key(2), noon)
	if err != nil {
		t.Fatal(err)
	}
	return out, text
}

func wantInvalid(t testing.TB, name string, err error, parts ...string) {
	t.Helper()
	e, ok := errors.AsType[*interact.Error](err)
	if !ok || e.Code != interact.InvalidInvite {
		t.Errorf("%s: got %v, want code %s", name, err, interact.InvalidInvite)
		return
	}
	for _, p := range parts {
		if !strings.Contains(e.Error(), p) {
			t.Errorf("%s: %q does not contain %q", name, e, p)
		}
	}
}

func TestInvitation(t *testing.T) {
	t.Parallel()
	l := newLog(t, 2)
	i, text := invite(t, l, nil)
	if len(text) > 420+30 || !strings.HasPrefix(text, Prefix) {
		t.Errorf("%d characters: %s", len(text), text)
	}
	for name, s := range map[string]string{"as issued": text, "with lines of a terminal": " " + text[:80] + "\r\n  " + text[80:200] + "\n" + text[200:] + "\n\t"} {
		got, err := Parse(s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Network != "lmos" || got.Organization != l.DID() || got.Kind != Node || !slices.Equal(got.Roles, i.Roles) || got.Secret != i.Secret || got.For != "" ||
			!got.Expires.Equal(noon.Add(Life)) || !slices.Equal(got.Addresses, []string{addressOf(2), addressOf(3)}) {
			t.Errorf("%s: %+v", name, got)
		}
		if err := errors.Join(got.Check("lmos", noon, node(5)), got.Verify(l)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(got.Nodes(), []did.DID{node(2), node(3)}) || got.SCID() != l.SCID() || got.ID() != i.ID() || len(got.ID()) != 64 {
			t.Errorf("%s: nodes %v, SCID %s, id %s", name, got.Nodes(), got.SCID(), got.ID())
		}
	}
	if other, _ := invite(t, l, nil); other.Secret == i.Secret || other.ID() == i.ID() {
		t.Error("two invitations have one secret")
	}
	if Node.String() != "node" || Partner.String() != "partner" || Kind(7).String() != "kind 7" {
		t.Error("names of kinds")
	}
}

func TestNewRejects(t *testing.T) {
	t.Parallel()
	l := newLog(t, 2)
	for name, change := range map[string]func(*Invitation){
		"expired":               func(i *Invitation) { i.Expires = noon.Add(-time.Hour) },
		"31 days":               func(i *Invitation) { i.Expires = noon.Add(31 * 24 * time.Hour) },
		"no address":            func(i *Invitation) { i.Addresses = nil },
		"4 addresses":           func(i *Invitation) { i.Addresses = slices.Repeat([]string{addressOf(2)}, 4) },
		"an address of no node": func(i *Invitation) { i.Addresses = []string{"/ip4/203.0.113.7/udp/4667/quic-v1"} },
		"a relay address":       func(i *Invitation) { i.Addresses = []string{addressOf(2) + "/p2p-circuit"} },
		"text for an address":   func(i *Invitation) { i.Addresses = []string{"acme.example"} },
		"no network":            func(i *Invitation) { i.Network = "" },
		"no kind":               func(i *Invitation) { i.Kind = 0 },
		"an invalid role":       func(i *Invitation) { i.Roles = []string{"Boss"} },
		"9 roles":               func(i *Invitation) { i.Roles = strings.Split("a b c d e f g h i", " ") },
		"a role twice":          func(i *Invitation) { i.Roles = []string{"a", "a"} },
		"a did:web":             func(i *Invitation) { i.Organization = "did:web:acme.example" },
		"a node for a partner":  func(i *Invitation) { i.Kind, i.For = Partner, node(3) },
		"a company for a node":  func(i *Invitation) { i.For = l.DID() },
		"a DID that is not one": func(i *Invitation) { i.For = "globex" },
	} {
		i := template(l)
		change(&i)
		_, _, err := New(i, didtest.Key(2), noon)
		if e, ok := errors.AsType[*interact.Error](err); !ok || e.Code != interact.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each text names what is wrong with it.
func TestParseRejects(t *testing.T) {
	t.Parallel()
	_, text := invite(t, newLog(t, 2), nil)
	raw := func(change func(m map[uint64]any)) string {
		body, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, Prefix))
		if err != nil {
			t.Fatal(err)
		}
		m := map[uint64]any{}
		if err := cbor.Unmarshal(body, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		body, err = cbor.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return Prefix + base64.RawURLEncoding.EncodeToString(body)
	}
	encoded := func(b string) string { return Prefix + base64.RawURLEncoding.EncodeToString([]byte(b)) }
	if got := raw(func(map[uint64]any) {}); got != text {
		t.Fatalf("the test changes the text: %s", got)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                {"", "not an invitation"},
		"a URL":                  {"https://acme.example/invite", "not an invitation"},
		"a DID":                  {string(node(3)), "not an invitation"},
		"without the prefix":     {strings.TrimPrefix(text, Prefix), "not an invitation"},
		"the prefix":             {Prefix, "incomplete or altered"},
		"in capitals":            {strings.ToUpper(text), "not an invitation"},
		"the first half":         {text[:len(text)/2], "incomplete or altered"},
		"without its end":        {text[:len(text)-2], "incomplete or altered"},
		"with text behind":       {text + ".", "not base64url"},
		"twice":                  {text + text, "not base64url"},
		"padded":                 {text + "==", "not base64url"},
		"standard base64":        {Prefix + "+/" + text[len(Prefix):], "not base64url"},
		"too long":               {Prefix + strings.Repeat("A", MaxText), "longer than"},
		"huge":                   {Prefix + strings.Repeat("A", 1<<20), "longer than"},
		"an array":               {encoded("\x80"), "altered"},
		"an empty map":           {encoded("\xa0"), "altered"},
		"a later version":        {raw(func(m map[uint64]any) { m[0] = 2; m[77] = "x" }), "version 2, which this program does not support"},
		"an unknown key":         {raw(func(m map[uint64]any) { m[10] = 1 }), "altered"},
		"another type":           {raw(func(m map[uint64]any) { m[1] = 7 }), "altered"},
		"a map that is long":     {encoded("\xbf\x00\x01\xff"), "altered"},
		"not deterministic":      {encoded("\xa1\x00\x18\x01"), "deterministic"},
		"without a network":      {raw(func(m map[uint64]any) { m[1] = "" }), "network"},
		"a network with colors":  {raw(func(m map[uint64]any) { m[1] = "\x1b[31m" }), "network"},
		"kind 4":                 {raw(func(m map[uint64]any) { m[4] = 4 }), "kind is 4"},
		"a group without an id":  {raw(func(m map[uint64]any) { m[4] = 3 }), "the id of the group"},
		"a secret of 15 bytes":   {raw(func(m map[uint64]any) { m[6] = make([]byte, 15) }), "secret has 15 bytes"},
		"without an end":         {raw(func(m map[uint64]any) { m[7] = -1 }), "expiry"},
		"an end beyond the time": {raw(func(m map[uint64]any) { m[7] = uint64(1) << 62 }), "expiry"},
		"no address":             {raw(func(m map[uint64]any) { m[8] = []any{} }), "0 addresses"},
		"an address of text":     {raw(func(m map[uint64]any) { m[8] = []any{[]byte("/ip4/1.2.3.4")} }), "not a multiaddr"},
		"an empty address":       {raw(func(m map[uint64]any) { m[8] = []any{[]byte{}} }), "address"},
		"a long address":         {raw(func(m map[uint64]any) { m[8] = []any{make([]byte, 600)} }), "600 bytes"},
		"an address of no node":  {raw(func(m map[uint64]any) { m[8] = []any{[]byte{4, 127, 0, 0, 1, 6, 0, 80}} }), "does not end in /p2p/ID"},
		"without a signature":    {raw(func(m map[uint64]any) { delete(m, 9) }), "signature has 0 bytes"},
		"an organization by web": {raw(func(m map[uint64]any) { m[2] = "did:web:acme.example" }), "did:webvh"},
		"a long organization":    {raw(func(m map[uint64]any) { m[2] = "did:webvh:" + strings.Repeat("a", 600) }), "too long"},
		"for a web site":         {raw(func(m map[uint64]any) { m[3] = "did:web:acme.example" }), "did:key"},
		"a role in capitals":     {raw(func(m map[uint64]any) { m[5] = []any{"Boss"} }), "role"},
	} {
		_, err := Parse(c.text)
		wantInvalid(t, name, err, c.want)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	l := newLog(t, 2)
	i, _ := invite(t, l, nil)
	forNode, _ := invite(t, l, func(i *Invitation) { i.For = node(5) })
	forPartner, _ := invite(t, l, func(i *Invitation) { i.Kind, i.For = Partner, l.DID() })
	wantInvalid(t, "network", i.Check("staging", noon, node(5)), `for the network "lmos"`, `in "staging"`)
	wantInvalid(t, "expired", i.Check("lmos", noon.Add(Life+time.Hour), node(5)), "expired on 2026-11-21T12:00:00Z, 1h0m0s ago")
	wantInvalid(t, "another node", forNode.Check("lmos", noon, node(6), l.DID()), "for another node")
	wantInvalid(t, "another partner", forPartner.Check("lmos", noon, node(6)), "for another node")
	wantInvalid(t, "no reader", forNode.Check("lmos", noon), "for another node")
	for name, err := range map[string]error{
		"at its end, with a slow clock":    i.Check("lmos", noon.Add(Life+Skew), node(5)),
		"with a clock that is a day early": i.Check("lmos", noon.Add(-24*time.Hour), node(5)), // the issuer decides
		"the node":                         forNode.Check("lmos", noon, node(5)),
		"the partner":                      forPartner.Check("lmos", noon, node(5), l.DID()),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	l, two := newLog(t, 2), newLog(t, 7, 2)
	for name, c := range map[string]struct {
		signer int
		log    *webvh.Log
		want   string // "": valid
	}{
		"the issuer":                  {2, l, ""},
		"the second issuer":           {2, two, ""},
		"another key":                 {8, l, "altered, or its issuer is no longer an issuer"},
		"a removed issuer":            {7, l, "no longer"},
		"the root key":                {1, l, "no longer"},
		"a key that may not issue":    {99, l, "no longer"},
		"another organization's log":  {2, newLog(t, 5), "of the organization"},
		"a key of another node in it": {3, l, "no longer"},
	} {
		i := template(l)
		if c.log == two {
			i = template(two)
		}
		got, _, err := New(i, didtest.Key(c.signer), noon)
		if err != nil {
			t.Fatal(err)
		}
		switch err := got.Verify(c.log); {
		case c.want != "":
			wantInvalid(t, name, err, c.want)
		case err != nil:
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, err := l.Append(didtest.Key(1), webvh.Update{Now: noon.Add(time.Minute), Deactivate: true})
	if err != nil {
		t.Fatal(err)
	}
	i, text := invite(t, l, nil)
	wantInvalid(t, "an ended organization", i.Verify(ended), "no valid document")

	// Each changed bit is found.
	body, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, Prefix))
	for n := range len(body) * 8 {
		changed := slices.Clone(body)
		changed[n/8] ^= 1 << (n % 8)
		got, err := Parse(Prefix + base64.RawURLEncoding.EncodeToString(changed))
		if err == nil {
			err = got.Verify(l)
		}
		wantInvalid(t, "a changed bit", err)
	}
}

func FuzzParse(f *testing.F) {
	l := newLog(f, 2)
	_, text := invite(f, l, nil)
	f.Add(text)
	_, text = invite(f, l, func(i *Invitation) { i.Kind, i.For, i.Roles = Partner, l.DID(), nil })
	f.Add(text)
	f.Add(Prefix + "oA")
	f.Fuzz(func(t *testing.T, text string) {
		i, err := Parse(text)
		if err != nil {
			wantInvalid(t, "parse", err)
			return
		}
		if len(i.Addresses) == 0 || len(i.Nodes()) == 0 || len(i.Addresses) > MaxAddresses || len(i.Roles) > MaxRoles || i.SCID() == "" {
			t.Errorf("%+v", i)
		}
		_, _ = i.Verify(l), i.Check("lmos", noon, node(1))
	})
}
