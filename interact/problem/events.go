package problem

import (
	"io"
	"iter"
	"net/http"

	"github.com/lmosd/lmosd/internal/sse"
)

// Send ends an event stream with err: a comment with its detail and the event [EventName].
func Send(w *sse.Writer, err error) {
	doc, detail := Marshal(err)
	if w.Comment(detail) == nil {
		_ = w.Send(EventName, "", doc) // a write fails only if the consumer disconnected
	}
}

// Events is [sse.Events] for a stream of a node. The sequence ends with the [*interact.Error] of an event [EventName].
func Events(src io.Reader, limit int) iter.Seq2[sse.Event, error] {
	return func(yield func(sse.Event, error) bool) {
		for e, err := range sse.Events(src, limit) {
			if err == nil && e.Name == EventName {
				e, err = sse.Event{}, Unmarshal(http.StatusInternalServerError, e.Data)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
