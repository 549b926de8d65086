package sessions

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
)

// user is a maker without a token.
var user = Maker{Principal: did.Consumer(did.Socket, "uid:1000")}

// begin begins a session of m with rights.
func begin(t *testing.T, s *Store, m Maker, r Rights) (n *Session, cookie, key string) {
	t.Helper()
	code, _ := s.NewLink(m, r)
	n, cookie, key, err := s.Begin(code, Admin)
	if err != nil {
		t.Fatal(err)
	}
	return n, cookie, key
}

// refused fails unless the code begins no session.
func refused(t *testing.T, s *Store, why, code string) {
	t.Helper()
	if n, _, _, err := s.Begin(code, Admin); n != nil || interact.AsError(err).Code != interact.Unauthenticated {
		t.Errorf("%s: got %+v, %v", why, n, err)
	}
}

// ended fails unless a session has ended for a reason.
func ended(t *testing.T, n *Session, why string) {
	t.Helper()
	if cause := context.Cause(n.Context()); cause == nil || !strings.Contains(cause.Error(), why) || interact.AsError(cause).Code != interact.Unauthenticated {
		t.Errorf("the session ended with %v, want %q", cause, why)
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	s := New()
	defer s.Close()
	n, cookie, key := begin(t, s, user, Call)
	other, cookie2, key2 := begin(t, s, user, Admin)
	if n.Rights != Call || other.Rights != Admin || n.Principal.Via != did.Session || n.Principal.ID() != "local#uid:1000" || n.Principal.Scoped() {
		t.Errorf("got %+v and %+v", n, other)
	}
	if len(key) != 43 || len(cookie) != 43 || key == cookie {
		t.Errorf("the secrets are %q and %q", cookie, key)
	}
	for name, c := range map[string]struct {
		cookie, key string
		want        *Session
	}{
		"both":                     {cookie, key, n},
		"the other one":            {cookie2, key2, other},
		"the cookie alone":         {cookie, "", nil},
		"the key alone":            {"", key, nil},
		"nothing":                  {"", "", nil},
		"the key of another one":   {cookie, key2, nil},
		"exchanged":                {key, cookie, nil},
		"the cookie twice":         {cookie, cookie, nil},
		"a key with one more":      {cookie, key + "A", nil},
		"a part of the key":        {cookie, key[:42], nil},
		"a key of 1 MB":            {cookie, strings.Repeat(key, 1<<20/43), nil},
		"a cookie of 1 MB":         {strings.Repeat(cookie, 1<<20/43), key, nil},
		"the digest as the cookie": {string(n.cookie[:]), key, nil},
	} {
		if got := s.Find(c.cookie, c.key); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	s.End(n, "signed out")
	s.End(n, "twice")
	s.End(nil, "none")
	if ended(t, n, "signed out"); s.Find(cookie, key) != nil || s.Find(cookie2, key2) != other || other.Context().Err() != nil {
		t.Error("the end of one session is not the end of that one only")
	}
	s.Forget(cookie2)
	ended(t, other, "signed in again")
	if s.Len() != 0 {
		t.Errorf("%d sessions are left", s.Len())
	}
}

// A session has the rights of its link, and no more than the way by which it began permits.
func TestRights(t *testing.T) {
	t.Parallel()
	s := New()
	defer s.Close()
	for _, c := range []struct{ link, most, want Rights }{{Admin, Admin, Admin}, {Admin, Read, Read}, {Read, Admin, Read}, {Call, Call, Call}} {
		code, _ := s.NewLink(user, c.link)
		if n, _, _, err := s.Begin(code, c.most); err != nil || n.Rights != c.want {
			t.Errorf("%v: got %+v, %v", c, n, err)
		}
	}
	for text, want := range map[string]Rights{"read": Read, "call": Call, "admin": Admin, "none": None, "": None, "Admin": None, "root": None} {
		if got, err := ParseRights(text); got != want || (err != nil) != (want == None) || want != None && got.String() != text {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

// A link begins one session, within a minute.
func TestLinksWorkOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		code, expires := s.NewLink(user, Read)
		if len(code) != 22 || time.Until(expires) > LinkLife || time.Until(expires) < LinkLife-time.Second {
			t.Errorf("the code is %q until %s", code, expires)
		}
		if _, _, _, err := s.Begin(code, Admin); err != nil {
			t.Fatal(err)
		}
		refused(t, s, "used twice", code)
		late, _ := s.NewLink(user, Read)
		time.Sleep(LinkLife)
		refused(t, s, "late", late)
		just, _ := s.NewLink(user, Read)
		time.Sleep(LinkLife - time.Nanosecond)
		if _, _, _, err := s.Begin(just, Admin); err != nil {
			t.Errorf("in time: %v", err)
		}
		for _, code := range []string{"", "x", just[:21], strings.Repeat("x", 1<<20)} {
			refused(t, s, "invalid", code)
		}
		first, _ := s.NewLink(user, Read)
		for range Max {
			s.NewLink(user, Read)
		}
		if refused(t, s, "the oldest of too many", first); len(s.links) != Max {
			t.Errorf("%d links wait", len(s.links))
		}
	})
}

// A session ends after its life, and without requests.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		idle, cookie, key := begin(t, s, user, Read)
		time.Sleep(Idle - time.Nanosecond)
		if s.Find(cookie, key) != idle || s.Find(cookie, "wrong") != nil {
			t.Fatal("the session ended early")
		}
		time.Sleep(Idle)
		synctest.Wait()
		if ended(t, idle, "its time is over"); s.Find(cookie, key) != nil {
			t.Error("an idle session can be used")
		}
		busy, cookie, key := begin(t, s, user, Read)
		start := time.Now()
		for time.Since(start) < Life-Idle {
			time.Sleep(Idle / 2)
			if s.Find(cookie, key) != busy {
				t.Fatalf("a session in use ended after %s", time.Since(start))
			}
		}
		for busy.Context().Err() == nil {
			s.Find(cookie, key)
			time.Sleep(time.Minute)
		}
		if life := time.Since(start); life < Life-time.Second || life > Life+time.Minute || s.Len() != 0 {
			t.Errorf("the session lived %s", life)
		}
	})
}

// A timer that ended too early, because the clock was set back, is set again.
func TestEarlyTimersAreSetAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		n, _, _ := begin(t, s, user, Read)
		time.Sleep(time.Minute)
		n.timer.Stop()
		s.expire(n)
		time.Sleep(Idle - time.Minute - time.Nanosecond)
		if n.Context().Err() != nil {
			t.Error("the session ended early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		ended(t, n, "its time is over")
		s.expire(n) // it has ended
	})
}

// A wrong key is no use of a session.
func TestWrongKeysKeepNoSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		n, cookie, _ := begin(t, s, user, Read)
		for range 4 {
			s.Find(cookie, "guess")
			time.Sleep(Idle / 4)
		}
		synctest.Wait()
		ended(t, n, "its time is over")
	})
}

// The end of the maker's token is the end of its sessions and links.
func TestSessionsEndWithTheirMaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		maker := func(life time.Duration) (Maker, context.CancelCauseFunc) {
			p := did.Consumer(did.Token, "ci").WithAgent("", nil, time.Now().Add(life))
			g, end := tokens.NewGrant(p, nil, nil)
			return Maker{p, g}, end
		}
		revoked, revoke := maker(time.Hour)
		n, cookie, key := begin(t, s, revoked, Admin)
		waiting, _ := s.NewLink(revoked, Admin)
		_, cookie2, key2 := begin(t, s, user, Admin)
		revoke(errors.New("revoked"))
		synctest.Wait()
		if ended(t, n, "the token of its maker ended"); s.Find(cookie, key) != nil || s.Find(cookie2, key2) == nil {
			t.Error("not the session of the revoked token ended")
		}
		refused(t, s, "of a revoked token", waiting)
		short, _ := maker(10 * time.Minute)
		n, _, _ = begin(t, s, short, Admin)
		if left := time.Until(n.Expires); left > 10*time.Minute {
			t.Errorf("a session of a token for 10 minutes ends in %s", left)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		ended(t, n, "the session ended")
	})
}

// One session more than the maximum ends the one that has been idle for longest.
func TestTheSeventeenthSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		var all [Max]struct {
			n           *Session
			cookie, key string
		}
		for i := range all {
			all[i].n, all[i].cookie, all[i].key = begin(t, s, user, Read)
			time.Sleep(time.Second)
		}
		s.Find(all[0].cookie, all[0].key)
		begin(t, s, user, Read)
		if ended(t, all[1].n, "newer ones"); s.Len() != Max || all[0].n.Context().Err() != nil {
			t.Errorf("%d sessions, the used one ended with %v", s.Len(), all[0].n.Context().Err())
		}
	})
}

// Many links and sessions of one maker end at most one of those of others.
func TestAMakerEndsItsOwnSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		other := Maker{Principal: did.Consumer(did.Token, "ci")}
		var all []*Session
		for range Max {
			n, _, _ := begin(t, s, user, Admin)
			all = append(all, n)
			time.Sleep(time.Second)
		}
		for range 3 * Max {
			begin(t, s, other, Read)
			time.Sleep(time.Second)
		}
		ended(t, all[0], "newer ones")
		for i, n := range all[1:] {
			if n.Context().Err() != nil {
				t.Errorf("session %d ended with %v", i+1, context.Cause(n.Context()))
			}
		}
		if last, _, _ := begin(t, s, user, Admin); last.Context().Err() != nil || all[1].Context().Err() == nil || s.Len() != Max {
			t.Errorf("%d sessions, and the idlest one of the user ended with %v", s.Len(), context.Cause(all[1].Context()))
		}

		var codes []string
		for range Max {
			code, _ := s.NewLink(user, Read)
			codes = append(codes, code)
		}
		for range 3 * Max {
			s.NewLink(other, Read)
		}
		refused(t, s, "the oldest link", codes[0])
		for i, code := range codes[1:] {
			if _, _, _, err := s.Begin(code, Read); err != nil {
				t.Errorf("link %d: %v", i+1, err)
			}
		}
	})
}

func TestEndOfAll(t *testing.T) {
	t.Parallel()
	s := New()
	n, _, _ := begin(t, s, user, Read)
	code, _ := s.NewLink(user, Read)
	if got := s.EndAll("by the operator"); got != 1 || s.Len() != 0 {
		t.Errorf("%d sessions ended", got)
	}
	ended(t, n, "by the operator")
	refused(t, s, "after the end of all", code)
	n, _, _ = begin(t, s, user, Read)
	code, _ = s.NewLink(user, Read)
	s.Close()
	ended(t, n, "the node stopped")
	refused(t, s, "after the end of the node", code)
	late, _ := s.NewLink(user, Read)
	if _, _, _, err := s.Begin(late, Admin); interact.AsError(err).Code != interact.ShuttingDown {
		t.Errorf("a closed store began a session: %v", err)
	}
}
