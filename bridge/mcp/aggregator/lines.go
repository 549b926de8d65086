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

// LinesType is the media type of a body of messages, one per line, in both directions at once: the standard input and output of a client
// of any revision. It is specific to lmosd.
const LinesType = "application/x-ndjson"

// lines serves a connection of lines until the client closes it.
func (h *Handler) lines(s protocol.Server, w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		http.Error(w, "the connection does not support full-duplex bodies", http.StatusHTTPVersionNotSupported)
		return
	}
	_ = control.SetReadDeadline(time.Time{}) // a client may be idle for hours
	w.Header().Set("Content-Type", LinesType)
	w.WriteHeader(http.StatusOK)
	if control.Flush() != nil {
		return
	}
	ctx := protocol.WithStream(protocol.WithCaller(r.Context(), callerOf(r)))
	both := &duplex{Reader: r.Body, w: w, control: control}
	defer both.Close()
	if err := backend.Serve(ctx, s, protocol.Lines(both), knownRevision); err != nil && ctx.Err() == nil {
		h.o.Log.Debug("MCP client on lines disconnected", "err", err)
	}
}

// knownRevision rejects requests of unsupported revisions. Messages of sessions name no revision.
func knownRevision(_ context.Context, m *protocol.Message) error {
	if !m.IsModern() {
		return nil
	}
	if bad := m.CheckVersion(); bad != nil {
		return bad
	}
	return nil
}

// A duplex is the body of a request and its response as one stream.
type duplex struct {
	io.Reader
	w       http.ResponseWriter
	control *http.ResponseController
}

func (d *duplex) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	return n, cmp.Or(err, d.control.Flush())
}

// Close unblocks Read.
func (d *duplex) Close() error { return d.control.SetReadDeadline(time.Now()) }
