package vc

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/jcs"
)

const (
	acme  = did.DID("did:webvh:QmPEQVM1JPTyrvEgBcDXwjK4TeyLGSX1PxjgyeAisdWM1p:acme.example")
	lists = "https://acme.example/status/i1"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// key returns the nth test key.
func key(n byte) *keystore.Key { return didtest.Key(int(n)) }

// documents resolves organizations whose key #i1 is the test key.
type documents map[did.DID]*keystore.Key

func (d documents) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	k, ok := d[id]
	if !ok {
		return nil, did.ErrNotFound
	}
	method := did.VerificationMethod{ID: string(id) + "#i1", Type: "Multikey", Controller: id, KeyType: did.Ed25519, PublicKey: k.Public()}
	return &did.Document{ID: id, VerificationMethod: []did.VerificationMethod{method}, AssertionMethod: []string{method.ID}}, nil
}

var atNoon = Check{Resolver: documents{acme: key(1)}, Now: noon}

func template() Credential {
	return Credential{Type: Node, Issuer: acme, Subject: key(2).DID(), Roles: []string{"node", "customer-service"}, From: noon.Add(-time.Hour),
		Until: noon.Add(23 * time.Hour), Status: Status{lists, 42}}
}

func issue(t testing.TB, change func(*Credential)) *Credential {
	t.Helper()
	c := template()
	if change != nil {
		change(&c)
	}
	out, err := Issue(c, key(1), string(acme)+"#i1")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCredentialVerifies(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Credential){
		"node":  nil,
		"agent": func(c *Credential) { c.Type, c.Host = Agent, key(3).DID() },
	} {
		c := issue(t, change)
		got, err := Verify(t.Context(), c.Raw, atNoon)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Subject != c.Subject || got.Host != c.Host || got.Issuer != acme || got.Method != string(acme)+"#i1" || got.ID != c.ID || got.Type != c.Type ||
			!slices.Equal(got.Roles, c.Roles) || !got.From.Equal(c.From) || !got.Until.Equal(c.Until) || got.Status != c.Status || !bytes.Equal(got.Raw, c.Raw) {
			t.Errorf("%s: issued %+v, verified %+v", name, c, got)
		}
		if !got.HasRole("customer-service") || got.HasRole("customer") {
			t.Errorf("%s: roles %v", name, got.Roles)
		}
	}
	if n := len(issue(t, nil).Raw); n > 1200 {
		t.Errorf("a credential has %d bytes", n)
	}
}

// edit returns a credential whose content was changed before it was signed by the test key n as #i1.
func edit(t testing.TB, n byte, change func(doc map[string]any)) []byte {
	t.Helper()
	doc, err := jcs.Object(issue(t, nil).Raw, MaxCredential)
	if err != nil {
		t.Fatal(err)
	}
	delete(doc, "proof")
	change(doc)
	raw, err := sign(doc, key(n), string(acme)+"#i1", noon)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func subject(name string, v any) func(map[string]any) {
	return func(doc map[string]any) { doc["credentialSubject"].(map[string]any)[name] = v }
}

func status(name string, v any) func(map[string]any) {
	return func(doc map[string]any) { doc["credentialStatus"].(map[string]any)[name] = v }
}

func member(name string, v any) func(map[string]any) {
	return func(doc map[string]any) { doc[name] = v }
}

func TestWrongCredentialsAreRejected(t *testing.T) {
	t.Parallel()
	raw := string(issue(t, nil).Raw)
	unsigned := func() []byte {
		doc, err := jcs.Object([]byte(raw), MaxCredential)
		if err != nil {
			t.Fatal(err)
		}
		delete(doc, "proof")
		out, err := jcs.Append(nil, doc)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}()
	for name, c := range map[string]struct {
		raw  []byte
		want error
		text string
	}{
		"expired": {issue(t, func(c *Credential) { c.From, c.Until = noon.Add(-24*time.Hour), noon.Add(-Skew-time.Second) }).Raw, ErrExpired, "ago"},
		"not valid yet": {edit(t, 1, func(d map[string]any) {
			d["validFrom"], d["validUntil"] = stamp(noon.Add(6*time.Minute)), stamp(noon.Add(time.Hour))
		}), ErrTime, "compare the clocks"},
		"signed in the future": {issue(t, func(c *Credential) { c.From = noon.Add(time.Hour) }).Raw, ErrTime, "clocks"},
		"for a year":           {edit(t, 1, member("validUntil", "2027-11-20T12:00:00Z")), ErrInvalid, "more than"},
		"without an end":       {edit(t, 1, func(d map[string]any) { delete(d, "validUntil") }), ErrInvalid, "validUntil"},
		"an end before start":  {edit(t, 1, member("validUntil", "2026-11-01T12:00:00Z")), ErrInvalid, "not after"},
		"a time without zone":  {edit(t, 1, member("validFrom", "2026-11-20T12:00:00")), ErrInvalid, "validFrom"},
		"unknown issuer": {edit(t, 1, func(d map[string]any) {
			evil := strings.Replace(string(acme), "acme", "evil", 1)
			d["issuer"] = evil
			subject("memberOf", evil)(d)
		}), ErrInvalid, "signed by"},
		"no issuer":             {edit(t, 1, func(d map[string]any) { delete(d, "issuer") }), ErrInvalid, "issuer"},
		"another key":           {edit(t, 7, func(map[string]any) {}), ErrInvalid, "does not verify"},
		"no proof":              {unsigned, ErrInvalid, "no proof"},
		"empty array of proofs": {[]byte(strings.Replace(string(unsigned), `{"@context"`, `{"proof":[],"@context"`, 1)), ErrInvalid, "array of 1"},
		"unknown suite":         {[]byte(strings.Replace(raw, "eddsa-jcs-2022", "eddsa-rdfc-2022", 1)), ErrInvalid, "cryptosuite"},
		"wrong purpose":         {[]byte(strings.Replace(raw, "assertionMethod", "authentication", 1)), ErrInvalid, "proofPurpose"},
		"roles added later":     {[]byte(strings.Replace(raw, `"node"`, `"admin"`, 1)), ErrInvalid, "does not verify"},
		"another context":       {edit(t, 1, member("@context", []any{"https://www.w3.org/2018/credentials/v1"})), ErrInvalid, "@context"},
		"inline context":        {edit(t, 1, member("@context", []any{contextV2, map[string]any{"roles": "x"}})), ErrInvalid, "not a URL"},
		"another type":          {edit(t, 1, member("type", []any{"VerifiableCredential", "DriversLicense"})), ErrInvalid, "the type is not"},
		"no id":                 {edit(t, 1, member("id", 1.0)), ErrInvalid, "no id"},
		"subject is a domain":   {edit(t, 1, subject("id", "did:web:acme.example")), ErrInvalid, "did:key"},
		"weak subject key":      {edit(t, 1, subject("id", "did:key:z6MkeTG3bFFSLYVU7VqhgZxqr6YzpaGrQtFMh1uvqGy1vDnP")), ErrInvalid, "credentialSubject.id"},
		"two subjects":          {edit(t, 1, member("credentialSubject", []any{})), ErrInvalid, "not an object"},
		"member of another":     {edit(t, 1, subject("memberOf", "did:web:evil.example")), ErrInvalid, "memberOf"},
		"name with #":           {edit(t, 1, subject("roles", []any{"a#b"})), ErrInvalid, "invalid"},
		"role twice":            {edit(t, 1, subject("roles", []any{"a", "a"})), ErrInvalid, "repeated"},
		"too many roles":        {edit(t, 1, subject("roles", slices.Repeat([]any{"a"}, MaxRoles+1))), ErrInvalid, "at most"},
		"no roles":              {edit(t, 1, subject("roles", nil)), ErrInvalid, "not an array"},
		"agent without host":    {edit(t, 1, member("type", []any{"VerifiableCredential", Agent})), ErrInvalid, "host"},
		"no status":             {edit(t, 1, func(d map[string]any) { delete(d, "credentialStatus") }), ErrInvalid, "credentialStatus"},
		"status to suspend":     {edit(t, 1, status("statusPurpose", "suspension")), ErrInvalid, "revocation"},
		"status of two bits":    {edit(t, 1, status("statusSize", 2.0)), ErrInvalid, "statusSize"},
		"index as number":       {edit(t, 1, status("statusListIndex", 42.0)), ErrInvalid, "as text"},
		"index below zero":      {edit(t, 1, status("statusListIndex", "-1")), ErrInvalid, "as text"},
		"index with zeros":      {edit(t, 1, status("statusListIndex", "042")), ErrInvalid, "as text"},
		"status without list":   {edit(t, 1, status("statusListCredential", "")), ErrInvalid, "no list"},
		"not JSON":              {[]byte("{"), ErrInvalid, ""},
		"too large":             {[]byte(strings.Repeat(" ", MaxCredential+1)), ErrInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Verify(t.Context(), c.raw, atNoon)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.text)
			}
		})
	}
	if _, err := Verify(t.Context(), []byte(raw), Check{Resolver: documents{}, Now: noon}); !errors.Is(err, did.ErrNotFound) {
		t.Errorf("an issuer without a document: %v", err)
	}
}

func TestChangedCredentialsAreRejected(t *testing.T) {
	t.Parallel()
	c := issue(t, nil)
	for i := range c.Raw {
		changed := bytes.Clone(c.Raw)
		changed[i] ^= 1
		if got, err := Verify(t.Context(), changed, atNoon); err == nil && !bytes.Equal(got.Raw, c.Raw) {
			t.Fatalf("byte %d: %q verifies", i, changed[i])
		}
	}
}

func TestIssueRejectsWhatReadersReject(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Credential){
		"role with a space": func(c *Credential) { c.Roles = []string{"a b"} },
		"no subject":        func(c *Credential) { c.Subject = "" },
		"for two months":    func(c *Credential) { c.Until = c.From.Add(60 * 24 * time.Hour) },
		"no list":           func(c *Credential) { c.Status = Status{} },
	} {
		c := template()
		change(&c)
		if _, err := Issue(c, key(1), string(acme)+"#i1"); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func issueList(t testing.TB, l *List) *List {
	t.Helper()
	out, err := IssueList(l, 7, noon, noon.Add(time.Hour), key(1), string(acme)+"#i1")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestListRevokes(t *testing.T) {
	t.Parallel()
	c, other := issue(t, nil), issue(t, func(c *Credential) { c.Status.Index, c.Subject = 43, key(4).DID() })
	plain := NewList(lists, acme)
	revoked := plain.With(42)
	if plain.IsSet(42) {
		t.Fatal("With changed its receiver")
	}
	got, err := VerifyList(t.Context(), issueList(t, revoked).Raw, atNoon)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != 7 || got.Len() != MinEntries || !got.Revokes(c, noon) || got.Revokes(other, noon) {
		t.Errorf("version %d, %d entries, revokes %v and %v", got.Version, got.Len(), got.Revokes(c, noon), got.Revokes(other, noon))
	}
	excluded := plain.With()
	excluded.Revoked = map[did.DID]time.Time{key(4).DID(): noon.Add(30 * 24 * time.Hour), key(5).DID(): noon.Add(-time.Hour)}
	got, err = VerifyList(t.Context(), issueList(t, excluded).Raw, atNoon)
	if err != nil || got.Revokes(c, noon) || !got.Revokes(other, noon) || got.Revokes(other, noon.Add(31*24*time.Hour)) || len(got.Revoked) != 1 {
		t.Errorf("excluded %v: %v", got.Revoked, err)
	}
	agent := issue(t, func(c *Credential) { c.Type, c.Host, c.Status.Index = Agent, key(4).DID(), 44 })
	if !got.Revokes(agent, noon) {
		t.Error("the agent of a revoked node is not revoked")
	}
	if got := plain.Missing(revoked); !slices.Equal(got, []int{42}) || len(revoked.Missing(plain)) > 0 || len(revoked.Missing(revoked)) > 0 {
		t.Errorf("the plain list lacks %v", got)
	}
	foreign := issue(t, nil)
	foreign.Issuer = "did:web:other.example"
	if revoked.Revokes(foreign, noon) {
		t.Error("a list revokes the credentials of another issuer")
	}
	beyond := issue(t, func(c *Credential) { c.Status.Index = MinEntries })
	if !plain.Revokes(beyond, noon) {
		t.Error("an index beyond the list is not revoked")
	}
}

func TestBitOrder(t *testing.T) {
	t.Parallel()
	// Index 0 is the left-most bit of the first byte (Bitstring Status List §3.2).
	if l := NewList(lists, acme).With(0, 15); l.bits[0] != 0x80 || l.bits[1] != 1 {
		t.Errorf("bits %x", l.bits[:2])
	}
}

func TestWrongListsAreRejected(t *testing.T) {
	t.Parallel()
	base := issueList(t, NewList(lists, acme))
	change := func(f func(doc map[string]any)) []byte {
		doc, err := jcs.Object(base.Raw, MaxList)
		if err != nil {
			t.Fatal(err)
		}
		delete(doc, "proof")
		f(doc)
		raw, err := sign(doc, key(1), string(acme)+"#i1", noon)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	short := NewList(lists, acme)
	short.bits = short.bits[1:]
	bomb := encode(make([]byte, maxBits+1))
	for name, c := range map[string]struct {
		raw  []byte
		text string
	}{
		"too short":          {change(subject("encodedList", encode(short.bits))), "fewer than"},
		"too long":           {change(subject("encodedList", bomb)), "more than"},
		"no multibase":       {change(subject("encodedList", encode(short.bits)[1:])), "multibase"},
		"not compressed":     {change(subject("encodedList", "uAAAA")), "encodedList"},
		"cut":                {change(subject("encodedList", encode(NewList(lists, acme).bits)[:40])), "encodedList"},
		"for suspension":     {change(subject("statusPurpose", "suspension")), "revocation"},
		"a credential":       {issue(t, nil).Raw, "the type is not"},
		"no version":         {change(subject("version", nil)), "version"},
		"version as text":    {change(subject("version", "7")), "version"},
		"revoked is text":    {change(subject("revoked", "x")), "revoked"},
		"revoked has no id":  {change(subject("revoked", []any{map[string]any{"until": stamp(noon)}})), "revoked"},
		"revoked has no end": {change(subject("revoked", []any{map[string]any{"id": string(key(2).DID())}})), "until"},
		"too many revoked":   {change(subject("revoked", slices.Repeat([]any{1.0}, MaxRevoked+1))), "at most"},
		"another issuer":     {change(member("issuer", "did:web:evil.example")), "signed by"},
		"without an id":      {change(member("id", nil)), "no id"},
		"not valid yet": {change(func(d map[string]any) {
			maps.Copy(d, map[string]any{"validFrom": stamp(noon.Add(time.Hour)), "validUntil": stamp(noon.Add(2 * time.Hour))})
		}), "not valid yet"},
		"subject is a number": {change(member("credentialSubject", 1.0)), "credentialSubject"},
	} {
		if _, err := VerifyList(t.Context(), c.raw, atNoon); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	late := atNoon
	late.Now = noon.Add(2 * time.Hour)
	if l, err := VerifyList(t.Context(), base.Raw, late); !errors.Is(err, ErrExpired) || l == nil {
		t.Errorf("an expired list: %v, %v", l, err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte(issue(f, nil).Raw))
	f.Add([]byte(issueList(f, NewList(lists, acme).With(3)).Raw))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := Verify(t.Context(), raw, atNoon); err == nil {
			if again, err := Verify(t.Context(), c.Raw, atNoon); err != nil || again.ID != c.ID {
				t.Fatalf("a verified credential does not verify again: %v", err)
			}
		}
		if l, err := VerifyList(t.Context(), raw, atNoon); err == nil {
			if again, err := VerifyList(t.Context(), l.Raw, atNoon); err != nil || again.Len() != l.Len() {
				t.Fatalf("a verified list does not verify again: %v", err)
			}
		}
		if doc, err := jcs.Object(raw, MaxList); err == nil {
			_, _ = read(doc)
			_, _ = readList(doc)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	c := issue(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Verify(b.Context(), c.Raw, atNoon); err != nil {
			b.Fatal(err)
		}
	}
}
