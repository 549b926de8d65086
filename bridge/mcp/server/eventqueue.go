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
func (e event) id(q *eventQueue) string { return fmt.Sprintf("%d-%d", q.number, e.n) }

func newEventQueue(number int) *eventQueue {
	return &eventQueue{number: number, sent: -1, last: -1, changed: make(chan struct{})}
}

// add adds a message. Beyond maxReplayBytes it drops messages that were sent, and those of the stream of no request while it has no
// reader: clients need not open that stream.
func (q *eventQueue) add(m *protocol.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return // the request has ended
	}
	q.last++
	q.events = append(q.events, event{q.last, m})
	q.size += len(m.Bytes())
	for q.size > maxReplayBytes && len(q.events) > 1 && (q.events[0].n <= q.sent || q.number == 0 && q.reader == nil) {
		q.size -= len(q.events[0].m.Bytes())
		q.events[0], q.events = event{}, q.events[1:]
	}
	q.closed = q.final
	q.signalLocked()
}

func (q *eventQueue) bytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

func (q *eventQueue) signalLocked() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// finish marks the next message as the last.
func (q *eventQueue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.final = true
}

// end closes the queue.
func (q *eventQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		q.signalLocked()
	}
}

func (q *eventQueue) ended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// attach makes the caller the reader of the queue. The returned channel is closed when another reader takes over.
func (q *eventQueue) attach() chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reader != nil {
		close(q.reader)
	}
	q.reader = make(chan struct{})
	return q.reader
}

func (q *eventQueue) detach(reader chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reader == reader {
		q.reader = nil
	}
}

// hasReader reports whether the queue has a reader.
func (q *eventQueue) hasReader() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reader != nil
}

// lastSent returns the number of the latest event that was sent.
func (q *eventQueue) lastSent() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sent
}

// after returns the events after n, marks them as sent, and reports whether the queue is complete. The channel is closed when the queue
// changes. A replaced reader gets no events.
func (q *eventQueue) after(reader chan struct{}, n int) (events []event, done bool, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reader != reader {
		return nil, false, q.changed
	}
	for _, e := range q.events {
		if e.n > n {
			events = append(events, e)
		}
	}
	q.sent = max(q.sent, q.last)
	return events, q.closed, q.changed
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
	for _, q := range s.queues {
		if q.number == stream {
			return q, n
		}
	}
	return nil, 0
}
