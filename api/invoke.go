package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/td"
)

// CallOptions are the options of [Client.Invoke]. The zero value sends no input and waits for the output.
type CallOptions struct {
	// ContentType is the media type of the input; empty means JSON.
	ContentType string
	// Body is the input; nil sends none. Stream is an input that is sent while it is read, instead of Body; its media type is neither JSON
	// nor CBOR.
	Body   []byte
	Stream io.Reader
	// Accept is the requested media type of the output; empty means any.
	Accept string
	// Output receives the output as it arrives, of any length; the result then has no output. Partial JSON outputs are on one line each
	// (application/x-ndjson), unless Accept is another type than JSON. If Output is nil, the result has the output, at most 16 MiB.
	Output io.Writer
	// Began is called with the media type of the data for Output, once, before its first byte. It may be nil.
	Began func(media string)
	// Async requests that the action continue without the caller.
	Async bool
	// Key makes the call repeatable: calls with one key run the action once (see interact.Message).
	Key string
	// Interactive declares that the caller can provide input: an action that requires input continues as a Task that is input-required. It
	// requires a Key; an empty one is generated. An action that reads a Stream cannot require input.
	Interactive bool
	// With is a delegation ([Delegation.Token]), by which the node uses the right of another one at its host. Empty is that of the client
	// ([Client.With]).
	With string
	// Via selects the path to the Thing: the name of a [Path], a scheme or a URL.
	Via string
	// Timing requests the durations of the stages.
	Timing bool
	// TraceParent makes the call a part of a trace: "00-", trace id, "-", parent id, "-", flags in lower-case hexadecimal digits (W3C Trace
	// Context §3.2.2, version 00). Flags 01 request that nodes record it. Empty leaves the trace to the node.
	TraceParent string
}

// A CallResult is the result of [Client.Invoke].
type CallResult struct {
	// Output is the output of the action, of the media type Media; both are empty without one.
	Output []byte
	Media  string
	// Task is the state of an action that continues: one with Async, one that is always asynchronous, or one that requires input.
	// [Client.WaitTask] waits for it. Nil for an action that has ended.
	Task *Task
	// Timing has the durations of the stages, if requested.
	Timing *interact.Timing
	// ID names the call for [Client.CallRecord]; empty at a node that records none.
	ID string
}

// Invoke invokes an action. It waits like [Client.Call]; a Stream may take 10 min. An interrupted output is the error [interact.NodeLost],
// after its beginning was written to Output. An invalid TraceParent is [interact.Usage], without a request.
func (c *Client) Invoke(ctx context.Context, ref, action string, o CallOptions) (*CallResult, error) {
	if o.TraceParent != "" && !isTraceParent(o.TraceParent) {
		return nil, interact.Errorf(interact.Usage, "for example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"%q is not a traceparent", clip(o.TraceParent))
	}
	if o.Interactive && o.Key == "" {
		o.Key = interact.NewID()
	}
	body := o.Stream
	if body == nil && o.Body != nil {
		body = bytes.NewReader(o.Body)
	}
	resp, err := c.send(ctx, http.MethodPost, affordance(ref, "actions", action), o.header(ctx, body != nil), body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	result := &CallResult{ID: resp.Header.Get(CallIDHeader)}
	if o.Timing {
		result.Timing = readTiming(resp.Header.Get("Server-Timing"))
	}
	if o.Output != nil && resp.StatusCode == http.StatusOK {
		result.Media = resp.Header.Get("Content-Type")
		if o.Began != nil {
			o.Began(result.Media)
		}
		return result, c.copyOutput(ctx, o.Output, resp.Body)
	}
	if result.Output, result.Media, err = c.read(ctx, resp); err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusCreated {
		if result.Task, err = readTask(result.Output, ref, action); err != nil {
			return nil, c.notANode(err)
		}
		result.Output, result.Media = nil, ""
	}
	return result, nil
}

func (o *CallOptions) header(ctx context.Context, body bool) http.Header {
	h := http.Header{}
	set := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	if body {
		h.Set("Content-Type", cmp.Or(o.ContentType, interact.JSON))
	}
	set("Accept", o.Accept)
	if o.Output != nil && (o.Accept == "" || td.IsJSON(o.Accept)) {
		h.Set("Accept", cmp.Or(o.Accept, "*/*")+", application/x-ndjson;q=0.9") // lower preference: for the node, not for the agent
	}
	set("Traceparent", o.TraceParent)
	set("Idempotency-Key", o.Key)
	set("Lmos-Via", o.Via)
	set(capabilityHeader, o.With)
	if o.Timing {
		h.Set("Lmos-Timing", "1")
	}
	if o.Interactive {
		h.Add("Prefer", "lmos-input")
	}
	if o.Async {
		h.Add("Prefer", "respond-async") // RFC 7240 §4.1
	} else {
		preferWait(ctx, h)
	}
	return h
}

// traceParent matches version 00. All-zero ids are invalid (Trace Context §3.2.2.3, §3.2.2.4).
var traceParent = lazyregexp.New(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// isTraceParent reports whether text is valid; a node would silently replace an invalid one.
func isTraceParent(text string) bool {
	return traceParent().MatchString(text) && strings.Trim(text[3:35], "0") != "" && strings.Trim(text[36:52], "0") != ""
}

// copyOutput copies an output to w. An error of w is returned unchanged.
func (c *Client) copyOutput(ctx context.Context, w io.Writer, body io.Reader) error {
	to := &writeErrorRecorder{Writer: w}
	_, err := io.Copy(to, body)
	switch {
	case err == nil:
		return nil
	case to.err != nil:
		return to.err
	}
	return c.lost(ctx, err)
}

// A writeErrorRecorder keeps the error of its writer, to distinguish it from an error of the source.
type writeErrorRecorder struct {
	io.Writer
	err error
}

func (w *writeErrorRecorder) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// readTask reads the state of a run from its status resource (WoT Profile, ActionStatus). Its id is the last part of href.
func readTask(data []byte, ref, action string) (*Task, error) {
	var s struct {
		Status    string          `json:"status"`
		Href      string          `json:"href"`
		Output    json.RawMessage `json:"output"`
		Error     json.RawMessage `json:"error"`
		Inputs    interact.Inputs `json:"lmosd:inputRequired"`
		Requested time.Time       `json:"timeRequested"`
		Ended     time.Time       `json:"timeEnded"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	id, err := url.PathUnescape(s.Href[strings.LastIndexByte(s.Href, '/')+1:])
	if err != nil || interact.StatusOf(s.Status) == interact.StatusNone {
		return nil, fmt.Errorf("the state of the action is %q at %q", clip(s.Status), clip(s.Href))
	}
	if len(s.Inputs) > 0 {
		s.Status = interact.StatusInputRequired.String()
	}
	return &Task{ID: id, Thing: ref, Action: action, Status: s.Status, Output: s.Output, Error: s.Error, Inputs: s.Inputs,
		Requested: s.Requested, Ended: s.Ended}, nil
}

// readTiming reads a Server-Timing header (W3C Server Timing §2). It ignores unknown entries.
func readTiming(header string) *interact.Timing {
	t := &interact.Timing{}
	durations := map[string]*time.Duration{"resolve": &t.Resolve, "host": &t.Host, "agent": &t.Agent, "total": &t.Total}
	for metric := range strings.SplitSeq(header, ",") {
		name, param, _ := strings.Cut(strings.TrimSpace(metric), ";")
		if text, ok := strings.CutPrefix(param, "dur="); ok && durations[name] != nil {
			if ms, err := strconv.ParseFloat(text, 64); err == nil && ms >= 0 && ms < 1e9 {
				*durations[name] = time.Duration(ms * float64(time.Millisecond))
			}
		}
		if text, ok := strings.CutPrefix(param, "desc="); ok && name == "path" {
			t.Path = strings.Trim(text, `"`)
		}
	}
	return t
}
