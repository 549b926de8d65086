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
	maxReplayBytes = 1 << 20
	// maxUnreadBytes bounds the messages that wait for a client that does not read. Beyond it the session ends.
	maxUnreadBytes = 32 << 20
)

// An eventQueue holds the messages of one stream to the client.
type eventQueue struct {
	number  int             // of the stream in its session; 0 for the stream of no request
	request protocol.ID     // the request that owns the stream; empty if none
	token   json.RawMessage // progress token of the request

	mu      sync.Mutex
	events  []event
	size    int           // bytes of events
	sent    int           // latest event that was sent; -1 if none
	last    int           // latest event; -1 if none
	reader  chan struct{} // the current reader, closed when another takes over; nil if none
	final   bool          // the next event is the last
	closed  bool
	changed chan struct{} // closed and replaced when the queue changes
}

type event struct {
	n int
	m *protocol.Message
}

// id returns the event id, with which a client resumes the stream after e.
func (e event) id(o *eventQueue) string { return fmt.Sprintf("%d-%d", o.number, e.n) }

func newEventQueue(number int) *eventQueue {
	return &eventQueue{number: number, sent: -1, last: -1, changed: make(chan struct{})}
}

// add adds a message. Beyond maxReplayBytes it drops messages that were sent, and those of the stream of no request while it has no
// reader: clients need not open that stream.
func (o *eventQueue) add(m *protocol.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return // the request has ended
	}
	o.last++
	o.events = append(o.events, event{o.last, m})
	o.size += len(m.Bytes())
	for o.size > maxReplayBytes && len(o.events) > 1 && (o.events[0].n <= o.sent || o.number == 0 && o.reader == nil) {
		o.size -= len(o.events[0].m.Bytes())
		o.events[0], o.events = event{}, o.events[1:]
	}
	o.closed = o.final
	o.signalLocked()
}

func (o *eventQueue) bytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size
}

func (o *eventQueue) signalLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// finish marks the next message as the last.
func (o *eventQueue) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.final = true
}

// end closes the queue.
func (o *eventQueue) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		o.signalLocked()
	}
}

func (o *eventQueue) ended() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// attach makes the caller the reader of the queue. The returned channel is closed when another reader takes over.
func (o *eventQueue) attach() chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reader != nil {
		close(o.reader)
	}
	o.reader = make(chan struct{})
	return o.reader
}

func (o *eventQueue) detach(reader chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reader == reader {
		o.reader = nil
	}
}

// hasReader reports whether the queue has a reader.
func (o *eventQueue) hasReader() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reader != nil
}

// lastSent returns the number of the latest event that was sent.
func (o *eventQueue) lastSent() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent
}

// after returns the events after n, marks them as sent, and reports whether the queue is complete. The channel is closed when the queue
// changes. A replaced reader gets no events.
func (o *eventQueue) after(reader chan struct{}, n int) (events []event, done bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reader != reader {
		return nil, false, o.changed
	}
	for _, e := range o.events {
		if e.n > n {
			events = append(events, e)
		}
	}
	o.sent = max(o.sent, o.last)
	return events, o.closed, o.changed
}

// resume returns the queue and the event number of an event id; nil if the session no longer has the queue.
func (s *session) resume(id string) (*eventQueue, int) {
	number, event, _ := strings.Cut(id, "-")
	stream, err := strconv.Atoi(number)
	n, err2 := strconv.Atoi(event)
	if err != nil || err2 != nil {
		return nil, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.queues {
		if o.number == stream {
			return o, n
		}
	}
	return nil, 0
}
