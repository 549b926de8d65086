package audit

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/rotation"
)

// signs records one change and one denial with a key, and perhaps the rotation to another one.
func signs(t *testing.T, dir string, key *keystore.Key, statement []byte) {
	t.Helper()
	l := open(t, Options{Dir: dir, Signer: key})
	l.Change(ChangeTrust, "with the key "+key.DID().Short())
	l.Decision(Decision{Op: "find", Thing: "x"})
	if statement != nil {
		if err := l.Rotate(statement); err != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
}

func statement(t *testing.T, from, to *keystore.Key) []byte {
	t.Helper()
	raw, err := rotation.Sign(rotation.Statement{Network: "lmos", Created: time.Now()}, from, to)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestVerifyAcrossRotations(t *testing.T) {
	t.Parallel()
	a, b, c := testKey(t, 1), testKey(t, 2), testKey(t, 3)
	type epoch struct {
		key *keystore.Key
		to  *keystore.Key // nil: no statement
	}
	for name, x := range map[string]struct {
		epochs []epoch
		keys   []*keystore.Key
		want   string // empty: it verifies
	}{
		"one rotation":                      {[]epoch{{a, b}, {b, nil}}, []*keystore.Key{b}, ""},
		"two rotations":                     {[]epoch{{a, b}, {b, c}, {c, nil}}, []*keystore.Key{c}, ""},
		"a restart of the old key":          {[]epoch{{a, b}, {a, b}, {b, nil}}, []*keystore.Key{b}, ""},
		"one that was given up":             {[]epoch{{a, b}, {a, c}, {c, nil}}, []*keystore.Key{c}, ""},
		"not switched yet":                  {[]epoch{{a, b}}, []*keystore.Key{a}, ""},
		"the old key only":                  {[]epoch{{a, b}, {b, nil}}, []*keystore.Key{a}, "signed by " + string(b.DID())},
		"no statement":                      {[]epoch{{a, nil}, {b, nil}}, []*keystore.Key{b}, "signed by " + string(a.DID())},
		"a statement about another key":     {[]epoch{{a, c}, {b, nil}}, []*keystore.Key{b}, "signed by " + string(a.DID())},
		"the old key signs afterwards":      {[]epoch{{a, b}, {b, nil}, {a, nil}}, []*keystore.Key{b}, "which " + string(b.DID()) + " has replaced"},
		"a statement that came afterwards":  {[]epoch{{a, nil}, {b, nil}, {a, b}, {b, nil}}, []*keystore.Key{b}, "without a statement of " + string(a.DID())},
		"both keys given, and no statement": {[]epoch{{a, nil}, {b, nil}}, []*keystore.Key{b, a}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "audit")
			for _, e := range x.epochs {
				var s []byte
				if e.to != nil {
					s = statement(t, e.key, e.to)
				}
				signs(t, dir, e.key, s)
			}
			var keys []did.DID
			for _, k := range x.keys {
				keys = append(keys, k.DID())
			}
			r, err := Verify(dir, Check{Keys: keys})
			text := fmt.Sprint(r.Problems)
			if (err == nil) != (x.want == "") || !strings.Contains(text, x.want) {
				t.Errorf("%v: %s; want %q", err, text, x.want)
			}
		})
	}
}

func TestRotateRejects(t *testing.T) {
	t.Parallel()
	l := open(t, Options{Dir: filepath.Join(t.TempDir(), "audit"), Signer: testKey(t, 1)})
	defer closeLog(t, l)
	for name, raw := range map[string][]byte{"no statement": nil, "of another node": statement(t, testKey(t, 2), testKey(t, 3))} {
		if l.Rotate(raw) == nil {
			t.Errorf("%s was recorded", name)
		}
	}
	if err := (*Log)(nil).Rotate(nil); err != nil {
		t.Error(err)
	}
}
