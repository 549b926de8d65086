package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

func post(id string) map[string]string { return map[string]string{sessionID: id} }

func req(id, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"_meta":{"progressToken":%s}}}`, id, method, id)
}

// A session belongs to its caller, from initialize to DELETE.
func TestSessionLifecycle(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{Caller: func(r *http.Request) string { return r.Header.Get("X-Caller") }})
	ada := map[string]string{"X-Caller": "ada"}
	id, conn := r.begin(ada)
	ada[sessionID] = id
	status, body, head := r.ask("POST", req("1", "echo"), ada)
	if status != 200 || !strings.Contains(body, `"id":1`) || head.Get("Content-Type") != jsonType {
		t.Errorf("got %d %s", status, body)
	}
	if status, _, _ := r.ask("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ada); status != 202 {
		t.Errorf("a notification: got %d", status)
	}
	if m := next(t, conn.incoming); m.Method() != protocol.Initialized {
		t.Errorf("the server received %s", m.Bytes())
	}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if status, _, _ := r.ask(method, req("2", "echo"), map[string]string{"X-Caller": "eve", sessionID: id}); status != 404 {
			t.Errorf("%s of another caller: got %d", method, status)
		}
	}
	if status, _, _ := r.ask("DELETE", "", ada); status != 204 || conn.ctx.Err() == nil {
		t.Errorf("DELETE: got %d", status)
	}
	if status, _, _ := r.ask("POST", req("3", "echo"), ada); status != 404 {
		t.Errorf("after the end: got %d", status)
	}
	r.server.refused = errors.New("no room")
	if status, body, _ := r.ask("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize"}`, nil); status != 502 || !strings.Contains(body, "no room") {
		t.Errorf("refused: got %d %s", status, body)
	}
}

// Each message belongs to one stream: responses and progress to their request, requests of the server to a waiting one, others to the
// common stream.
func TestStreamsOfSession(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{})
	id, conn := r.begin(nil)
	first := start(t, r, id, conn, "1")
	second := start(t, r, id, conn, "2")
	conn.outgoing <- note(protocol.Progress)
	if e := next(t, events(t, <-first)); e.m.Method() != protocol.Progress {
		t.Errorf("got %s", e.m.Bytes())
	}
	conn.outgoing <- protocol.Request("9", "elicitation/create", nil)
	stream := events(t, <-second)
	if e := next(t, stream); e.m.Method() != "elicitation/create" {
		t.Errorf("got %s", e.m.Bytes())
	}
	if status, _, _ := r.ask("POST", `{"jsonrpc":"2.0","id":9,"result":{}}`, post(id)); status != 202 || next(t, conn.incoming).ID() != "9" {
		t.Errorf("an answer: got %d", status)
	}
	common := events(t, r.send(t.Context(), "GET", "", post(id)))
	conn.outgoing <- note(protocol.ToolsChanged)
	if e := next(t, common); e.m.Method() != protocol.ToolsChanged {
		t.Errorf("got %s", e.m.Bytes())
	}
	if status, body, _ := r.ask("POST", req("2", "slow"), post(id)); status != 400 || !strings.Contains(body, "is already in use") {
		t.Errorf("a duplicate id: got %d %s", status, body)
	}
	conn.outgoing <- protocol.Respond("2", struct{}{})
	if e := next(t, stream); e.m.ID() != "2" {
		t.Errorf("got %s", e.m.Bytes())
	}
	if _, more := <-stream; more {
		t.Error("the stream continues after the response")
	}
	again := events(t, r.send(t.Context(), "GET", "", post(id))) // a second reader takes over
	if _, more := <-common; more {
		t.Error("both streams continue")
	}
	conn.outgoing <- note(protocol.ToolsChanged)
	next(t, again)
	conn.cancel() // the server ends
	if _, more := <-again; more {
		t.Error("the stream continues after the end")
	}
}

// start sends a request that waits at the server. The channel receives its response after it has started.
func start(t *testing.T, r *testServer, id string, conn *fakeConn, request string) <-chan *http.Response {
	t.Helper()
	out := make(chan *http.Response, 1)
	go func() { out <- r.send(t.Context(), "POST", req(request, "slow"), post(id)) }()
	next(t, conn.incoming)
	return out
}

// A client that lost its connection resumes the stream; the loss cancels nothing.
func TestResume(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{})
	id, conn := r.begin(nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		next(t, conn.incoming)
		conn.outgoing <- note(protocol.Progress)
	}()
	stream := events(t, r.send(ctx, "POST", req("1", "slow"), post(id)))
	e := next(t, stream)
	cancel()
	for range stream {
	}
	conn.outgoing <- note(protocol.Progress)
	conn.outgoing <- protocol.Respond("1", struct{}{})
	headers := post(id)
	headers["Last-Event-ID"] = e.id
	again := events(t, r.send(t.Context(), "GET", "", headers))
	if next(t, again).m.Method() != protocol.Progress || next(t, again).m.ID() != "1" {
		t.Error("the resumed stream skips an event")
	}
	if _, more := <-again; more {
		t.Error("the stream continues after the response")
	}
	for _, bad := range []string{"99-1", "x", "-"} {
		headers["Last-Event-ID"] = bad
		if status, _, _ := r.ask("GET", "", headers); status != 404 {
			t.Errorf("%s: got %d", bad, status)
		}
	}
}

// Sessions are bounded: an idle one makes room, a busy one does not.
func TestTooManySessions(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{MaxSessions: 2})
	first, _ := r.begin(nil)
	second, conn := r.begin(nil)
	waits := start(t, r, second, conn, "1")
	third, conn3 := r.begin(nil)
	if status, _, _ := r.ask("POST", req("1", "echo"), post(first)); status != 404 {
		t.Errorf("the idle session: got %d", status)
	}
	waits3 := start(t, r, third, conn3, "1")
	status, _, head := r.ask("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize"}`, nil)
	if status != 503 || head.Get("Retry-After") == "" {
		t.Errorf("got %d", status)
	}
	conn.cancel()
	conn3.cancel()
	(<-waits).Body.Close()
	(<-waits3).Body.Close()
}

// The caller with the most sessions makes room first.
func TestSessionsOfManyCallers(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{MaxSessions: 3, Caller: func(r *http.Request) string { return r.Header.Get("X-Caller") }})
	as := func(caller string) map[string]string { return map[string]string{"X-Caller": caller} }
	first, _ := r.begin(as("ada"))
	for range 10 {
		r.begin(as("eve"))
	}
	status, _, _ := r.ask("POST", req("1", "echo"), map[string]string{sessionID: first, "X-Caller": "ada"})
	if status != 200 {
		t.Errorf("the only session of one caller: got %d", status)
	}
	if status, _, _ := r.ask("POST", req("1", "echo"), map[string]string{sessionID: first, "X-Caller": "eve"}); status != 404 {
		t.Errorf("a session of another: got %d", status)
	}
}

// An idle session ends; one with an open stream is not idle.
func TestIdleSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := New(Options{Server: f, Idle: time.Minute})
		conn, _ := f.Session(t.Context())
		<-f.begun
		s := &session{h: h, done: make(chan struct{}), conn: conn, open: map[protocol.ID]*eventQueue{}, queues: []*eventQueue{newEventQueue(0)}}
		ctx, cancel := context.WithCancel(t.Context())
		s.cancel, s.idle = cancel, time.AfterFunc(h.o.Idle, cancel)
		h.admit(s)
		go s.pump(ctx)
		s.enter()
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Error("the session ended while it was used")
		}
		s.leave()
		time.Sleep(time.Minute + time.Second)
		<-s.done
		h.Close()
	})
}

// A client that does not read does not block the server, and one without the common stream loses only its messages.
func TestEventQueueIsBounded(t *testing.T) {
	t.Parallel()
	s := &session{open: map[protocol.ID]*eventQueue{}, queues: []*eventQueue{newEventQueue(0)}}
	big := protocol.Request("", protocol.ToolsChanged, map[string]string{"x": strings.Repeat("x", 1<<20)})
	for range 100 {
		if !s.enqueue(big) {
			t.Fatal("the session of a client without the common stream ended")
		}
	}
	if n := s.queues[0].bytes(); n > 2*maxReplayBytes+1024 {
		t.Errorf("%d bytes are kept", n)
	}
	o, _ := s.newQueue(protocol.Request("1", "x", nil))
	o.attach()
	n := 0
	for ; s.enqueue(protocol.Request("", "notifications/message", map[string]json.RawMessage{"x": big.Params()})); n++ {
		if n > 100 {
			t.Fatal("the session of a client that does not read continues")
		}
	}
	if n < 25 {
		t.Errorf("the session ended after %d MiB", n)
	}
}

// Streams of ended requests are removed, the oldest first.
func TestEventQueuesAreBounded(t *testing.T) {
	t.Parallel()
	s := &session{open: map[protocol.ID]*eventQueue{}, queues: []*eventQueue{newEventQueue(0)}}
	for i := range 1000 {
		m := protocol.Request(protocol.ID(fmt.Sprint(i)), "x", nil)
		if _, e := s.newQueue(m); e != nil {
			t.Fatal(e)
		}
		s.enqueue(protocol.Respond(m.ID(), struct{}{}))
	}
	for i := range maxQueues {
		if _, e := s.newQueue(protocol.Request(protocol.ID(fmt.Sprint(i)), "x", nil)); (e != nil) != (i == maxQueues-1) {
			t.Fatalf("%d: got %v", i, e)
		}
	}
}

// Close ends running requests and rejects new ones.
func TestClose(t *testing.T) {
	t.Parallel()
	f := newFake()
	h := New(Options{Server: f})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			s := &session{h: h, id: fmt.Sprint(time.Now().UnixNano()), busy: 1}
			s.cancel = func() {}
			if h.admit(s) {
				h.remove(s)
			}
		})
	}
	h.Close()
	clients.Wait()
	if h.admit(&session{}) {
		t.Error("a closed handler starts sessions")
	}
}

// Progress and log messages above the limit are dropped, and the response is not.
func TestProgressRateOfSession(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{})
	id, conn := r.begin(nil)
	response := start(t, r, id, conn, "2")
	for range 5000 {
		conn.outgoing <- note(protocol.LogMessage)
	}
	conn.outgoing <- protocol.Respond("2", struct{}{})
	delivered := 0
	for e := range events(t, next(t, response)) {
		if e.m.Method() == protocol.LogMessage {
			delivered++
		}
	}
	if delivered == 0 || delivered > 4000 { // 256, and 100 per second
		t.Errorf("%d messages", delivered)
	}
}
