package server

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

const (
	// maxReplayBytes bounds the messages that a session keeps for a client that resumes a stream, and the messages for a client that
	// never opened the stream of no request.
	maxKept = 1 << 20
	// maxUnreadBytes bounds the messages that wait for a client that does not read. Beyond it the session ends.
	maxWaiting = 32 << 20
)

// An eventQueue holds the messages of one stream to the client.
type outlet struct {
	number int
	of     protocol.ID     // of the request that owns the stream; empty if none
	token  json.RawMessage // progress token of the request

	mu     sync.Mutex
	events []event
	size   int           // bytes of events
	taken  int           // latest event that was sent; -1 if none
	last   int           // latest event; -1 if none
	reader chan struct{} // the current reader, closed when another takes over; nil if none
	ending bool          // the next event is the last
	over   bool
	news   chan struct{} // closed and replaced when the queue changes
}

type event struct {
	n int
	m *protocol.Message
}

// id returns the event id, with which a client resumes the stream after e.
func (e event) id(o *outlet) string { return fmt.Sprintf("%d-%d", o.number, e.n) }

func newOutlet(number int) *outlet {
	return &outlet{number: number, taken: -1, last: -1, news: make(chan struct{})}
}

// add adds a message. Beyond maxReplayBytes it drops messages that were sent, and those of the stream of no request while it has no
// reader: clients need not open that stream.
func (o *outlet) add(m *protocol.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return // the request has ended
	}
	o.last++
	o.events = append(o.events, event{o.last, m})
	o.size += len(m.Bytes())
	for o.size > maxKept && len(o.events) > 1 && (o.events[0].n <= o.taken || o.number == 0 && o.reader == nil) {
		o.size -= len(o.events[0].m.Bytes())
		o.events[0], o.events = event{}, o.events[1:]
	}
	o.over = o.ending
	o.tellLocked()
}

func (o *outlet) bytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size
}

func (o *outlet) tellLocked() {
	close(o.news)
	o.news = make(chan struct{})
}

// finish marks the next message as the last.
func (o *outlet) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ending = true
}

// end closes the queue.
func (o *outlet) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.over = true
		o.tellLocked()
	}
}

func (o *outlet) ended() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// attach makes the caller the reader of the queue. The returned channel is closed when another reader takes over.
func (o *outlet) attach() chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reader != nil {
		close(o.reader)
	}
	o.reader = make(chan struct{})
	return o.reader
}

func (o *outlet) detach(reader chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reader == reader {
		o.reader = nil
	}
}

// hasReader reports whether the queue has a reader.
func (o *outlet) read() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reader != nil
}

// lastSent returns the number of the latest event that was sent.
func (o *outlet) seen() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.taken
}

// after returns the events after n, marks them as sent, and reports whether the queue is complete. The channel is closed when the queue
// changes. A replaced reader gets no events.
func (o *outlet) after(reader chan struct{}, n int) (events []event, done bool, news <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reader != reader {
		return nil, false, o.news
	}
	for _, e := range o.events {
		if e.n > n {
			events = append(events, e)
		}
	}
	o.taken = max(o.taken, o.last)
	return events, o.over, o.news
}

// resume returns the queue and the event number of an event id; nil if the session no longer has the queue.
func (s *session) resume(id string) (*outlet, int) {
	number, event, _ := strings.Cut(id, "-")
	stream, err := strconv.Atoi(number)
	n, err2 := strconv.Atoi(event)
	if err != nil || err2 != nil {
		return nil, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.outlets {
		if o.number == stream {
			return o, n
		}
	}
	return nil, 0
}
