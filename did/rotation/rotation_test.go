package rotation

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/cbor"
)

func key(t testing.TB, n byte) *keystore.Key {
	t.Helper()
	k, err := keystore.FromSeed([32]byte{n})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var created = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func sample(t testing.TB) []byte {
	t.Helper()
	raw, err := Sign(Statement{Network: "lmos", SCID: "QmYs", Created: created}, key(t, 1), key(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestStatement(t *testing.T) {
	t.Parallel()
	raw := sample(t)
	s, err := Parse(raw)
	want := Statement{"lmos", "QmYs", key(t, 1).DID(), key(t, 2).DID(), created}
	if err != nil || *s != want {
		t.Fatalf("got %+v, %v", s, err)
	}
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= 1
		if s, err := Parse(changed); err == nil {
			t.Errorf("with byte %d changed, it is %+v", i, s)
		}
	}
	for _, c := range []struct {
		now  time.Time
		want bool
	}{{created, true}, {created.Add(Life), true}, {created.Add(Life + Skew + 1), false}, {created.Add(-Skew - 1), false}} {
		if s.IsCurrent(c.now) != c.want {
			t.Errorf("at %s: not %t", c.now, c.want)
		}
	}
}

func TestRejectedStatements(t *testing.T) {
	t.Parallel()
	// made returns a statement with a change before it is signed, and one after.
	made := func(before, after func(w *wire)) []byte {
		w := wire{1, "lmos", "", string(key(t, 1).DID()), string(key(t, 2).DID()), created.Unix(), nil, nil}
		before(&w)
		signed, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		w.Old, _ = key(t, 1).Sign(did.PurposeRotation, signed)
		w.New, _ = key(t, 2).Sign(did.PurposeRotation, signed)
		after(&w)
		raw, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	none := func(*wire) {}
	if _, err := Parse(made(none, none)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"the new key did not sign":    {made(none, func(w *wire) { w.New = nil }), "not signed by its new key"},
		"the old key did not sign":    {made(none, func(w *wire) { w.Old = w.New }), "not signed by its old key"},
		"the signatures are swapped":  {made(none, func(w *wire) { w.Old, w.New = w.New, w.Old }), "not signed by its old key"},
		"another successor":           {made(none, func(w *wire) { w.To = string(key(t, 3).DID()) }), "not signed"},
		"one key":                     {made(func(w *wire) { w.To = w.From }, none), "names one key twice"},
		"a weak key":                  {made(func(w *wire) { w.To = "did:key:z6MkeTG3bFFSLYVU7VqhgZxqr6YzpaGrQtFMh1uvqGy1vDnP" }, none), "new key"},
		"no did:key":                  {made(func(w *wire) { w.From = "did:web:acme.example" }, none), "old key"},
		"another version":             {made(func(w *wire) { w.Version = 2 }, none), "version 2"},
		"no network":                  {made(func(w *wire) { w.Network = "" }, none), "beyond its limits"},
		"a long network":              {made(func(w *wire) { w.Network = strings.Repeat("a", 65) }, none), "beyond its limits"},
		"no time":                     {made(func(w *wire) { w.Created = 0 }, none), "beyond its limits"},
		"bytes behind it":             {append(made(none, none), 0), "not a rotation"},
		"nothing":                     {nil, "not a rotation"},
		"more than the largest":       {make([]byte, MaxSize+1), "at most"},
		"a record instead of a claim": {[]byte("\xa1\x01\x02"), "not a rotation"},
	} {
		if s, err := Parse(c.raw); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	dir, raw, old, fresh := t.TempDir(), sample(t), key(t, 1).DID(), key(t, 2).DID()
	if p, err := Load(dir); p != nil || err != nil || p.Other(old) != "" || p.Follows(fresh) {
		t.Fatalf("an empty folder has %v, %v", p, err)
	}
	p, err := Request(dir, raw)
	if err != nil || p.Confirmed || p.Follows(fresh) {
		t.Fatal(p, err)
	}
	if c, err := p.Confirm([]byte("{}")); err != nil || !c.Follows(fresh) || p.Follows(fresh) {
		t.Fatalf("%+v from %+v, %v", c, p, err)
	}
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	p, err = Load(dir)
	if err != nil || !p.Confirmed || string(p.Credential) != "{}" || p.Other(old) != fresh || p.Other(fresh) != old || p.Other(key(t, 3).DID()) != "" ||
		p.Follows(old) || !p.Follows(fresh) {
		t.Fatalf("%+v, %v", p, err)
	}
	if err := p.Done(); err != nil {
		t.Fatal(err)
	}
	if p, err := Load(dir); p != nil || err != nil {
		t.Errorf("after the end: %v, %v", p, err)
	}
	for _, text := range []string{"", "{}", `{"format":2}`, `{"format":1,"statement":"AA=="}`, strings.Repeat(" ", maxFile+1)} {
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := Load(dir); err == nil {
			t.Errorf("%.40q is %+v", text, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample(f))
	f.Add([]byte("\xa0"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Parse(raw)
		if err != nil {
			return
		}
		if s.From == s.To || s.Network == "" || len(raw) > MaxSize {
			t.Errorf("%x is %+v", raw, s)
		}
	})
}
