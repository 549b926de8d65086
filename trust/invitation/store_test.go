package invitation

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A clock is a time that a test sets.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func openStore(t testing.TB, path string, c *clock) *Store {
	t.Helper()
	s, err := OpenStore(path, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// issued returns a store with an invitation.
func issued(t testing.TB, uses int, change func(*Invitation)) (*Store, *Invitation, *clock) {
	t.Helper()
	c := &clock{noon}
	s := openStore(t, filepath.Join(t.TempDir(), "invitations.json"), c)
	i, _ := invite(t, newLog(t, 2), change)
	if err := s.Add(i, uses); err != nil {
		t.Fatal(err)
	}
	return s, i, c
}

func redeem(t testing.TB, s *Store, i *Invitation, by did.DID) {
	t.Helper()
	got, err := s.Redeem(i.Secret, i.Kind, by)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != i.ID() || got.Kind != i.Kind || len(got.Roles) != len(i.Roles) {
		t.Errorf("redeemed %+v", got)
	}
}

func TestRedeem(t *testing.T) {
	t.Parallel()
	s, i, c := issued(t, 2, nil)
	info, err := os.Stat(s.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if b, _ := os.ReadFile(s.path); strings.Contains(string(b), string(i.Secret[:])) || !strings.Contains(string(b), i.ID()) {
		t.Errorf("the file: %s", b)
	}
	redeem(t, s, i, node(5))
	c.at = noon.Add(time.Hour)
	redeem(t, s, i, node(5)) // the response was lost
	s = openStore(t, s.path, c)
	redeem(t, s, i, node(5))
	if left := s.List()[0]; left.Uses != 1 || len(left.Redeemed) != 1 || left.Redeemed[0].By != node(5) {
		t.Errorf("%+v", left)
	}
	redeem(t, s, i, node(6))
	for range 2 {
		_, err = s.Redeem(i.Secret, Node, node(7))
		wantInvalid(t, "used", err, "was used already, on 2026-11-20T13:00:00Z")
		s = openStore(t, s.path, c)
	}
	redeem(t, s, i, node(5))
	c.at = noon.Add(Life + time.Hour)
	for _, n := range []int{5, 7} {
		_, err = s.Redeem(i.Secret, Node, node(n))
		wantInvalid(t, "expired", err, "expired")
	}
}

func TestRedeemRejects(t *testing.T) {
	t.Parallel()
	s, i, _ := issued(t, 1, func(i *Invitation) { i.For = node(5) })
	_, err := s.Redeem([16]byte{1}, Node, node(5))
	wantInvalid(t, "unknown", err, "does not know")
	_, err = s.Redeem(i.Secret, Node, node(6))
	wantInvalid(t, "for another node", err, "for another node")
	_, err = s.Redeem(i.Secret, Partner, node(5))
	wantInvalid(t, "of another kind", err, "for a node, not for a partner")
	redeem(t, s, i, node(5))

	s, i, _ = issued(t, 1, nil)
	for _, id := range []string{"", "abc", i.ID() + "0", "zzzzzz"} {
		if ok, err := s.Revoke(id); ok || err != nil {
			t.Errorf("revoked %q: %v", id, err)
		}
	}
	if ok, err := s.Revoke(i.ID()[:6]); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err = openStore(t, s.path, &clock{noon}).Redeem(i.Secret, Node, node(5))
	wantInvalid(t, "revoked", err, "revoked")
}

func TestAddRejects(t *testing.T) {
	t.Parallel()
	s, i, c := issued(t, 1, nil)
	bound, _ := invite(t, newLog(t, 2), func(i *Invitation) { i.For = node(5) })
	for name, err := range map[string]error{"no use": s.Add(i, 0), "too many uses": s.Add(i, MaxUses+1), "two uses of one node": s.Add(bound, 2)} {
		if e, ok := errors.AsType[*interact.Error](err); !ok || e.Code != interact.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.all = make([]Issued, maxIssued)
	for n := range s.all {
		s.all[n].Expires = noon
	}
	if err := s.Add(i, 1); err == nil {
		t.Error("stored more than the limit")
	}
	c.at = noon.Add(keepFor + time.Hour)
	if err := s.Add(i, 1); err != nil || len(s.List()) != 1 {
		t.Errorf("old invitations are not forgotten: %v, %d", err, len(s.List()))
	}
}

// Of many that redeem at the same time, as many succeed as there are uses.
func TestRedeemIsAtomic(t *testing.T) {
	t.Parallel()
	s, i, _ := issued(t, 3, nil)
	var wg sync.WaitGroup
	var ok atomic.Int32
	for n := range 12 {
		wg.Go(func() {
			if _, err := s.Redeem(i.Secret, Node, node(100+n)); err == nil {
				ok.Add(1)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 3 || s.List()[0].Uses != 0 {
		t.Errorf("%d redeemed, %d left", ok.Load(), s.List()[0].Uses)
	}
}

// A use that is not durable did not happen.
func TestRedeemNeedsTheDisk(t *testing.T) {
	t.Parallel()
	s, i, c := issued(t, 1, nil)
	dir := filepath.Dir(s.path)
	if err := errors.Join(os.Rename(s.path, s.path+".aside"), os.MkdirAll(filepath.Join(s.path, "x"), 0o700)); err != nil { // nothing replaces a folder
		t.Fatal(err)
	}
	_, err := s.Redeem(i.Secret, Node, node(5))
	if err == nil || s.List()[0].Uses != 1 {
		t.Errorf("redeemed without the disk: %v", err)
	}
	if err := errors.Join(os.RemoveAll(s.path), os.Rename(s.path+".aside", s.path)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".invitations.json12"), []byte(`{"form`), 0o600); err != nil { // half written before a crash
		t.Fatal(err)
	}
	redeem(t, openStore(t, s.path, c), i, node(6))
}

func TestOpenStoreRejects(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 32)
	for name, text := range map[string]string{
		"cut":              `{"format":1,"invitations":[{"id":`,
		"a later format":   `{"format":2}`,
		"a short id":       `{"format":1,"invitations":[{"id":"ab","kind":1,"uses":1}]}`,
		"an unknown kind":  `{"format":1,"invitations":[{"id":"` + id + `","kind":3,"uses":1}]}`,
		"a negative use":   `{"format":1,"invitations":[{"id":"` + id + `","kind":1,"uses":-1}]}`,
		"used by none":     `{"format":1,"invitations":[{"id":"` + id + `","kind":1,"uses":0}]}`,
		"an invalid role":  `{"format":1,"invitations":[{"id":"` + id + `","kind":1,"uses":1,"roles":["Boss"]}]}`,
		"empty":            ``,
		"something else":   `[]`,
		"too large a file": strings.Repeat(" ", maxStore+1),
	} {
		path := filepath.Join(t.TempDir(), "invitations.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenStore(path, nil)
		if e, ok := errors.AsType[*interact.Error](err); !ok || e.Code != interact.StoreCorrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenStore(t.TempDir(), nil); err == nil {
		t.Error("opened a folder")
	}
}

func FuzzParseStore(f *testing.F) {
	s, i, _ := issued(f, 2, nil)
	redeem(f, s, i, node(5))
	raw, err := os.ReadFile(s.path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"format":1,"invitations":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parseStore(raw)
		if err != nil {
			return
		}
		s := &Store{path: filepath.Join(t.TempDir(), "i.json"), now: func() time.Time { return noon }, all: all}
		_, _ = s.Redeem(i.Secret, Node, node(6))
		_ = s.List()
	})
}
