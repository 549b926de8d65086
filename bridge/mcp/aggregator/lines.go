package aggregator

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// LinesType is the media type of a body that is messages, one a line, both ways at once: what a client and a server say to each other on
// standard input and output, of either era. It is lmosd's own.
const LinesType = "application/x-ndjson"

// lines answers what comes line by line, until the client closes its end.
func (h *Handler) lines(s protocol.Server, w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		http.Error(w, "lines go both ways at once, which this connection cannot", http.StatusHTTPVersionNotSupported)
		return
	}
	_ = control.SetReadDeadline(time.Time{}) // a client may say nothing for hours
	w.Header().Set("Content-Type", LinesType)
	w.WriteHeader(http.StatusOK)
	if control.Flush() != nil {
		return
	}
	ctx := protocol.WithCaller(r.Context(), callerOf(r))
	both := &duplex{Reader: r.Body, w: w, control: control}
	defer both.Close()
	if err := backend.Serve(ctx, s, protocol.Lines(both), knownRevision); err != nil && ctx.Err() == nil {
		h.o.Log.Debug("a client of MCP on lines has left", "err", err)
	}
}

// knownRevision refuses requests of a revision that is not served. Those of the old era name none.
func knownRevision(_ context.Context, m *protocol.Message) error {
	if !m.IsModern() {
		return nil
	}
	if bad := m.CheckVersion(); bad != nil {
		return bad
	}
	return nil
}

// A duplex is a request and its answer as one stream.
type duplex struct {
	io.Reader
	w       http.ResponseWriter
	control *http.ResponseController
}

func (d *duplex) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	return n, cmp.Or(err, d.control.Flush())
}

// Close ends a read that waits.
func (d *duplex) Close() error { return d.control.SetReadDeadline(time.Now()) }
