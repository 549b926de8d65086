package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/liveheap"
)

const voice = `
	"properties": {"ringtone": {"forms": [{"href": "BASE/ringtone", "contentType": "audio/wav"}]}},
	"actions": {
	"talk":   {"forms": [{"href": "BASE/json"}, {"href": "BASE/talk", "contentType": "audio/wav",
		"response": {"contentType": "audio/opus"}}]},
	"shout":  {"forms": [{"href": "BASE/shout", "contentType": "audio/wav", "contentCoding": "gzip",
		"response": {"contentType": "text/plain"}}]},
	"room":   {"uriVariables": {"room": {"type": "string"}}, "forms": [{"href": "BASE/rooms/{room}", "contentType": "audio/wav"}]},
	"export": {"output": {}, "forms": [{"href": "BASE/export"}]},
	"text":   {"output": {"type": "string"}, "forms": [{"href": "BASE/text", "response": {"contentType": "text/plain"}}]},
	"look":   {"forms": [{"href": "BASE/look", "contentType": "audio/wav", "htv:methodName": "GET"}]},
	"ask":    {"safe": true, "forms": [{"href": "BASE/ask", "contentType": "audio/wav"}]}}`

// streamTo invokes an action with a request stream.
func streamTo(name string, chunks iter.Seq2[[]byte, error]) *interact.Message {
	m := invoke(name, "")
	m.ContentType, m.Chunks = "audio/wav", chunks
	return m
}

// parts is a request stream of texts.
func parts(texts ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, text := range texts {
			if !yield([]byte(text), nil) {
				return
			}
		}
	}
}

// streamed writes the replies of a stream as "status media data".
func streamed(replies []*interact.Message) string {
	var b strings.Builder
	for _, r := range replies {
		fmt.Fprintf(&b, "%s %s %s\n", r.Status, r.ContentType, r.Data)
	}
	return b.String()
}

// echo responds to each read of the body, while the body arrives.
func echo(contentType string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.Header().Set("Content-Type", contentType)
		_ = rc.Flush()
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = w.Write(buf[:n])
				_ = rc.Flush()
			}
			if err != nil {
				return
			}
		}
	}
}

func TestStreamsOfBothDirections(t *testing.T) {
	t.Parallel()
	var seen http.Header
	agent := newRecorder(t, nil)
	agent.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		seen.Set("Length", strconv.FormatInt(r.ContentLength, 10))
		seen.Set("Path", r.URL.Path)
		echo("audio/opus; rate=48000")(w, r)
	})
	received := make(chan bool)
	m := streamTo("talk", func(yield func([]byte, error) bool) {
		for i := range 3 { // each chunk is answered before the next is spoken
			if !yield([]byte(strconv.Itoa(i)), nil) {
				return
			}
			<-received
		}
	})
	var got []*interact.Message
	for r, err := range newClient(t, Options{}).Thing(describe(t, agent.URL, voice)).Do(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, r); r.Status == interact.StatusRunning {
			received <- true
		}
	}
	const media = "audio/opus; rate=48000"
	if want := "running " + media + " 0\nrunning " + media + " 1\nrunning " + media + " 2\ncompleted  \n"; streamed(got) != want {
		t.Errorf("got %s, want %s", streamed(got), want)
	}
	if seen.Get("Content-Type") != "audio/wav" || seen.Get("Length") != "-1" || seen.Get("Path") != "/talk" ||
		seen.Get("Expect") != "" {
		t.Errorf("received %v", seen)
	}
	if got[0].Correlation != "1" || got[0].Name != "talk" {
		t.Errorf("not correlated: %+v", got[0])
	}
}

func TestRequestStreams(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				http.Error(w, err.Error(), 400)
				return
			}
			body = z
		}
		text, _ := io.ReadAll(body)
		if r.URL.Path == "/shout" {
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, string(text))
			return
		}
		responds(strconv.Quote(string(text)))(w, r)
	})
	c, thing := newClient(t, Options{}), describe(t, agent.URL, voice)
	with := func(m *interact.Message, data string) *interact.Message {
		m.Data = []byte(data)
		return m
	}
	upload := streamTo("ringtone", parts("ding", "dong"))
	upload.Type = interact.WriteProperty
	for name, tt := range map[string]struct {
		m    *interact.Message
		want string
		path string
	}{
		"chunks":              {streamTo("talk", parts("a", "", "b", "c")), `"abc"`, "/talk"},
		"no chunk":            {streamTo("talk", parts()), `""`, "/talk"},
		"data before them":    {with(streamTo("talk", parts("b")), "a"), `"ab"`, "/talk"},
		"compressed":          {streamTo("shout", parts("a", "b")), `ab`, "/shout"},
		"next to variables":   {with(streamTo("room", parts("a")), `{"room":"hall"}`), `"a"`, "/rooms/hall"},
		"a write":             {upload, `"dingdong"`, "/ringtone"},
		"a safe action, once": {streamTo("ask", parts("a")), `"a"`, "/ask"},
		"chunks larger than a part": {streamTo("talk", parts(strings.Repeat("x", 200<<10))), `"` + strings.Repeat("x", 200<<10) +
			`"`, "/talk"},
	} {
		got, err := ask(t, c, thing, tt.m)
		if err != nil || string(got.Data) != tt.want || agent.last(t).path != tt.path {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestRequestStreamsThatDoNotFit(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	c, thing := newClient(t, Options{}), describe(t, agent.URL, voice)
	typed := func(contentType string) *interact.Message {
		m := streamTo("room", parts("x"))
		m.ContentType = contentType
		m.Data = []byte(`{"room":"hall"}`)
		return m
	}
	more := streamTo("room", parts("x"))
	more.Data = []byte(`{"room":"hall","volume":1}`)
	for name, tt := range map[string]struct {
		m    *interact.Message
		code interact.Code
	}{
		"another type":              {typed("video/mp4"), interact.UnsupportedType},
		"JSON":                      {typed(""), interact.UnsupportedType},
		"a variable is missing":     {streamTo("room", parts("x")), interact.Invalid},
		"more than variables":       {more, interact.Invalid},
		"a method that has no body": {streamTo("look", parts("x")), interact.NotAllowed},
	} {
		_, err := ask(t, c, thing, tt.m)
		if e := interact.AsError(err); e == nil || e.Code != tt.code {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
}

// Half of a stream must not look whole to the agent, and its error is that of the interaction.
func TestRequestStreamThatBreaks(t *testing.T) {
	t.Parallel()
	received := make(chan error, 10)
	agent := newRecorder(t, nil)
	agent.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/talk" {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Content-Type", "audio/opus")
			_, _ = io.WriteString(w, "listening")
			_ = http.NewResponseController(w).Flush()
		}
		_, err := io.ReadAll(r.Body)
		received <- err
	})
	for _, name := range []string{"talk", "ask"} { // while an answer passes, and before there is one
		m := streamTo(name, func(yield func([]byte, error) bool) {
			_ = yield([]byte("a"), nil) && yield(nil, interact.Errorf(interact.RateLimited, "speak slower", "too fast"))
		})
		_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, voice), m)
		if e := wantError(t, err, interact.RateLimited); e.Error() != "too fast" {
			t.Errorf("got %v", e)
		}
		if err := <-received; err == nil {
			t.Errorf("%s: half of a stream looked whole", name)
		}
	}
}

// The agent answers before it has read all, or does not read the rest; the goroutine that sends ends with the next chunk.
func TestAnswerBeforeTheEndOfTheRequest(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, nil)
	agent.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = r.Body.Read(make([]byte, 1))
		if r.URL.Path == "/ask" {
			http.Error(w, "too long", http.StatusRequestEntityTooLarge)
			return
		}
		responds(`"enough"`)(w, r)
	})
	for name, code := range map[string]interact.Code{"talk": 0, "ask": interact.AgentFailed} {
		c := newClient(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan bool)
		m := streamTo(name, func(yield func([]byte, error) bool) {
			defer close(left)
			for yield([]byte("a"), nil) {
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return
				}
			}
		})
		got, err := interact.Call(ctx, c.Thing(describe(t, agent.URL, voice)), m)
		if code == 0 && (err != nil || string(got.Data) != `"enough"`) {
			t.Errorf("got %v, %v", got, err)
		} else if code != 0 {
			wantError(t, err, code)
		}
		<-left
		cancel()
	}
}

func TestRequestStreamEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, nil)
	agent.Config.Handler = echo("audio/opus")
	c := newClient(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	m := streamTo("talk", func(yield func([]byte, error) bool) { // a consumer that sends one chunk and then nothing
		if yield([]byte("a"), nil) {
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	})
	for r, err := range c.Thing(describe(t, agent.URL, voice)).Do(ctx, m) {
		if err != nil || string(r.Data) != "a" {
			t.Errorf("got %v, %v", r, err)
		}
		break
	}
	cancel()
	c.Close() // waits for the goroutine
	_, err := ask(t, c, describe(t, agent.URL, voice), streamTo("talk", parts("a")))
	wantError(t, err, interact.ShuttingDown)
}

func TestStreamedTypes(t *testing.T) {
	t.Parallel()
	answer := func(contentType string, length int, texts ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if contentType != "" {
				w.Header().Set("Content-Type", contentType)
			} else {
				w.Header()["Content-Type"] = nil
			}
			if length > 0 {
				w.Header().Set("Content-Length", strconv.Itoa(length))
			}
			for _, text := range texts {
				_, _ = io.WriteString(w, text)
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
	const large = streamFrom + 1
	tests := []struct {
		name, action string
		answer       http.HandlerFunc
		parts        bool
		data         string
	}{
		{"lines of JSON", "export", answer("application/x-ndjson", 0, "{}\n", "{}\n"), true, "{}\n{}\n"},
		{"an event stream", "export", answer("text/event-stream", 0, "data: 1\n\n"), true, "data: 1\n\n"},
		{"text in chunks", "text", answer("text/plain", 0, "a", "b"), true, "ab"},
		{"text without a label", "text", answer("", 0, "a", "b"), true, "ab"},
		{"text of a known length", "text", answer("text/plain", 2, "a", "b"), false, "ab"},
		{"large text", "text", answer("text/plain", large, strings.Repeat("x", large)), true, strings.Repeat("x", large)},
		{"a picture", "text", answer("image/png", 3, "png"), false, "png"},
		{"a large picture", "export", answer("image/png", large, strings.Repeat("x", large)), true, strings.Repeat("x", large)},
		{"JSON in chunks", "export", answer("application/json", 0, "[1,", "2]"), false, "[1,2]"},
		{"JSON of another kind in chunks", "export", answer("application/senml+json", 0, "[1,", "2]"), false, "[1,2]"},
		{"JSON without a label in chunks", "export", answer("", 0, "[1,", "2]"), false, "[1,2]"},
		{"JSON declared as text", "export", answer("text/plain; charset=utf-8", 0, "[1,", "2]"), false, "[1,2]"},
		{"CBOR in chunks", "export", answer("application/cbor", 0, "\x01"), false, "\x01"},
		{"an empty stream", "text", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_ = http.NewResponseController(w).Flush()
		}, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			agent := newRecorder(t, tt.answer)
			var data []byte
			var states []interact.Status
			for r, err := range newClient(t, Options{}).Thing(describe(t, agent.URL, voice)).Do(t.Context(), invoke(tt.action, "")) {
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Data) > maxPart && tt.parts {
					t.Errorf("a part of %d bytes", len(r.Data))
				}
				data, states = append(data, r.Data...), append(states, r.Status)
			}
			if string(data) != tt.data {
				t.Errorf("got %.100q", data)
			}
			if tt.parts != (len(states) > 1 || tt.data == "") || states[len(states)-1] != interact.StatusCompleted {
				t.Errorf("states %v", states)
			}
		})
	}
}

func TestStreamIsAnAnswerOfTheSchema(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "a")
		_ = http.NewResponseController(w).Flush()
	})
	thing := describe(t, agent.URL, voice)
	m := invoke("text", "")
	checked := interact.Chain(newClient(t, Options{}).Thing(thing), interact.Checked(thing), interact.CheckedReplies(thing))
	if got, err := interact.Call(t.Context(), checked, m); err != nil || got.Status != interact.StatusCompleted {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestStreamsThatBreak(t *testing.T) {
	t.Parallel()
	begin := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
	}
	hold := make(chan bool)
	defer close(hold)
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		code   interact.Code
		says   string
		parts  string
	}{
		"in the middle": {func(w http.ResponseWriter, _ *http.Request) { begin(w); panic(http.ErrAbortHandler) },
			interact.AgentFailed, "broke off after 4 bytes", "half"},
		"at the deadline": {func(w http.ResponseWriter, r *http.Request) { begin(w); <-r.Context().Done() }, interact.Timeout,
			"in time", "half"},
		"in its compression": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "text/plain")
			packed := zip(strings.Repeat("half ", 10000))
			_, _ = w.Write(packed[:len(packed)/2])
			_ = http.NewResponseController(w).Flush()
		}, interact.AgentFailed, "broke off", "half"},
		"before it begins": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			begin(w)
		}, interact.AgentFailed, "br", ""},
		"by a bad status": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			begin(w)
		}, interact.AgentFailed, "answered 500: half", ""},
	} {
		agent := newRecorder(t, tt.answer)
		m := invoke("text", "")
		m.Deadline = time.Now().Add(300 * time.Millisecond)
		var data []byte
		var last error
		for r, err := range newClient(t, Options{}).Thing(describe(t, agent.URL, voice)).Do(t.Context(), m) {
			if last = err; err == nil {
				data = append(data, r.Data...)
			}
		}
		if e := wantError(t, last, tt.code); !strings.Contains(everything(e), tt.says) || !strings.HasPrefix(string(data), tt.parts) {
			t.Errorf("%s: got %q, %s", name, data, everything(e))
		}
	}
}

// A stream takes no more memory than its parts, and the agent writes no faster than the consumer reads.
func TestLongStreamsUseLittleMemory(t *testing.T) {
	const size = 64 << 20
	block := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	agent := newRecorder(t, nil)
	agent.Config.Handler = echo("audio/opus")
	m := streamTo("talk", func(yield func([]byte, error) bool) {
		for range size / len(block) {
			if !yield(block, nil) {
				return
			}
		}
	})
	m.Deadline = time.Now().Add(2 * time.Minute)
	total, most, n, before := 0, int64(0), 0, liveheap.Bytes()
	for r, err := range newClient(t, Options{}).Thing(describe(t, agent.URL, voice)).Do(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		total += len(r.Data)
		if n++; n%100 == 0 {
			most = max(most, liveheap.Bytes()-before)
		}
	}
	if total != size {
		t.Errorf("%d bytes came back", total)
	}
	if most > 4<<20 {
		t.Errorf("%d bytes were held", most)
	}
}

func TestAgentWaitsForTheConsumer(t *testing.T) {
	t.Parallel()
	written := make(chan int, 1)
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		n := 0
		for {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			k, err := w.Write(make([]byte, 64<<10))
			if n += k; err != nil {
				written <- n
				return
			}
		}
	})
	thing := newClient(t, Options{}).Thing(describe(t, agent.URL, voice))
	for _, err := range thing.Do(t.Context(), invoke("export", "")) {
		if err != nil {
			t.Fatal(err)
		}
		if n := <-written; n > 32<<20 { // what the sockets hold
			t.Errorf("the agent got rid of %d bytes", n)
		}
		break
	}
}

// The agent may ignore the key: a request that it received is not repeated.
func TestKeyOfAnInvocation(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, nil)
	agent.answer = func(w http.ResponseWriter, r *http.Request) {
		if len(agent.requests()) == 2 { // swallowed on a kept connection
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.Close()
			}
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	c, thing := newClient(t, Options{}), describe(t, agent.URL, lamp)
	for i := range 2 {
		m := invoke("toggle", "")
		m.Key = "order 7"
		_, err := ask(t, c, thing, m)
		if e := interact.AsError(err); i == 0 && err != nil || i == 1 && (e == nil || e.Code != interact.Unreachable || !e.Started) {
			t.Fatal(i, err)
		}
	}
	var keys []string
	for _, r := range agent.requests() {
		keys = append(keys, r.header.Get("Idempotency-Key"))
	}
	if !slices.Equal(keys, []string{"order 7", "order 7"}) {
		t.Errorf("got %q", keys)
	}
}

func TestErrorsOfTheRequestStreamWrapTheirCause(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	cause := errors.New("the microphone is gone")
	m := streamTo("talk", func(yield func([]byte, error) bool) { yield(nil, cause) })
	_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, voice), m)
	if !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// TestAgentThatClosesTheConnection: an interaction ends with its connection, although its request stream is silent.
func TestAgentThatClosesTheConnection(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, nil)
	agent.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	})
	silent := make(chan struct{})
	m := streamTo("talk", func(yield func([]byte, error) bool) {
		if yield([]byte("one"), nil) {
			<-silent
		}
	})
	_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, voice), m)
	close(silent)
	wantError(t, err, interact.Unreachable)
}
