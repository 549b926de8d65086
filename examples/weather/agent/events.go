package agent

import (
	"fmt"
	"net/http"
	"strings"
)

// queue is how many events a slow listener may be behind before it misses some.
const queue = 16

// publish sends an event to all current listeners.
func (a *agent) publish(data []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.listeners {
		select {
		case l <- data:
		default:
		}
	}
}

// listen returns a channel of events, and how to stop.
func (a *agent) listen() (events <-chan []byte, stop func()) {
	l := make(chan []byte, queue)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners[l] = true
	return l, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.listeners, l)
	}
}

// events serves both forms of the event at one URL: clients that accept a stream get one, others wait for one event.
// A HEAD is answered at once: some clients of long polling begin with it.
func (a *agent) events(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "application/json")
		return
	}
	events, stop := a.listen()
	defer stop()
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		stream(w, r, events)
		return
	}
	select {
	case data := <-events:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data)
	case <-r.Context().Done():
		panic(http.ErrAbortHandler) // to a client of long polling, even an empty answer would be an event
	}
}

// stream writes server-sent events until the listener disconnects. It sends the header at once, so that the listener knows that it is
// subscribed.
func stream(w http.ResponseWriter, r *http.Request, events <-chan []byte) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	c := http.NewResponseController(w)
	for id := 1; c.Flush() == nil; id++ {
		select {
		case data := <-events:
			fmt.Fprintf(w, "id: %d\nevent: userFeedbackReceived\ndata: %s\n\n", id, data)
		case <-r.Context().Done():
			return
		}
	}
}
