// Package sessions keeps the sessions of browsers at a node, and the links that begin them.
//
// A session is two secrets: a cookie, which a browser sends to every port of the host, and a key, which only pages of the origin of the node can
// read. Neither is a session alone. The node stores the SHA-256 of both, in memory only: its restart ends all sessions. A session has the principal
// of its maker, rights that the maker had, and ends with the token of the maker.
package sessions

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
)

// Times and limits of sessions.
const (
	LinkLife = time.Minute      // of a link that nothing has used
	Life     = 12 * time.Hour   // of a session
	Idle     = 30 * time.Minute // of a session without a request
	Max      = 16               // sessions of a node, and links that wait; one more ends the one of its maker that has been idle for longest
)

// Sizes of secrets, in bytes.
const (
	codeSize   = 16
	secretSize = 32
	maxSecret  = 64 // of the text of a secret that is looked up
)

// Rights are what a session may do; each includes those below it. The zero value is None.
type Rights uint8

// The rights of sessions.
const (
	None  Rights = iota
	Read         // look at the node and the mesh
	Call         // and call agents
	Admin        // and change the node
)

var texts = []string{"none", "read", "call", "admin"}

// String returns "none", "read", "call" or "admin".
func (r Rights) String() string { return texts[min(r, Admin)] }

// ParseRights returns the rights that a link may have: "read", "call" or "admin". The error is an [*interact.Error] of code Usage.
func ParseRights(text string) (Rights, error) {
	if i := slices.Index(texts, text); i > 0 {
		return Rights(i), nil
	}
	return None, interact.Errorf(interact.Usage, "one of read, call and admin", "unknown rights %q", interact.Excerpt(text, 32))
}

// A Maker is a caller that makes links. Its principal is that of the sessions, and its grant ends them.
type Maker struct {
	Principal *did.Principal
	Grant     *tokens.Grant // nil: a caller without a token, such as one of the unix socket
}

// id returns what distinguishes m from other makers.
func (m Maker) id() string { return m.Principal.ID() }

// end returns the context that ends the sessions of m.
func (m Maker) end() context.Context {
	if m.Grant == nil {
		return context.Background()
	}
	return m.Grant.Context()
}

// A digest is the SHA-256 of a secret.
type digest [sha256.Size]byte

// newSecret returns n random bytes in base64url, and their digest.
func newSecret(n int) (text string, sum digest) {
	raw := make([]byte, n)
	rand.Read(raw)
	text = base64.RawURLEncoding.EncodeToString(raw)
	return text, sha256.Sum256([]byte(text))
}

// A link is a code that begins one session.
type link struct {
	code    digest
	rights  Rights
	maker   Maker
	expires time.Time
}

// A Session is the right of a browser. Its fields are read-only.
type Session struct {
	Rights Rights
	Maker  Maker
	// Principal is that of the maker, in a session.
	Principal *did.Principal
	// Expires is the time when the session ends at the latest, UTC in whole seconds.
	Expires time.Time

	cookie, key digest
	ctx         context.Context
	end         context.CancelCauseFunc
	stop        func() bool // of the end by the maker
	timer       *time.Timer // of the idle time, and of the end of the session
	used        time.Time   // owned by Store.mu
}

// Context returns a context that ends with the session; its cause is an [*interact.Error] of code Unauthenticated.
func (s *Session) Context() context.Context { return s.ctx }

// A Store has the links and sessions of a node. The zero value is not usable; [New] makes one. It is safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	links    []link              // oldest first, owned by mu as is the rest
	sessions map[digest]*Session // by the digest of the cookie
	closed   bool
}

// New returns a store without sessions.
func New() *Store { return &Store{sessions: map[digest]*Session{}} }

// NewLink returns the code of a link: 128 random bits in base64url, which [Store.Begin] accepts once until expires. The caller checks that the
// maker has the rights.
func (s *Store) NewLink(m Maker, r Rights) (code string, expires time.Time) {
	code, sum := newSecret(codeSize)
	now := time.Now()
	expires = now.Add(LinkLife)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = slices.DeleteFunc(s.links, func(l link) bool { return !now.Before(l.expires) })
	if len(s.links) >= Max {
		oldest := max(slices.IndexFunc(s.links, func(l link) bool { return l.maker.id() == m.id() }), 0)
		s.links = slices.Delete(s.links, oldest, oldest+1)
	}
	s.links = append(s.links, link{sum, r, m, expires})
	return code, expires.UTC().Truncate(time.Second)
}

// errLink is the error of a code that begins no session. It does not state why: a code that was used once and one that never was look the same.
func errLink() error {
	return interact.Errorf(interact.Unauthenticated, "make another link", "the link was used before, or is older than a minute").Then(interact.StepConsole)
}

// Begin ends the link with this code and begins its session, with at most the rights most. It returns the secrets: cookie for the
// cookie of the browser, and key for its page. The error is an [*interact.Error] of code Unauthenticated for a code that was used, has expired or whose
// maker lost its token, else ShuttingDown.
func (s *Store) Begin(code string, most Rights) (started *Session, cookie, key string, err error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.takeLinkLocked(code, now)
	switch {
	case !ok:
		return nil, "", "", errLink()
	case s.closed:
		return nil, "", "", interact.ShutdownError("try again when the node is back")
	}
	for len(s.sessions) >= Max {
		s.endLocked(s.idlestLocked(l.maker), interact.Errorf(interact.Unauthenticated, "", "the session ended: the node has %d newer ones", Max))
	}
	expires := now.Add(Life).UTC().Truncate(time.Second)
	n := &Session{Rights: min(l.rights, most), Maker: l.maker, Principal: l.maker.Principal.InSession(expires), Expires: expires, used: now}
	if n.Principal.Expires.Before(expires) {
		n.Expires = n.Principal.Expires
	}
	cookie, n.cookie = newSecret(secretSize)
	key, n.key = newSecret(secretSize)
	n.ctx, n.end = context.WithCancelCause(context.Background())
	n.stop = context.AfterFunc(l.maker.end(), func() { s.End(n, "the token of its maker ended") })
	n.timer = time.AfterFunc(min(Idle, n.Expires.Sub(now)), func() { s.expire(n) })
	s.sessions[n.cookie] = n
	return n, cookie, key, nil
}

// takeLinkLocked removes and returns the link with this code; ok is false for a code that begins no session.
func (s *Store) takeLinkLocked(code string, now time.Time) (l link, ok bool) {
	if len(code) > maxSecret {
		return link{}, false
	}
	sum := sha256.Sum256([]byte(code))
	i := slices.IndexFunc(s.links, func(l link) bool { return subtle.ConstantTimeCompare(l.code[:], sum[:]) == 1 })
	if i < 0 {
		return link{}, false
	}
	l = s.links[i]
	s.links = slices.Delete(s.links, i, i+1)
	return l, now.Before(l.expires) && l.maker.end().Err() == nil
}

// idlestLocked returns the session whose last request is the oldest, of those of a maker, or of all if it has none: a maker with few rights ends at
// most one session of others.
func (s *Store) idlestLocked(m Maker) (idlest *Session) {
	isOwn := false
	for _, n := range s.sessions {
		switch own := n.Maker.id() == m.id(); {
		case isOwn && !own:
		case own && !isOwn, idlest == nil, n.used.Before(idlest.used):
			idlest, isOwn = n, own
		}
	}
	return idlest
}

// Find returns the session with both secrets, and counts as its use; nil if there is none.
func (s *Store) Find(cookie, key string) *Session {
	if cookie == "" || key == "" || len(cookie) > maxSecret || len(key) > maxSecret {
		return nil
	}
	given := sha256.Sum256([]byte(key))
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.sessions[sha256.Sum256([]byte(cookie))]
	if n == nil || subtle.ConstantTimeCompare(n.key[:], given[:]) != 1 {
		return nil
	}
	now := time.Now()
	if !s.isAlive(n, now) {
		return nil // its timer is about to end it
	}
	n.used = now
	n.timer.Reset(min(Idle, n.Expires.Sub(now)))
	return n
}

// isAlive reports whether a session has not ended by time, nor with its maker.
func (s *Store) isAlive(n *Session, now time.Time) bool {
	return now.Before(n.Expires) && now.Sub(n.used) < Idle && n.Maker.end().Err() == nil
}

// expire ends a session whose time is over.
func (s *Store) expire(n *Session) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isAlive(n, now) {
		s.endLocked(n, errEnded("its time is over"))
	} else if s.sessions[n.cookie] == n { // a request came between, or the clock was set back
		n.timer.Reset(min(Idle-now.Sub(n.used), n.Expires.Sub(now)))
	}
}

func errEnded(why string) error {
	return interact.Errorf(interact.Unauthenticated, "sign in again", "the session ended: %s", why).Then(interact.StepConsole)
}

// End ends a session and its requests; why is the end of "the session ended: …". Nil, and one that has ended, are ignored.
func (s *Store) End(n *Session, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(n, errEnded(why))
}

// Forget ends the session with this cookie, whose browser begins another one.
func (s *Store) Forget(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(cookie) <= maxSecret {
		s.endLocked(s.sessions[sha256.Sum256([]byte(cookie))], errEnded("its browser signed in again"))
	}
}

// EndAll ends all sessions and links, and returns the number of sessions; why is as in End.
func (s *Store) EndAll(why string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.sessions)
	for _, one := range s.sessions {
		s.endLocked(one, errEnded(why))
	}
	s.links = nil
	return n
}

// Close ends all sessions; no further ones begin.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.EndAll("the node stopped")
}

func (s *Store) endLocked(n *Session, cause error) {
	if n == nil || s.sessions[n.cookie] != n {
		return
	}
	delete(s.sessions, n.cookie)
	n.timer.Stop()
	n.stop()
	n.end(cause)
}

// Len returns the number of sessions.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}
