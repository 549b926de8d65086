package dht

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	record "github.com/libp2p/go-libp2p-record"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// signedBy signs a small thing.
func signedBy(t testing.TB, key *keystore.Key, seq uint64, lifetime time.Duration) (s *td.Signed, dhtKey string) {
	t.Helper()
	thing, err := td.Complete([]byte(`{"@context":"https://www.w3.org/2022/wot/td/v1.1","title":"Small",
		"securityDefinitions":{"none":{"scheme":"nosec"}},"security":"none"}`), key.DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err = td.Sign(thing, key, td.Lease{Seq: seq, Now: time.Now(), Lifetime: lifetime})
	if err != nil {
		t.Fatal(err)
	}
	return s, valueKeyOf(key.DID(), thing.ID)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	key := testSigner(t, 1)
	s, good := signedBy(t, key, 1, time.Hour)
	tampered := []byte(strings.Replace(string(s.Record), "Small", "Smell", 1))
	restricted, err := td.SignTombstone(key, "urn:x", td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour, Audience: td.Organization}, false)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		key   string
		value []byte
		want  error
	}{
		{"good", good, s.Record, nil},
		{"too large", good, make([]byte, td.MaxRecord+1), td.ErrTooLarge},
		{"empty", good, nil, td.ErrMalformed},
		{"garbage", good, []byte("garbage"), td.ErrMalformed},
		{"cut", good, s.Record[:len(s.Record)-1], td.ErrMalformed},
		{"with more behind", good, append(s.Record[:len(s.Record):len(s.Record)], 0), td.ErrMalformed},
		{"tampered", good, tampered, td.ErrSignature},
		{"restricted", valueKeyOf(key.DID(), "urn:x"), restricted.Record, errAudience},
		{"another thing's key", valueKeyOf(key.DID(), "urn:other"), s.Record, errKey},
		{"another owner's key", valueKeyOf(testSigner(t, 2).DID(), "urn:other"), s.Record, errKey},
		{"a short key", good[:len(good)-1], s.Record, errKey},
		{"a long key", good + "x", s.Record, errKey},
		{"no key", "", s.Record, errKey},
		{"another namespace", "/pk/" + good[len("/lmos-td/"):], s.Record, errKey},
	}
	v := &validator{verifier: td.NewVerifier(did.Keys())}
	for _, tt := range tests {
		if err := v.Validate(tt.key, tt.value); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	all := record.NamespacedValidator{namespaceTD: v}
	if err := all.Validate(good, s.Record); err != nil {
		t.Errorf("in its namespace: %v", err)
	}
	if err := all.Validate("/pk/x", s.Record); !errors.Is(err, record.ErrInvalidRecordType) {
		t.Errorf("in another namespace: got %v", err)
	}
}

func TestValidateAndTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := &validator{verifier: td.NewVerifier(did.Keys())}
		s, key := signedBy(t, testSigner(t, 1), 1, time.Hour)
		if err := v.Validate(key, s.Record); err != nil {
			t.Errorf("at once: %v", err)
		}
		_ = backoff.Sleep(t.Context(), 2*time.Hour)
		if err := v.Validate(key, s.Record); !errors.Is(err, td.ErrExpired) {
			t.Errorf("after its time: got %v", err)
		}
	})
}

func TestSelectKeepsTheFirstOfEquals(t *testing.T) {
	t.Parallel()
	v := &validator{}
	old, key := signedBy(t, testSigner(t, 1), 1, time.Hour)
	newer, _ := signedBy(t, testSigner(t, 1), 2, time.Hour)
	tests := []struct {
		name   string
		values [][]byte
		want   int
	}{
		{"one", [][]byte{old.Record}, 0},
		{"newer last", [][]byte{old.Record, newer.Record}, 1},
		{"newer first", [][]byte{newer.Record, old.Record}, 0},
		{"equal", [][]byte{newer.Record, newer.Record, old.Record}, 0},
		{"garbage first", [][]byte{[]byte("garbage"), nil, old.Record}, 2},
	}
	for _, tt := range tests {
		if got, err := v.Select(key, tt.values); err != nil || got != tt.want {
			t.Errorf("%s: got %d, %v; want %d", tt.name, got, err, tt.want)
		}
	}
	if _, err := v.Select(key, [][]byte{nil, []byte("garbage")}); err == nil {
		t.Error("nothing readable: no error")
	}
}

func TestEquivocationsAreReported(t *testing.T) {
	t.Parallel()
	one, key := signedBy(t, testSigner(t, 1), 5, time.Hour)
	other, _ := signedBy(t, testSigner(t, 1), 5, 2*time.Hour)
	newer, _ := signedBy(t, testSigner(t, 1), 6, time.Hour)
	foreign, _ := signedBy(t, testSigner(t, 2), 5, 2*time.Hour)
	bare, err := one.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		a, b []byte
		want int
	}{
		{"two records with one seq", one.Record, other.Record, 2},
		{"again", other.Record, one.Record, 2},
		{"the same", one.Record, one.Record, 2},
		{"with and without its TD", one.Record, bare.Record, 2},
		{"another seq", one.Record, newer.Record, 2},
		{"another owner", one.Record, foreign.Record, 2},
		{"garbage", one.Record, []byte("garbage"), 2},
		{"another pair", other.Record, bare.Record, 4},
	}
	reported := 0
	v := &validator{verifier: td.NewVerifier(did.Keys()), equivocations: &equivocations{report: func(*td.Signed) { reported++ }}}
	for _, tt := range tests {
		if _, err := v.Select(key, [][]byte{tt.a, tt.b}); err != nil || reported != tt.want {
			t.Errorf("%s: %d records reported, %v; want %d", tt.name, reported, err, tt.want)
		}
	}
	for i := range byte(250) {
		for j := range byte(10) {
			v.equivocations.isNew([]byte{i}, []byte{j})
		}
	}
	if len(v.equivocations.seen) > maxEquivocations {
		t.Errorf("%d equivocations are stored", len(v.equivocations.seen))
	}
}

func FuzzValidate(f *testing.F) {
	key := testSigner(f, 1)
	s, good := signedBy(f, key, 1, time.Hour)
	f.Add(good, s.Record)
	f.Add(good, []byte{})
	f.Add("/lmos-td/", s.Record)
	v := &validator{verifier: td.NewVerifier(did.Keys())}
	f.Fuzz(func(t *testing.T, k string, value []byte) {
		err := v.Validate(k, value)
		if err == nil && k != good {
			t.Error("a record is valid under a key that is not its own")
		}
		_, _ = v.Select(k, [][]byte{value, s.Record})
	})
}

func BenchmarkValidate(b *testing.B) {
	s, key := signedBy(b, testSigner(b, 1), 1, time.Hour)
	b.Run("known", func(b *testing.B) {
		v := &validator{verifier: td.NewVerifier(did.Keys())}
		b.ReportAllocs()
		for b.Loop() {
			if err := v.Validate(key, s.Record); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			v := &validator{verifier: td.NewVerifier(did.Keys())}
			b.StartTimer()
			if err := v.Validate(key, s.Record); err != nil {
				b.Fatal(err)
			}
		}
	})
}
