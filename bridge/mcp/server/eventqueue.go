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
	// maxKept is how many bytes of messages a session keeps for a client that takes them up again, and how many wait for one that
	// never asked for the stream that belongs to no request.
	maxKept = 1 << 20
	// maxWaiting is how many bytes may wait for a client that does not read. Then its session ends.
	maxWaiting = 32 << 20
)

// An outlet holds what goes to the client on one stream.
type outlet struct {
	number int
	of     protocol.ID     // the request; empty: none
	token  json.RawMessage // of progress

	mu     sync.Mutex
	events []event
	size   int           // bytes of events
	taken  int           // the latest that was sent to somebody; -1 none
	last   int           // the latest that there is; -1 none
	reader chan struct{} // who takes them; closed when another does; nil: nobody
	ending bool          // what comes next is the last
	over   bool
	news   chan struct{} // closed and replaced when something is added
}

type event struct {
	n int
	m *protocol.Message
}

// id is what the client says to go on after e.
func (e event) id(o *outlet) string { return fmt.Sprintf("%d-%d", o.number, e.n) }

func newOutlet(number int) *outlet {
	return &outlet{number: number, taken: -1, last: -1, news: make(chan struct{})}
}

// add adds a message. Messages that were sent are let go when they are too many; and so are those that nobody asks for: clients need
// not open the stream that belongs to no request.
func (o *outlet) add(m *protocol.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return // nobody waits for it
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

// finish says that what is added next is the last.
func (o *outlet) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ending = true
}

// end says that nothing comes any more.
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

// attach makes the caller the reader, instead of whoever was: what it returns is closed when another comes.
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

// read reports whether somebody reads it.
func (o *outlet) read() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reader != nil
}

// seen is the latest event that was sent.
func (o *outlet) seen() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.taken
}

// after returns the events after n, which count as sent, whether there will be no more, and what closes when there are. For one that
// is not the reader any more there are none.
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

// resume returns the outlet and event that an id names; nil if it is not kept.
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
