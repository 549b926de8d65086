package policy

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// A class is the trust in a caller. A higher class is served first, and has places that lower ones cannot take.
type class int

const (
	untrusted class = iota // an unknown key, of which anyone can create any number
	known                  // a key whose calls succeeded before
	allowed                // of the own organization, or a partner
	owner                  // a caller on this host
	classes   int   = iota
)

// A share limits how many places of an admission a class, and a caller in it, may have.
type share struct {
	class int // places of the class and all lower ones together
	below int // places of the class and all lower ones together
	each  int // places that a caller gets before callers that have as many
	spare int // places that stay free when a caller takes more than that
}

// shares divides n places. Untrusted callers have at most half, known ones half, both together three quarters, and an eighth is reserved
// for callers on this host. A caller takes more than a sixteenth only while half of the share of its class stays free, because calls cannot
// be interrupted to make room for a new caller. Thus one caller of a class leaves half of its share, four leave a place for a fifth, and
// eight fill it. With few places some of these are the same: of 1 every caller may have it, of 2 or 3 untrusted ones may have 1.
func shares(n int) [classes]share {
	half, some := max(n/2, 1), max(n/16, 1)
	rest := max(n-max(n/8, 1), 1)
	return [classes]share{
		untrusted: {half, half, some, half / 2},
		known:     {half, max(n*3/4, 1), some, half / 2},
		allowed:   {rest, rest, max(n/8, 1), rest / 4},
		owner:     {n, n, n, 0},
	}
}

// Limits of the queue, in multiples of the places.
const (
	classWaits = 16 // of a class; beyond it the caller with the longest queue loses its newest call
	peerWaits  = 4  // of a node
	nameWaits  = 2  // of one consumer of a node
)

// Reasons why an admission rejects a call, besides the error of the context.
var (
	errFull = errors.New("the queue is full")
	errLate = errors.New("no place was free in time")
)

// A claim is the request of a node, or of a consumer behind it, for a place. All consumers of a node count for the node and take turns, so
// that invented names gain nothing. A named consumer leaves an eighth of the places of its node to the others, for new consumers.
type claim struct {
	class      class
	node, name string
}

// An admission is a fair queue before the places of an agent or of a node. Callers take turns, by node and then by consumer; the calls of a
// consumer are in order. A waiting call needs no goroutine, and one that does not wait allocates only for a new caller. It is safe for
// concurrent use.
type admission struct {
	places int
	shares [classes]share

	// mu owns what follows.
	mu      sync.Mutex
	used    [classes]int
	waiting [classes]int
	peers   map[peerKey]*peer
	rings   [classes][2]list.List // of waiting *peer: those below their share, and the others; the first is next
	idle    []*peer               // for reuse
	spare   []*line               // for reuse
	took    time.Duration         // moving average of the time that a place is held; 0: unknown
}

type peerKey struct {
	class class
	node  string
}

// A peer is the state of one node in one class. Its fields are owned by admission.mu.
type peer struct {
	key     peerKey
	running int
	waiting int
	lines   map[string]*line // by name of the consumer: those that have or want a place
	names   list.List        // of waiting *line, in order of their turns
	at      *list.Element
	ring    *list.List // the list of at; nil if no call waits
}

// A line is the state of one consumer of a node. Its fields are owned by admission.mu.
type line struct {
	name    string
	running int
	calls   list.List // of *waiter
	at      *list.Element
}

// A waiter is a waiting call. Its fields are owned by admission.mu, except the content of ready.
type waiter struct {
	peer  *peer
	line  *line
	at    *list.Element
	ready chan error // receives nil for a place, or errFull
	over  bool       // ready received a value
}

// A place is held by a running call. The zero place is none.
type place struct {
	peer  *peer
	line  *line
	since time.Time
}

func newAdmission(places int) *admission {
	return &admission{places: places, shares: shares(places), peers: map[peerKey]*peer{}}
}

// enter returns a place for who, which must be passed to leave. It waits until ctx ends or, if by is not zero, until by. The error is
// errFull, errLate, or that of ctx.
func (a *admission) enter(ctx context.Context, by time.Time, who claim) (place, error) {
	a.mu.Lock()
	p := a.peerLocked(peerKey{who.class, who.node})
	l := a.lineLocked(p, who.name)
	if a.fitsLocked(p, l) {
		a.takeLocked(p, l)
		a.mu.Unlock()
		return place{p, l, time.Now()}, nil
	}
	w, err := a.queueLocked(p, l)
	if err != nil {
		a.dropLocked(p, l)
	}
	a.mu.Unlock()
	if err != nil {
		return place{}, err
	}
	return a.wait(ctx, by, w)
}

// wait waits for a place.
func (a *admission) wait(ctx context.Context, by time.Time, w *waiter) (place, error) {
	var late <-chan time.Time
	if !by.IsZero() {
		t := time.NewTimer(time.Until(by))
		defer t.Stop()
		late = t.C
	}
	var err error
	select {
	case err = <-w.ready:
		if err != nil {
			return place{}, err
		}
		return place{w.peer, w.line, time.Now()}, nil
	case <-late:
		err = errLate
	case <-ctx.Done():
		if err = ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
			err = errLate
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !w.over:
		a.removeLocked(w)
		a.dropLocked(w.peer, w.line)
	case <-w.ready == nil: // it got a place concurrently
		a.leaveLocked(w.peer, w.line)
	}
	return place{}, err
}

// leave releases a place.
func (a *admission) leave(p place) {
	if p.peer == nil {
		return
	}
	held := time.Since(p.since)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.took = (7*cmp.Or(a.took, held) + held) / 8
	a.leaveLocked(p.peer, p.line)
}

// after estimates the time until a rejected call may find room.
func (a *admission) after() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting := 1
	for _, n := range a.waiting {
		waiting += n
	}
	took := cmp.Or(a.took, time.Second) // no call has ended yet
	return min(max(took*time.Duration(waiting)/time.Duration(a.places), minAfter), maxAfter)
}

// Limits of the time after which a caller may retry.
const (
	minAfter = 50 * time.Millisecond
	maxAfter = 10 * time.Second
)

// unused reports whether no call runs or waits.
func (a *admission) unused() bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.peers) == 0
}

// freeLocked returns the number of places that a class may still take.
func (a *admission) freeLocked(c class) int {
	free, sum := a.shares[c].class-a.used[c], 0
	for k := range a.used {
		sum += a.used[k]
		if class(k) >= c {
			free = min(free, a.shares[k].below-sum)
		}
	}
	return free
}

// poor reports whether p is below its share.
func (a *admission) poor(p *peer) bool { return p.running < a.shares[p.key.class].each }

// roomLocked returns the number of places that p may still take.
func (a *admission) roomLocked(p *peer) int {
	s, free := a.shares[p.key.class], a.freeLocked(p.key.class)
	return min(free, max(s.each-p.running, free-s.spare))
}

// fitsLocked reports whether a consumer of p may take a place now. It never overtakes a waiting consumer with the same rights, which would
// have the place already.
func (a *admission) fitsLocked(p *peer, l *line) bool {
	room := a.roomLocked(p)
	may := p.running + room
	return room > 0 && (l.name == "" || room > may/8 || l.running < max(may/16, 1))
}

func (a *admission) takeLocked(p *peer, l *line) {
	p.running++
	l.running++
	a.used[p.key.class]++
}

func (a *admission) leaveLocked(p *peer, l *line) {
	p.running--
	l.running--
	a.used[p.key.class]--
	a.placeLocked(p)
	a.dropLocked(p, l)
	a.grantLocked()
}

// maxIdle is the number of unused peers and lines that are kept for reuse.
const maxIdle = 64

func (a *admission) peerLocked(k peerKey) *peer {
	if p := a.peers[k]; p != nil {
		return p
	}
	var p *peer
	if n := len(a.idle); n > 0 {
		p, a.idle = a.idle[n-1], a.idle[:n-1]
	} else {
		p = &peer{lines: map[string]*line{}}
	}
	p.key = k
	a.peers[k] = p
	return p
}

func (a *admission) lineLocked(p *peer, name string) *line {
	if l := p.lines[name]; l != nil {
		return l
	}
	var l *line
	if n := len(a.spare); n > 0 {
		l, a.spare = a.spare[n-1], a.spare[:n-1]
	} else {
		l = &line{}
	}
	l.name = name
	p.lines[name] = l
	return l
}

// dropLocked removes l, and p, if they have no calls.
func (a *admission) dropLocked(p *peer, l *line) {
	if l.running+l.calls.Len() > 0 {
		return
	}
	delete(p.lines, l.name)
	if l.name = ""; len(a.spare) < maxIdle {
		a.spare = append(a.spare, l)
	}
	if p.running+p.waiting > 0 {
		return
	}
	delete(a.peers, p.key)
	if p.key = (peerKey{}); len(a.idle) < maxIdle {
		a.idle = append(a.idle, p)
	}
}

// queueLocked queues a call of a consumer of p.
func (a *admission) queueLocked(p *peer, l *line) (*waiter, error) {
	if p.waiting >= peerWaits*a.places || l.calls.Len() >= nameWaits*a.places || !a.makeRoomLocked(p) {
		return nil, errFull
	}
	if l.calls.Len() == 0 {
		l.at = p.names.PushBack(l)
	}
	w := &waiter{peer: p, line: l, ready: make(chan error, 1)}
	w.at = l.calls.PushBack(w)
	p.waiting++
	a.waiting[p.key.class]++
	a.placeLocked(p)
	return w, nil
}

// makeRoomLocked makes room in the queue for a call of p by removing a call of the peer with the most waiting calls. It returns false if
// that is p.
func (a *admission) makeRoomLocked(p *peer) bool {
	c := p.key.class
	if a.waiting[c] < classWaits*a.places {
		return true
	}
	most := p
	for _, other := range a.peers {
		if other.key.class == c && other.waiting > most.waiting+1 {
			most = other
		}
	}
	if most == p {
		return false
	}
	last := most.names.Back().Value.(*line).calls.Back().Value.(*waiter)
	a.removeLocked(last)
	last.finish(errFull)
	a.dropLocked(most, last.line)
	return true
}

func (w *waiter) finish(err error) {
	w.over = true
	w.ready <- err
}

// removeLocked removes w from its line.
func (a *admission) removeLocked(w *waiter) {
	w.line.calls.Remove(w.at)
	if w.line.calls.Len() == 0 {
		w.peer.names.Remove(w.line.at)
	}
	w.peer.waiting--
	a.waiting[w.peer.key.class]--
	a.placeLocked(w.peer)
}

// placeLocked moves p to its ring. It keeps its turn within a ring.
func (a *admission) placeLocked(p *peer) {
	var ring *list.List
	if p.waiting > 0 {
		ring = &a.rings[p.key.class][1]
		if a.poor(p) {
			ring = &a.rings[p.key.class][0]
		}
	}
	if ring == p.ring {
		return
	}
	if p.ring != nil {
		p.ring.Remove(p.at)
	}
	if p.ring = ring; ring != nil {
		p.at = ring.PushBack(p)
	}
}

// grantLocked grants the free places.
func (a *admission) grantLocked() {
	for c := owner; c >= untrusted; c-- {
		for a.waiting[c] > 0 {
			p, l := a.nextLocked(c)
			if p == nil {
				break
			}
			w := l.calls.Front().Value.(*waiter)
			p.names.MoveToBack(l.at)
			p.ring.MoveToBack(p.at)
			a.takeLocked(p, l)
			a.removeLocked(w)
			w.finish(nil)
		}
	}
}

// nextLocked returns the consumer of a class that gets the next place; nil if none may. It skips consumers that must leave places to other
// consumers of their nodes. These have places, so their number is limited.
func (a *admission) nextLocked(c class) (*peer, *line) {
	for i := range a.rings[c] {
		for e := a.rings[c][i].Front(); e != nil; e = e.Next() {
			p := e.Value.(*peer)
			if a.roomLocked(p) <= 0 {
				break // the other peers of the ring have no room either
			}
			for n := p.names.Front(); n != nil; n = n.Next() {
				if l := n.Value.(*line); a.fitsLocked(p, l) {
					return p, l
				}
			}
		}
	}
	return nil, nil
}
