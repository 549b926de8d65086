package protocol

import (
	"sync"
	"time"
)

const (
	// chatter is how many progress and log messages one request, or session, may bring at once, and chatterEach how soon there may be
	// one more. Both are for looking at: what is more is dropped (2026-07-28, "Progress", "Logging": both sides limit their rate).
	chatter     = 256
	chatterEach = 10 * time.Millisecond
)

// A Pace limits the rate of something. The zero value lets nothing through; see [NewPace]. It is for one goroutine at a time.
type Pace struct {
	most float64
	each time.Duration
	room float64
	at   time.Time // when room was right
}

// NewPace returns a pace that lets most through at once, and one more after each.
func NewPace(most int, each time.Duration) *Pace {
	return &Pace{most: float64(most), each: each, room: float64(most)}
}

// Take reports whether one more may go at the time now.
func (p *Pace) Take(now time.Time) bool {
	if !p.at.IsZero() {
		p.room = min(p.most, p.room+float64(now.Sub(p.at))/float64(p.each))
	}
	p.at = now
	if p.room < 1 {
		return false
	}
	p.room--
	return true
}

// Wait is how long it takes from now until one more may go.
func (p *Pace) Wait(now time.Time) time.Duration {
	room := p.room
	if !p.at.IsZero() {
		room = min(p.most, room+float64(now.Sub(p.at))/float64(p.each))
	}
	if room >= 1 {
		return 0
	}
	return time.Duration((1-room)*float64(p.each)) + 1
}

// Chatter is the pace of the progress and log messages of one request, or session.
func Chatter() *Pace { return NewPace(chatter, chatterEach) }

// Chats reports whether m is one of those messages that may be dropped: progress or a log message.
func (m *Message) Chats() bool { return m.method == Progress || m.method == LogMessage }

// A Quota bounds how many of something there are, of one caller and in all. It is safe for concurrent use.
type Quota struct {
	each, all int

	mu  sync.Mutex
	by  map[string]int
	sum int
}

// NewQuota returns one that allows each to a caller, and all to all of them.
func NewQuota(each, all int) *Quota { return &Quota{each: each, all: all, by: map[string]int{}} }

// Enter takes one for a caller, until leave is called, once; leave is nil if there is none left.
func (q *Quota) Enter(caller string) (leave func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.by[caller] >= q.each || q.sum >= q.all {
		return nil
	}
	q.by[caller]++
	q.sum++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.by[caller]--; q.by[caller] == 0 {
			delete(q.by, caller)
		}
		q.sum--
	}
}
