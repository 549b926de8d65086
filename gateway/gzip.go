package gateway

import (
	"net/http"

	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
)

// writeBody writes a JSON document as the directory writes its own: with gzip if it has more than 1 kB and the client accepts that. Streams of
// events have other writers, because each event must arrive at once.
func writeBody(w http.ResponseWriter, status int, body []byte) {
	if rec, ok := w.(*recorder); ok && rec.request != nil {
		tdd.WriteCompressed(w, rec.request, status, interact.JSON, body)
		return
	}
	tdd.WriteBytes(w, status, interact.JSON, body)
}
