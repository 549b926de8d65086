package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/internal/sse"
)

// began and ended are the times of the runs in these tests.
var (
	began = time.Date(2026, 11, 20, 10, 0, 0, 123e6, time.UTC)
	ended = began.Add(time.Second)
)

// status makes a state of a run.
func status(m *interact.Message, s interact.Status, id, data string) *interact.Message {
	r := m.Reply(interact.ActionStatus, "", []byte(data))
	r.Status, r.Began = s, began
	if id != "" {
		r.ActionID = id
	}
	if s.Final() {
		r.Time = ended
	}
	return r
}

// The response to a detached action has the address of its state.
func TestAsynchronousAction(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, path, prefer, applied string }{
		{"preferred", "/actions/toggle", `respond-async, wait=5`, "respond-async"},
		{"by its description", "/actions/clean", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				if yield(status(m, interact.StatusPending, "run/1", ""), nil) {
					t.Error("the consumer stays")
				}
			})
			resp, body := send(t, "POST", w.url+tt.path, "", "Prefer", tt.prefer)
			href := "/things/house" + tt.path + "/run%2F1"
			if resp.StatusCode != 201 || resp.Header.Get("Location") != href || resp.Header.Get("Preference-Applied") != tt.applied {
				t.Errorf("got %d %v", resp.StatusCode, resp.Header)
			}
			if want := `{"status":"pending","href":"` + href + `","timeRequested":"2026-11-20T10:00:00.123Z"}`; body != want {
				t.Errorf("got %s, want %s", body, want)
			}
			if m := receive(t, w.asked); !m.Detach || m.Type != interact.InvokeAction {
				t.Errorf("received %+v", m)
			}
		})
	}
}

// A host that cannot detach an action responds with its result. The server adds a missing time.
func TestAsynchronousActionThatIsNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		_ = yield(status(m, interact.StatusPending, "", ""), nil) && yield(status(m, interact.StatusCompleted, "1", "5"), nil)
	})
	if resp, body := send(t, "POST", w.url+"/actions/clean", ""); resp.StatusCode != 200 || body != "5" {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	bare := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := m.Reply(interact.ActionStatus, "", nil)
		r.Status, r.ActionID = interact.StatusRunning, "1"
		yield(r, nil)
	})
	_, body := send(t, "POST", bare.url+"/actions/clean", "")
	var s struct{ TimeRequested time.Time }
	if err := json.Unmarshal([]byte(body), &s); err != nil || time.Since(s.TimeRequested) > time.Minute {
		t.Errorf("got %s", body)
	}
}

func TestTask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		reply func(*interact.Message) *interact.Message
		want  string
	}{
		{"running", func(m *interact.Message) *interact.Message { return status(m, interact.StatusRunning, "", "") },
			`{"status":"running","href":"/things/house/actions/clean/7","timeRequested":"2026-11-20T10:00:00.123Z"}`},
		{"completed", func(m *interact.Message) *interact.Message {
			return status(m, interact.StatusCompleted, "", `{"rooms": 3}`)
		},
			`{"status":"completed","href":"/things/house/actions/clean/7","output":{"rooms":3},` +
				`"timeRequested":"2026-11-20T10:00:00.123Z","timeEnded":"2026-11-20T10:00:01.123Z"}`},
		{"completed with text", func(m *interact.Message) *interact.Message {
			r := status(m, interact.StatusCompleted, "", `clean`)
			r.ContentType = "text/plain"
			return r
		}, `{"status":"completed","href":"/things/house/actions/clean/7","output":"clean",` +
			`"timeRequested":"2026-11-20T10:00:00.123Z","timeEnded":"2026-11-20T10:00:01.123Z"}`},
		{"failed", func(m *interact.Message) *interact.Message {
			r := status(m, interact.StatusFailed, "", `{"title":"stuck"}`)
			r.ContentType = problem.MediaType
			return r
		}, `{"status":"failed","href":"/things/house/actions/clean/7","error":{"title":"stuck"},` +
			`"timeRequested":"2026-11-20T10:00:00.123Z","timeEnded":"2026-11-20T10:00:01.123Z"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				r := tt.reply(m)
				r.ActionID = "7"
				yield(r, nil)
			})
			for path, id := range map[string]string{"/actions/clean/7": "7", "/actions/clean": ""} {
				resp, body := send(t, "GET", w.url+path, "")
				if resp.StatusCode != 200 || body != tt.want || resp.Header.Get("Content-Type") != jsonType {
					t.Errorf("%s: got %d %s, want %s", path, resp.StatusCode, body, tt.want)
				}
				if m := receive(t, w.asked); m.Type != interact.QueryAction || m.Name != "clean" || m.ActionID != id {
					t.Errorf("%s: asked %+v", path, m)
				}
				head, body := send(t, "HEAD", w.url+path, "")
				if head.StatusCode != 200 || body != "" || head.ContentLength != int64(len(tt.want)) {
					t.Errorf("HEAD %s: got %d %q, length %d", path, head.StatusCode, body, head.ContentLength)
				}
				receive(t, w.asked)
			}
		})
	}
}

func TestUnknownTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, fails(interact.Errorf(interact.NoTask, "", "unknown run 7").Then(interact.StepTasks)))
	for _, method := range []string{"GET", "DELETE"} {
		resp, body := send(t, method, w.url+"/actions/clean/7", "")
		wantProblem(t, resp, body, 404, interact.NoTask)
	}
	resp, body := send(t, "GET", w.url+"/actions/clean/7", "", "Accept", sse.MediaType)
	wantProblem(t, resp, body, 404, interact.NoTask)
	resp, body = send(t, "POST", w.url+"/actions/clean/7", "{}", "Content-Type", "application/json")
	wantProblem(t, resp, body, 404, interact.NoTask)
	resp, body = send(t, "PUT", w.url+"/actions/clean/7", "{}")
	wantProblem(t, resp, body, 405, interact.NotAllowed)
}

func TestCancelTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		yield(status(m, interact.StatusCancelled, "7", ""), nil)
	})
	for path, id := range map[string]string{"/actions/clean/7": "7", "/actions/clean": ""} {
		if resp, body := send(t, "DELETE", w.url+path, ""); resp.StatusCode != 204 || body != "" {
			t.Errorf("got %d %s", resp.StatusCode, body)
		}
		if m := receive(t, w.asked); m.Type != interact.CancelAction || m.ActionID != id || m.Name != "clean" {
			t.Errorf("received %+v", m)
		}
	}
}

func TestAllActions(t *testing.T) {
	t.Parallel()
	const tasks = `{"clean":[{"actionID":"2","state":"running","timeRequested":"2026-11-20T10:00:00Z"},` +
		`{"actionID":"1","state":"failed","error":{"title":"stuck"},"timeEnded":"2026-11-20T10:00:00Z"}],"fade":[]}`
	w := newWorld(t, Options{}, answers(interact.ActionStatuses, "", tasks))
	resp, body := send(t, "GET", w.url+"/actions", "")
	var got any
	_ = json.Unmarshal([]byte(body), &got)
	want := map[string]any{"fade": []any{}, "clean": []any{
		map[string]any{"status": "running", "href": "/things/house/actions/clean/2", "timeRequested": "2026-11-20T10:00:00Z"},
		map[string]any{"status": "failed", "href": "/things/house/actions/clean/1", "error": map[string]any{"title": "stuck"},
			"timeEnded": "2026-11-20T10:00:00Z"}}}
	if d := cmp.Diff(want, got); resp.StatusCode != 200 || d != "" {
		t.Errorf("got %d %s: %s", resp.StatusCode, body, d)
	}
	if m := receive(t, w.asked); m.Type != interact.QueryAllActions || m.Name != "" {
		t.Errorf("received %+v", m)
	}
	if resp, body := send(t, "GET", w.url+"/actions", "", "Accept", "application/cbor"); resp.Header.Get("Content-Type") != "application/cbor" ||
		!strings.HasPrefix(body, "\xa2") {
		t.Errorf("in CBOR: %v %q", resp.Header, body)
	}
	odd := newWorld(t, Options{}, answers(interact.ActionStatuses, "", `[]`))
	resp, body = send(t, "GET", odd.url+"/actions", "")
	wantProblem(t, resp, body, 502, interact.AgentFailed)
	none := newWorld(t, Options{}, answers(interact.ActionStatuses, "", ``))
	if _, body := send(t, "GET", none.url+"/actions", ""); body != "{}" {
		t.Errorf("without any: %s", body)
	}
}

// The states of a run come as events until the last.
func TestEventsOfATask(t *testing.T) {
	t.Parallel()
	p := defaultPace
	p.poll = time.Millisecond
	var asked atomic.Int32
	w := newWorld(t, Options{pace: p}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		switch n := asked.Add(1); {
		case n < 3:
			yield(status(m, interact.StatusPending, "7", ""), nil)
		case n < 6:
			yield(status(m, interact.StatusRunning, "7", `50`), nil)
		default:
			yield(status(m, interact.StatusCompleted, "7", `100`), nil)
		}
	})
	in := w.events("/actions/clean")
	for _, want := range []string{`"status":"pending"`, `"output":50`, `"output":100`} {
		if got := in.nextEvent(); !strings.HasPrefix(got, "event: clean\ndata: {") || !strings.Contains(got, want) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	if got := in.nextEvent(); got != "EOF" {
		t.Errorf("then %q", got)
	}
	if first, second := receive(t, w.asked), receive(t, w.asked); first.ActionID != "" || second.ActionID != "7" {
		t.Errorf("received %q, then %q", first.ActionID, second.ActionID)
	}
}

// The loss of a watched run, and the end of the node, are reported.
func TestEventsOfATaskThatIsLost(t *testing.T) {
	t.Parallel()
	p := defaultPace
	p.poll, p.keepAlive = 20*time.Millisecond, time.Millisecond
	var lost atomic.Bool
	w := newWorld(t, Options{pace: p}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		if lost.Load() {
			yield(nil, interact.Errorf(interact.NoTask, "begin again", "forgotten"))
			return
		}
		yield(status(m, interact.StatusRunning, "7", ""), nil)
	})
	in := w.events("/actions/clean/7")
	in.nextEvent()
	if got := in.next(); got != ": " {
		t.Errorf("no sign of life: %q", got)
	}
	lost.Store(true)
	if got := in.nextEvent(); !strings.Contains(got, "lmosd:problem") || !strings.Contains(got, "LMOS-1410") {
		t.Errorf("got %q", got)
	}
	lost.Store(false)
	again := w.events("/actions/clean/7")
	again.nextEvent()
	w.Drain()
	if got := again.nextEvent(); !strings.Contains(got, "LMOS-3030") {
		t.Errorf("got %q", got)
	}
	resp, body := send(t, "GET", w.url+"/actions/clean/7", "", "Accept", sse.MediaType)
	wantProblem(t, resp, body, 503, interact.ShuttingDown)
}

// An action as a stream of events: every state, with the parts of the output.
func TestActionAsEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		text := status(m, interact.StatusRunning, "", "half")
		text.ContentType = "text/plain"
		_ = yield(status(m, interact.StatusPending, "7", ""), nil) && yield(text, nil) && yield(status(m, interact.StatusCompleted, "", `[1]`), nil)
	})
	in := w.open(t.Context(), "POST", "/actions/fade", `{"to":1}`, "Accept", sse.MediaType, "Content-Type", jsonType)
	for _, want := range []string{
		`{"status":"pending","href":"/things/house/actions/fade/7","timeRequested":"2026-11-20T10:00:00.123Z"}`,
		`{"status":"running","output":"half","timeRequested":"2026-11-20T10:00:00.123Z"}`,
		`{"status":"completed","output":[1],"timeRequested":"2026-11-20T10:00:00.123Z","timeEnded":"2026-11-20T10:00:01.123Z"}`} {
		if got := in.nextEvent(); got != "event: fade\ndata: "+want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := in.next(); got != "EOF" {
		t.Errorf("then %q", got)
	}
	failing := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		_ = yield(status(m, interact.StatusRunning, "", ""), nil) && yield(nil, interact.Errorf(interact.AgentFailed, "see its log", "it broke"))
	})
	in = failing.open(t.Context(), "POST", "/actions/toggle", "", "Accept", sse.MediaType)
	in.nextEvent()
	if got := in.nextEvent(); !strings.Contains(got, "lmosd:problem") || !strings.Contains(got, "it broke") {
		t.Errorf("got %q", got)
	}
	resp, body := send(t, "POST", failing.url+"/actions/fade", `{}`, "Accept", sse.MediaType, "Content-Type", jsonType)
	wantProblem(t, resp, body, 400, interact.Invalid)
}

// An output in parts is sent in parts, while the action runs.
func TestResponseStream(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		for part := range next {
			r := status(m, interact.StatusRunning, "", part)
			if r.ContentType = "text/plain"; !yield(r, nil) {
				return
			}
		}
		yield(status(m, interact.StatusCompleted, "", ""), nil)
	})
	go func() { next <- "one " }()
	in := w.open(t.Context(), "POST", "/actions/toggle", "", "Lmos-Timing", "1")
	if h := in.resp.Header; h.Get("Content-Type") != "text/plain" || h.Get("X-Content-Type-Options") != "nosniff" ||
		h.Get("Cache-Control") != "no-store" || !strings.Contains(h.Get("Server-Timing"), "total;dur=") {
		t.Errorf("header %v", h)
	}
	for _, part := range []string{"one ", "two ", "three"} {
		if part != "one " {
			next <- part
		}
		got := make([]byte, len(part))
		if _, err := io.ReadFull(in.lines, got); err != nil || string(got) != part {
			t.Errorf("got %q, %v", got, err)
		}
	}
	close(next)
	if got := in.next(); got != "EOF" {
		t.Errorf("then %q", got)
	}
}

// An output that breaks off must not look whole.
func TestResponseStreamThatBreaksOff(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(m *interact.Message) (*interact.Message, error){
		"an error": func(*interact.Message) (*interact.Message, error) {
			return nil, interact.Errorf(interact.AgentFailed, "", "broke")
		},
		"a bad status": func(m *interact.Message) (*interact.Message, error) {
			return status(m, interact.StatusFailed, "", ""), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				_ = yield(status(m, interact.StatusRunning, "", "half"), nil) && yield(end(m))
			})
			in := w.open(t.Context(), "POST", "/actions/toggle", "")
			if got := in.next(); got != "halfbroken" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The last status of a stream may have the rest.
func TestResponseStreamWithARest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		_ = yield(status(m, interact.StatusRunning, "", ""), nil) && yield(status(m, interact.StatusRunning, "", "a"), nil) &&
			yield(status(m, interact.StatusCompleted, "", "b"), nil)
	})
	if _, body := send(t, "POST", w.url+"/actions/toggle", ""); body != "ab" {
		t.Errorf("got %q", body)
	}
}

// A sequence of JSON values is one value for consumers that accept JSON, and a line each for those that accept lines.
func TestResponseStreamOfValues(t *testing.T) {
	t.Parallel()
	const cbor = "\x18\x2a"
	for _, tt := range []struct {
		name          string
		parts         [][2]string // media type and data; the last is of the final state
		joined, media string
		rows          string
	}{
		{"texts", [][2]string{{"", `"Light "`}, {"", `"rain"`}, {"", ``}}, `"Light rain"`, jsonType, "\"Light \"\n\"rain\"\n"},
		{"numbers", [][2]string{{"", `1`}, {"", ` 2 `}, {"", `3`}}, `[1, 2 ,3]`, jsonType, "1\n2\n3\n"},
		{"one", [][2]string{{"", "{\n}"}, {"", ``}}, "{\n}", jsonType, "{}\n"},
		{"CBOR", [][2]string{{"application/cbor", cbor}, {"", `"x"`}, {"", ``}}, `[42,"x"]`, jsonType, "42\n\"x\"\n"},
		{"pieces of one document", [][2]string{{"", `{"a":[1,`}, {"", `2]}`}, {"", ``}}, `{"a":[1,2]}`, jsonType, `{"a":[1,2]}`},
		{"text", [][2]string{{"text/plain", "a"}, {"text/plain", "b"}, {"", ""}}, "ab", "text/plain", "ab"},
		{"a value, then a piece", [][2]string{{"", `1`}, {"", `{`}, {"", ``}}, `1{`, "", "1\n\"{\"\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				for i, p := range tt.parts {
					r := status(m, interact.StatusRunning, "", p[1])
					if r.ContentType = p[0]; i == len(tt.parts)-1 {
						r.Status = interact.StatusCompleted
					}
					if !yield(r, nil) {
						return
					}
				}
			})
			resp, body := send(t, "POST", w.url+"/actions/toggle", "", "Accept", "application/json")
			if resp.StatusCode != 200 || body != tt.joined || tt.media != "" && resp.Header.Get("Content-Type") != tt.media {
				t.Errorf("joined: got %d %v %q", resp.StatusCode, resp.Header, body)
			}
			_, body = send(t, "POST", w.url+"/actions/toggle", "", "Accept", "application/x-ndjson, */*;q=0.1")
			if body != tt.rows {
				t.Errorf("rows: got %q, want %q", body, tt.rows)
			}
		})
	}
}

// Values that are held are an error like any other when the action fails, and are held within bounds.
func TestResponseStreamOfValuesThatFails(t *testing.T) {
	t.Parallel()
	large := `"` + strings.Repeat("x", 4<<20) + `"`
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		for range map[bool]int{true: 1, false: 5}[m.Key == "fails"] {
			if !yield(status(m, interact.StatusRunning, "", large), nil) {
				return
			}
		}
		yield(nil, interact.Errorf(interact.AgentFailed, "see its log", "it broke"))
	})
	resp, body := send(t, "POST", w.url+"/actions/toggle", "", "Idempotency-Key", "fails")
	wantProblem(t, resp, body, 502, interact.AgentFailed)
	resp, body = send(t, "POST", w.url+"/actions/toggle", "")
	wantProblem(t, resp, body, 413, interact.TooLarge)
}

func TestResponseStreamAfterDisconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		part := strings.Repeat("x", 64<<10)
		for yield(status(m, interact.StatusRunning, "", part), nil) {
		}
	})
	in := w.open(t.Context(), "POST", "/actions/toggle", "")
	in.resp.Body.Close()
	receive(t, w.left)
}

// echoStream answers a request stream with its chunks, as they come.
func echoStream(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	if m.Chunks == nil {
		yield(nil, interact.Errorf(interact.Invalid, "", "no stream, but %d bytes", len(m.Data)))
		return
	}
	for chunk, err := range m.Chunks {
		if err != nil {
			yield(nil, err)
			return
		}
		r := status(m, interact.StatusRunning, "", string(chunk))
		if r.ContentType = m.ContentType; len(chunk) > chunkSize || !yield(r, nil) {
			return
		}
	}
	yield(status(m, interact.StatusCompleted, "", ""), nil)
}

// Voice goes in and comes out at the same time.
func TestRequestStreamInBothDirections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, echoStream)
	body, voice := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/actions/listen", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "audio/wav; codec=1")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	go func() { _, _ = io.WriteString(voice, "one") }()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, word := range []string{"one", "two", "three"} {
		if word != "one" {
			_, _ = io.WriteString(voice, word)
		}
		got := make([]byte, len(word))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != word {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	voice.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
	m := receive(t, w.asked)
	if m.ContentType != "audio/wav" || len(m.Data) > 0 {
		t.Errorf("received %+v", m)
	}
	if left := time.Until(m.Deadline); left < 9*time.Minute {
		t.Errorf("a stream has %v", left)
	}
}

// Streams and whole inputs.
func TestStreamContentTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		kind := fmt.Sprint("whole ", len(m.Data))
		if m.Chunks != nil {
			n := 0
			for chunk := range m.Chunks {
				n += len(chunk)
			}
			kind = fmt.Sprint("stream ", n)
		}
		yield(status(m, interact.StatusCompleted, "", `"`+kind+`"`), nil)
	})
	for _, tt := range []struct {
		name, path, media string
		size              int
		length            bool
		want              string
	}{
		{"short", "/actions/listen", "audio/wav", 100, true, `"whole 100"`},
		{"a MiB", "/actions/listen", "audio/wav", 1 << 20, true, `"whole 1048576"`},
		{"more", "/actions/listen", "audio/wav", 1<<20 + 1, true, `"stream 1048577"`},
		{"without a length", "/actions/listen", "audio/wav", 100, false, `"stream 100"`},
		{"of any type, to an agent of the mesh", "/actions/talk", "audio/opus", 100, false, `"stream 100"`},
		{"JSON never", "/actions/talk", "application/json", 100, false, `"whole 100"`},
		{"CBOR never", "/actions/talk", "application/cbor", 100, false, `"whole 100"`},
		{"another type", "/actions/listen", "audio/opus", 100, false, `LMOS-1415`},
		{"text", "/actions/talk", "text/plain", 100, false, `"stream 100"`},
		{"text with a length", "/actions/talk", "text/plain; charset=utf-8", 100, true, `"whole 100"`},
		{"text to an agent that takes sound", "/actions/listen", "text/plain", 100, false, `LMOS-1415`},
		{"a browser without a preflight", "/actions/talk", "text/plain", 101, false, `LMOS-1415`},
		{"a form", "/actions/talk", "application/x-www-form-urlencoded", 100, false, `LMOS-1415`},
		{"nothing, without a length", "/actions/talk", "", 0, false, `"whole 0"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data := []byte(strings.Repeat(" ", tt.size))
			if tt.media == "application/json" {
				copy(data, "1")
			} else if tt.media == "application/cbor" {
				data = append([]byte{0x58, 98}, data[2:]...)
			}
			var body io.Reader = bytes.NewReader(data)
			if !tt.length {
				body = io.MultiReader(body)
			}
			req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+tt.path, body)
			if err != nil {
				t.Fatal(err)
			}
			if tt.media != "" {
				req.Header.Set("Content-Type", tt.media)
			}
			if strings.Contains(tt.name, "browser") {
				req.Header.Set("Origin", "http://evil.example")
			}
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil || !strings.Contains(string(got), tt.want) {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// A body that breaks off in the middle is an error for the agent, and not an end.
func TestRequestStreamThatBreaksOff(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		for _, err := range m.Chunks {
			if err != nil {
				failed <- err
				yield(nil, err)
				return
			}
		}
		failed <- nil
	})
	body, voice := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", w.url+"/actions/listen", body)
	req.Header.Set("Content-Type", "audio/wav")
	go func() {
		_, _ = io.WriteString(voice, "half")
		voice.CloseWithError(io.ErrUnexpectedEOF)
	}()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if resp, err := tr.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
	if e := interact.AsError(receive(t, failed)); e == nil || e.Code != interact.Invalid {
		t.Errorf("the agent got %v", e)
	}
}

// noise is size bytes that are cheap to make and to compare.
type noise struct{ left, at int }

func (n *noise) Read(p []byte) (int, error) {
	if n.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), n.left)]
	for i := range p {
		p[i] = byte((n.at + i) * 7 >> 3)
	}
	n.left, n.at = n.left-len(p), n.at+len(p)
	return len(p), nil
}

// 64 MiB go through in both directions, and only a little of them is held at any time.
func TestStreamInConstantMemory(t *testing.T) {
	const size = 64 << 20
	w := newWorld(t, Options{}, echoStream)
	want, got := sha256.New(), sha256.New()
	if _, err := io.Copy(want, &noise{left: size}); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/actions/listen", &noise{left: size})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "audio/wav")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	most := liveheap.Bytes()
	first := most
	buf := make([]byte, 256<<10)
	for n, i := 0, 0; ; i++ {
		m, err := resp.Body.Read(buf)
		got.Write(buf[:m])
		if n += m; i%100 == 0 {
			most = max(most, liveheap.Bytes())
		}
		if err == io.EOF && n == size {
			break
		} else if err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	if !bytes.Equal(want.Sum(nil), got.Sum(nil)) {
		t.Error("the output differs from the input")
	}
	if grown := most - first; grown > 16<<20 {
		t.Errorf("%d MiB were held", grown>>20)
	}
}

// A run that requires input continues without its consumer, if the consumer prefers that; else it is an error.
func TestActionThatRequiresInput(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, prefer, key string
		status            int
		want              string
	}{
		{"with the key of a run", "lmos-input, wait=5", "k", 201, `{"status":"running","href":"/things/house/actions/toggle/run","lmosd:inputRequired":{"q":{"kind":"form"}}`},
		{"without a key", "lmos-input", "", 428, "LMOS-1428"},
		{"of another", "", "k", 428, "LMOS-1428"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			detached := false
			w := newWorld(t, Options{}, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				if m.Detach {
					detached = true
					yield(status(m, interact.StatusPending, "run", ""), nil)
					return
				}
				if yield(status(m, interact.StatusInputRequired, "run", `{"q":{"kind":"form"}}`), nil) {
					t.Error("the consumer stays")
				}
				if detached != (tt.status == 201) {
					t.Errorf("detached: %t", detached)
				}
			})
			resp, body := send(t, "POST", w.url+"/actions/toggle", "", "Prefer", tt.prefer, "Idempotency-Key", tt.key)
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
			if tt.status == 201 && resp.Header.Get("Preference-Applied") != "lmos-input" {
				t.Errorf("got %v", resp.Header)
			}
		})
	}
}
