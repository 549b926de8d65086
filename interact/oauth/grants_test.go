package oauth

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
)

func loaded(t *testing.T) Grants {
	t.Helper()
	s, err := credentials.Load(filepath.Join(t.TempDir(), "data", "credentials.json"))
	if err != nil {
		t.Fatal(err)
	}
	return GrantsOf(s)
}

// What is granted is there after a restart, the latest first, one of each issuer, and only its owner can read it.
func TestGrantsAreKept(t *testing.T) {
	t.Parallel()
	s := loaded(t)
	for i, g := range []Grant{{Issuer: "a", Access: "1"}, {Issuer: "b", Access: "2", Refresh: "r", Expires: time.Unix(9e9, 0).UTC(), Scopes: []string{"x"}},
		{Issuer: "a", Access: "3"}} {
		if err := s.Keep(t.Context(), "thing", g); err != nil {
			t.Fatal(i, err)
		}
	}
	again := Grants{s.Path()}
	all := again.Of("thing")
	if len(all) != 2 || all[0].Access != "3" || all[1].Refresh != "r" || !all[1].Expires.Equal(time.Unix(9e9, 0)) || all[0].Granted.IsZero() || again.Of("other") != nil {
		t.Errorf("kept is %d: %v", len(all), all)
	}
	for i := range 2 * maxIssuers {
		if err := s.Keep(t.Context(), "thing", Grant{Issuer: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if all := s.Of("thing"); len(all) != maxIssuers || all[0].Issuer != fmt.Sprint(2*maxIssuers-1) {
		t.Errorf("kept is %v", all)
	}
	if info, err := os.Stat(s.Path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

// A forgotten grant is removed, does not return when a holder renews it, and removes no other grant.
func TestForgottenGrants(t *testing.T) {
	t.Parallel()
	s := loaded(t)
	if gone, err := s.Forget(t.Context(), "thing"); err != nil || gone != nil {
		t.Errorf("where nothing is kept %v is forgotten, %v", gone, err)
	}
	for _, issuer := range []string{"a", "b"} {
		for _, thing := range []string{"thing", "other"} {
			if err := s.Keep(t.Context(), thing, Grant{Issuer: issuer, Access: "1"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if kept, err := s.Renew(t.Context(), "thing", Grant{Issuer: "a", Access: "2"}); err != nil || !kept || s.Of("thing")[0].Access != "2" {
		t.Errorf("renewed is %v, %v", s.Of("thing"), err)
	}
	if gone, err := s.Forget(t.Context(), "thing"); err != nil || len(gone) != 2 || gone[0].Access != "2" {
		t.Errorf("forgotten is %v, %v", gone, err)
	}
	if kept, err := s.Renew(t.Context(), "thing", Grant{Issuer: "a", Access: "3"}); err != nil || kept {
		t.Errorf("it came back, %v", err)
	}
	if all, err := s.All(); err != nil || len(all) != 1 || len(all["other"]) != 2 {
		t.Errorf("kept is %v, %v", all, err)
	}
	if all, err := (Grants{}).All(); err != nil || len(all) != 0 {
		t.Errorf("without a file %v is kept, %v", all, err)
	}
	if _, err := (Grants{}).Forget(t.Context(), "thing"); interact.AsError(err).Code != interact.ConfigFile {
		t.Errorf("without a file: %v", err)
	}
}

// Those that write at once lose nothing.
func TestGrantsOfManyAtOnce(t *testing.T) {
	t.Parallel()
	s := loaded(t)
	var work sync.WaitGroup
	for i := range 16 {
		work.Go(func() {
			other := Grants{s.Path()} // as another process has it
			if err := other.Keep(t.Context(), fmt.Sprint("thing ", i), Grant{Issuer: "a", Access: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for i := range 16 {
		if all := s.Of(fmt.Sprint("thing ", i)); len(all) != 1 || all[0].Access != fmt.Sprint(i) {
			t.Errorf("thing %d has %d", i, len(all))
		}
	}
}

// A file that cannot be used is an error that says what to do, has no secret in it, and is not written over.
func TestBadGrants(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content string
		mode    os.FileMode
		code    interact.Code
	}{
		"others read it":  {`{}`, 0o644, interact.KeyPermissions},
		"it is no JSON":   {`{"secret`, 0o600, interact.ConfigInvalid},
		"it is nothing":   {`null`, 0o600, interact.ConfigInvalid},
		"of another kind": {`{"thing":"secret"}`, 0o600, interact.ConfigInvalid},
	} {
		s := loaded(t)
		if err := os.MkdirAll(filepath.Dir(s.Path()), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.Path(), []byte(test.content), test.mode); err != nil {
			t.Fatal(err)
		}
		err := s.Keep(t.Context(), "thing", Grant{Issuer: "a"})
		if e := interact.AsError(err); err == nil || e.Code != test.code || strings.Contains(e.Error(), "secret") || e.Hint == "" && e.Next == nil || s.Of("thing") != nil {
			t.Errorf("%s: %v", name, err)
		}
		if raw, err := os.ReadFile(s.Path()); err != nil || string(raw) != test.content {
			t.Errorf("%s: it was written over: %s, %v", name, raw, err)
		}
	}
	if err := (Grants{}).Keep(t.Context(), "thing", Grant{}); interact.AsError(err).Code != interact.ConfigFile || (Grants{}).Of("thing") != nil {
		t.Errorf("without a file: %v", err)
	}
}

// What an authorization server grants does not take the room of what others did: a file that is too long would not be read again.
func TestLargeGrants(t *testing.T) {
	t.Parallel()
	s := loaded(t)
	if err := s.Keep(t.Context(), "first", Grant{Issuer: "a", Access: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(t.Context(), "greedy", Grant{Issuer: "b", Access: strings.Repeat("<", 1<<20)}); interact.AsError(err).Code != interact.TooLarge {
		t.Errorf("a large grant: %v", err)
	}
	full := `{"first":[{"issuer":"a","access_token":"1"}],"second":[{"issuer":"b","access_token":"` + strings.Repeat("x", maxFile-maxGrant/2) + `"}]}`
	if err := os.WriteFile(s.Path(), []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	err := s.Keep(t.Context(), "third", Grant{Issuer: "c", Access: strings.Repeat("x", maxGrant-512)})
	if interact.AsError(err).Code != interact.Overloaded {
		t.Errorf("one too many: %v", err)
	}
	if all := s.Of("first"); len(all) != 1 || all[0].Access != "1" {
		t.Errorf("the first has %v", all)
	}
}

// A process that holds the file is not waited for without end.
func TestGrantsWait(t *testing.T) {
	t.Parallel()
	s := loaded(t)
	if err := s.Keep(t.Context(), "thing", Grant{Issuer: "a"}); err != nil {
		t.Fatal(err)
	}
	lock := flock.New(s.Path() + ".lock")
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if err := s.Keep(ctx, "thing", Grant{Issuer: "b"}); interact.AsError(err).Code != interact.ConfigFile || slices.ContainsFunc(s.Of("thing"),
		func(g Grant) bool { return g.Issuer == "b" }) {
		t.Errorf("it was written under a lock: %v", err)
	}
}

// Nothing that prints a grant prints its secrets.
func TestGrantsPrintNoSecrets(t *testing.T) {
	t.Parallel()
	g := Grant{Issuer: "https://as.example", Access: "secret", Refresh: "secret", ClientSecret: "secret"}
	if said := fmt.Sprintf("%v %+v %#v %s %v", g, g, g, g, g.LogValue()); strings.Contains(said, "secret") || !strings.Contains(said, "as.example") {
		t.Error(said)
	}
}
