package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// CallOptions say how [Client.Invoke] invokes an action. The zero value sends no input and waits for the output.
type CallOptions struct {
	// ContentType is the media type of the input; empty means JSON.
	ContentType string
	// Body is the input; nil sends none. Stream is one that goes on while it is read, instead of Body, of a media type that is
	// neither JSON nor CBOR.
	Body   []byte
	Stream io.Reader
	// Accept is the media type that the output should have; empty means any.
	Accept string
	// Output gets the output as it comes, of any length; the result has none then. Values of JSON that come in parts are on a line
	// each (application/x-ndjson), unless Accept asks for another type than JSON. Nil keeps the output for the result, 16 MiB at
	// most.
	Output io.Writer
	// Began is told the media type of what Output gets: once, before the first byte, and of an action without output never. Nil
	// is told nothing. Without Output it is not used: the result says the type.
	Began func(media string)
	// Async asks that the action go on without the caller.
	Async bool
	// Key makes the call repeatable: with one key the action runs once (see interact.Message).
	Key string
	// Asks says that the caller can be asked: an action that wants to know more goes on as a Task that is input-required. It
	// needs a Key, and gets one if there is none. Of an action that reads a Stream nothing can be asked.
	Asks bool
	// Via chooses the way to the thing: the name of a [Path], a scheme or an address.
	Via string
	// Timing asks where the time goes.
	Timing bool
	// TraceParent makes the call a part of a trace: "00-", trace id, "-", parent id, "-", flags in lower-case hexadecimal digits
	// (W3C Trace Context §3.2.2, version 00). Flags of 01 ask the nodes that record spans to record it. Empty leaves the trace to
	// the node.
	TraceParent string
}

// A CallResult is what [Client.Invoke] returns.
type CallResult struct {
	// Output is what the action put out, of the media type Media; both are empty if there is none.
	Output []byte
	Media  string
	// Task is the run of an action that goes on: of one that was called with Async, or never answers at once, or asks for
	// something. [Client.WaitTask] waits for it. Nil for one that has ended.
	Task *Task
	// Timing says where the time went, if that was asked for.
	Timing *interact.Timing
}

// Invoke invokes an action of the thing that ref names. It waits like [Client.Call]; an input that is a stream may take ten
// minutes. An output that breaks off is the error [interact.NodeLost], after what had come was written to Output; a TraceParent
// that is none is [interact.Usage], and nothing is asked.
func (c *Client) Invoke(ctx context.Context, ref, action string, o CallOptions) (*CallResult, error) {
	if o.TraceParent != "" && !isTraceParent(o.TraceParent) {
		return nil, interact.Errorf(interact.Usage, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 is one",
			"%q is no traceparent", clip(o.TraceParent))
	}
	if o.Asks && o.Key == "" {
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
	result := &CallResult{}
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
		h.Set("Accept", cmp.Or(o.Accept, "*/*")+", application/x-ndjson;q=0.9") // less liked: it is for the node, not for the agent
	}
	set("Traceparent", o.TraceParent)
	set("Idempotency-Key", o.Key)
	set("Lmos-Via", o.Via)
	if o.Timing {
		h.Set("Lmos-Timing", "1")
	}
	if o.Asks {
		h.Add("Prefer", "lmos-input")
	}
	if o.Async {
		h.Add("Prefer", "respond-async") // RFC 7240 §4.1
	} else if deadline, ok := ctx.Deadline(); ok {
		h.Add("Prefer", fmt.Sprintf("wait=%d", int(math.Ceil(max(time.Until(deadline).Seconds(), 1)))))
	}
	return h
}

// traceParent is the form of version 00. An all-zero id is none (Trace Context §3.2.2.3, §3.2.2.4).
var traceParent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// isTraceParent reports whether a node takes text over. One that it does not, it replaces without a word.
func isTraceParent(text string) bool {
	return traceParent.MatchString(text) && strings.Trim(text[3:35], "0") != "" && strings.Trim(text[36:52], "0") != ""
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

// A writeErrorRecorder keeps the error of its writer, to tell it from an error of the source.
type writeErrorRecorder struct {
	io.Writer
	err error
}

func (w *writeErrorRecorder) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// readTask reads the state of a run as the status resource says it (WoT Profile, ActionStatus). Its id is the last part of href.
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

// readTiming reads a Server-Timing header (W3C Server Timing §2). What it does not know it leaves out.
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
