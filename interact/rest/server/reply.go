package server

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// outcome returns the error of a final status.
func outcome(reply *interact.Message) error {
	const hint = "see the agent's log"
	switch reply.Status {
	case interact.StatusFailed:
		return &interact.Error{Code: interact.AgentFailed, Remote: true, Title: "the action failed", Hint: hint}
	case interact.StatusCancelled:
		return &interact.Error{Code: interact.Cancelled, Remote: true, Title: "the action was cancelled", Hint: hint}
	case interact.StatusPending, interact.StatusRunning:
		return &interact.Error{Code: interact.AgentFailed, Title: "the action ended without a result", Hint: hint}
	}
	return nil
}

// transcoded returns the data of a reply in the media type accept, if it can be converted. Invalid JSON or CBOR of the agent is unchanged:
// the consumer may be able to use it.
func transcoded(reply *interact.Message, accept string) (data []byte, media string) {
	data, media, err := interact.Transcode(reply.Data, reply.Media(), accept)
	if err != nil {
		return reply.Data, reply.Media()
	}
	return data, media
}

// respond writes the reply of a successful interaction: 200 with its data, or 204.
func (v *visit) respond(m, reply *interact.Message) error {
	data, media := transcoded(reply, m.Accept)
	v.describeReply(m, reply)
	switch m.Type {
	case interact.WriteProperty, interact.WriteMultipleProperties, interact.WriteAllProperties:
		data = nil
	}
	if len(data) == 0 {
		v.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	v.write(http.StatusOK, media, data)
	return nil
}

// describeReply sets the header fields of every interaction.
func (v *visit) describeReply(m, reply *interact.Message) {
	h := v.w.Header()
	h["Cache-Control"] = noStore
	if m.TraceParent != "" {
		h.Set("Traceparent", m.TraceParent)
	}
	if m.Timing != nil {
		h.Set("Server-Timing", serverTiming(reply.Timing, time.Since(v.began)))
	}
}

// write writes a response.
func (v *visit) write(status int, media string, data []byte) {
	v.describeData(media)
	v.w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = v.w.Write(data) // an error means that the consumer has disconnected
	}
}

// The values of header fields of every response, which are not changed.
var (
	noStore = []string{"no-store"}
	noSniff = []string{"nosniff"}
	sandbox = []string{"sandbox; default-src 'none'"}
)

// describeData sets the headers of the data of an agent. The data is untrusted, and its origin is that of the node: a browser must not
// execute it.
func (v *visit) describeData(media string) {
	h := v.w.Header()
	h["X-Content-Type-Options"], h["Content-Security-Policy"] = noSniff, sandbox
	if !form.HeaderOK("Content-Type", media) {
		media = "application/octet-stream"
	}
	h.Set("Content-Type", media)
}

// writeJSON writes a document of this server, in CBOR if the consumer prefers it.
func (v *visit) writeJSON(status int, m *interact.Message, doc any) error {
	data, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode the response: %w", err)
	}
	media := interact.JSON
	if packed, packedMedia, err := interact.Transcode(data, media, m.Accept); err == nil {
		data, media = packed, packedMedia
	}
	v.w.Header().Set("Cache-Control", "no-store")
	v.write(status, media, data)
	return nil
}

// serverTiming returns the measured times (W3C Server Timing §2; in milliseconds). Times that were not measured are omitted; the default
// of the total is took.
func serverTiming(t *interact.Timing, took time.Duration) string {
	if t == nil {
		t = &interact.Timing{}
	}
	var metrics []string
	for _, stage := range []struct {
		name string
		dur  time.Duration
	}{{"resolve", t.Resolve}, {"host", t.Host}, {"agent", t.Agent}, {"total", cmp.Or(t.Total, took)}} {
		if stage.dur > 0 {
			metrics = append(metrics, fmt.Sprintf("%s;dur=%.3f", stage.name, float64(stage.dur)/float64(time.Millisecond)))
		}
	}
	if t.Path != "" && form.HeaderOK("Server-Timing", t.Path) && !strings.ContainsAny(t.Path, `"\`) {
		metrics = append(metrics, `path;desc="`+t.Path+`"`)
	}
	return strings.Join(metrics, ", ")
}

// jsonOf returns data as JSON: JSON unchanged, CBOR converted, text as a string, and other data as base64url in a string (RFC 8949
// §6.1). It is nil if there is no data.
func jsonOf(data []byte, media string) json.RawMessage {
	if len(data) == 0 {
		return nil
	}
	if interact.IsCBOR(media) {
		if converted, _, err := interact.Transcode(data, media, interact.JSON); err == nil {
			return converted
		}
	} else if td.IsJSON(media) && json.Valid(data) {
		return bytes.TrimSpace(data)
	}
	text := string(data)
	if !utf8.Valid(data) || interact.IsCBOR(media) {
		text = base64.RawURLEncoding.EncodeToString(data)
	}
	quoted, _ := json.Marshal(text) // a string always has a JSON form
	return quoted
}

// path returns the path of a resource of the Thing, with the reference of the consumer. Each name is escaped.
func (v *visit) path(names ...string) string { return thingPath(v.ref, names...) }
