package interop

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// An httpTalk is a client of the WoT HTTP Basic Profile.
type httpTalk struct {
	api    string
	thing  string // the path of the thing
	client *http.Client
}

func newHTTPTalk(m *testmesh.Mesh, thing string) *httpTalk {
	return &httpTalk{m.API, "/things/" + url.PathEscape(thing), &http.Client{Transport: &http.Transport{}}}
}

// consumer returns a consumer of one kind of requests.
func (h *httpTalk) consumer(t *testing.T, say speech) *consumer {
	return &consumer{speaker{t, say}, h.client.CloseIdleConnections}
}

func openHTTP(t *testing.T, m *testmesh.Mesh, thing string) *consumer {
	h := newHTTPTalk(m, thing)
	return h.consumer(t, h.ask)
}

func openSSE(t *testing.T, m *testmesh.Mesh, thing string) *consumer {
	h := newHTTPTalk(m, thing)
	return h.consumer(t, h.events)
}

func openLongPoll(t *testing.T, m *testmesh.Mesh, thing string) *consumer {
	h := newHTTPTalk(m, thing)
	return h.consumer(t, h.poll)
}

func openWebhook(t *testing.T, m *testmesh.Mesh, thing string) *consumer {
	h := newHTTPTalk(m, thing)
	return h.consumer(t, h.hook)
}

// send sends a request whose body is JSON unless the header has another type. A bad status is an error with the body.
func (h *httpTalk) send(ctx context.Context, method, path string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.api+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", interact.JSON)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		raw, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", resp.Status, raw)
	}
	return resp, nil
}

// do sends a request and reads the whole response.
func (h *httpTalk) do(ctx context.Context, method, path string, body io.Reader, header ...string) (http.Header, []byte, error) {
	resp, err := h.send(ctx, method, path, body, header...)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.Header, raw, err
}

// methods are the methods of the resources of the Thing.
var methods = map[interact.Type]string{interact.ReadProperty: "GET", interact.WriteProperty: "PUT",
	interact.ReadAllProperties: "GET", interact.ReadMultipleProperties: "GET", interact.WriteMultipleProperties: "PUT",
	interact.WriteAllProperties: "PUT",
	interact.InvokeAction:       "POST", interact.QueryAction: "GET", interact.CancelAction: "DELETE", interact.QueryAllActions: "GET"}

// pathOf returns the path for m; the ids of runs are paths.
func (h *httpTalk) pathOf(m *interact.Message) string {
	path := h.thing + "/" + kindOf(m.Type)
	switch {
	case m.ActionID != "":
		return m.ActionID
	case m.Type == interact.WriteAllProperties:
		return path + "?all=true"
	case m.Type == interact.ReadMultipleProperties:
		var names []string
		_ = json.Unmarshal(m.Data, &names) // test values are JSON
		return path + "?names=" + strings.Join(names, ",")
	case m.Name != "":
		return path + "/" + m.Name
	}
	return path
}

// bodyOf returns the body of m: its data, or a stream.
func bodyOf(m *interact.Message) io.Reader {
	if m.Chunks == nil {
		return bytes.NewReader(m.Data)
	}
	r, w := io.Pipe()
	go func() { // it ends with the request, which closes r
		for chunk, err := range m.Chunks {
			if _, werr := w.Write(chunk); err != nil || werr != nil {
				w.CloseWithError(cmp.Or(err, werr))
				return
			}
		}
		w.Close()
	}()
	return r
}

// ask sends a request with one response, whole or with partial outputs.
func (h *httpTalk) ask(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	method := methods[m.Type]
	if method == "" {
		return errNot
	}
	var body io.Reader
	prefer := ""
	if method == "PUT" || method == "POST" {
		body = bodyOf(m)
	}
	if m.Detach {
		prefer = "respond-async"
	}
	resp, err := h.send(ctx, method, h.pathOf(m), body, "Content-Type", m.ContentType, "Accept", m.Accept, "Prefer", prefer,
		"Lmos-Via", m.Via, "Traceparent", m.TraceParent, "Tracestate", m.TraceState)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if m.Type == interact.InvokeAction && resp.StatusCode == http.StatusOK && resp.ContentLength < 0 {
		return parts(m, resp, tell)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	r := completed(m, resp.Header.Get("Content-Type"), raw)
	if m.Type == interact.QueryAction || resp.StatusCode == http.StatusCreated {
		if r, err = stateIn(m, raw); err != nil {
			return err
		}
	}
	tell(r)
	return nil
}

// parts yields the parts of a body as they arrive.
func parts(m *interact.Message, resp *http.Response, tell func(*interact.Message) bool) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		part := m.Reply(interact.ActionStatus, resp.Header.Get("Content-Type"), bytes.Clone(buf[:n]))
		part.Status = interact.StatusRunning
		switch {
		case n > 0 && !tell(part):
			return nil
		case err == io.EOF:
			tell(completed(m, "", nil))
			return nil
		case err != nil:
			return err
		}
	}
}

// events requests server-sent events: observations, or the states of an action.
func (h *httpTalk) events(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	method, prefer := "GET", ""
	var body io.Reader
	switch {
	case m.Type == interact.InvokeAction:
		method, body = "POST", bodyOf(m)
	case !m.Type.Long() && m.Type != interact.QueryAction:
		return errNot
	}
	if m.Detach {
		prefer = "respond-async"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := h.send(ctx, method, h.pathOf(m), body, "Content-Type", m.ContentType, "Accept", "text/event-stream",
		"Prefer", prefer, "Last-Event-ID", m.After, "Traceparent", m.TraceParent, "Tracestate", m.TraceState)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var name, id string
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			name = value
		case "id":
			id = value
		case "data":
			if name == "lmosd:problem" {
				return fmt.Errorf("%s", value)
			}
			r, err := h.event(m, name, id, []byte(value))
			if err != nil || !tell(r) || m.Type == interact.QueryAction { // its first event is the current state
				return err
			}
		}
	}
	return lines.Err()
}

// event reads one event.
func (h *httpTalk) event(m *interact.Message, name, id string, data []byte) (*interact.Message, error) {
	if !m.Type.Long() {
		return stateIn(m, data)
	}
	if m.Name != "" && m.Name != name {
		return nil, fmt.Errorf("an event is called %q", name)
	}
	r := m.Reply(interact.Event, "", data)
	r.ID = id
	return r, nil
}

// poll long-polls one event after the other.
func (h *httpTalk) poll(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	path := h.pathOf(m)
	switch m.Type {
	case interact.ObserveProperty, interact.ObserveAllProperties:
		path += "/observable"
	case interact.SubscribeEvent, interact.SubscribeAllEvents:
	default:
		return errNot
	}
	for after := m.After; ; {
		query := ""
		if after != "" {
			query = "?after=" + url.QueryEscape(after)
		}
		header, raw, err := h.do(ctx, "GET", path+query, nil)
		if err != nil {
			return err
		}
		r := m.Reply(interact.Event, "", raw)
		r.ID = header.Get("Lmos-Event-Id")
		if after = r.ID; !tell(r) {
			return nil
		}
	}
}

// hook receives events as webhooks at its own server.
func (h *httpTalk) hook(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	if !m.Type.Long() {
		return errNot
	}
	var all board[*interact.Message]
	came, leave := all.read()
	defer leave()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		event := m.Reply(interact.Event, "", raw)
		event.ID = r.Header.Get("Lmos-Event-Id")
		all.put(event)
	}))
	defer server.Close()
	where := asJSON(map[string]string{"callbackURL": server.URL})
	header, _, err := h.do(ctx, "POST", h.pathOf(m), bytes.NewReader(where), "Last-Event-ID", m.After)
	if err != nil {
		return err
	}
	self := header.Get("Location")
	for {
		select {
		case r := <-came:
			if tell(r) {
				continue
			}
			_, _, err = h.do(context.WithoutCancel(ctx), "DELETE", self, nil)
			return err
		case <-time.After(100 * time.Millisecond):
			_, raw, err := h.do(ctx, "GET", self, nil)
			var state struct{ Ended, LastError string }
			if err == nil {
				err = json.Unmarshal(raw, &state)
			}
			if err == nil && state.Ended != "" {
				err = errors.New(state.LastError)
			}
			if err != nil {
				return err
			}
		}
	}
}
