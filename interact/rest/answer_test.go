package rest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
)

// plainActions are an action that has an output and one that has none.
const plainActions = `"actions": {"act": {"output": {}, "forms": [{"href": "BASE/act"}]},
	"quiet": {"forms": [{"href": "BASE/quiet"}]}}`

func TestAnswersThatFail(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		answer http.HandlerFunc
		code   interact.Code
		remote bool
		says   []string
	}{
		{"500 with text", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "boom\n\x1b[2Jbang", 500) },
			interact.AgentFailed, true, []string{"answered 500", "boom [2Jbang"}},
		{"problem", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, `{"title":"Door open","detail":"close it first"}`)
		}, interact.AgentFailed, true, []string{"answered 409: Door open: close it first"}},
		{"404", http.NotFound, interact.AgentFailed, true, []string{"answered 404", "href"}},
		{"401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, interact.AgentFailed, true,
			[]string{"credentials"}},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other?token=x", http.StatusFound)
		}, interact.AgentFailed, true, []string{"redirect to http://", "/other", "not followed"}},
		{"html where JSON is promised", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<html>hi</html>")
		}, interact.AgentFailed, false, []string{"expected application/json", "text/html", "<html>"}},
		{"half of JSON", responds(`{"a":`), interact.AgentFailed, false, []string{`"{\"a\":"`}},
		{"JSON with bad UTF-8", responds("\"\xff\""), interact.AgentFailed, false, []string{"application/json"}},
		{"nothing", responds(``), interact.AgentFailed, false, []string{"nothing"}},
		{"more than the limit", responds(`"` + strings.Repeat("x", 2000) + `"`), interact.TooLarge, false,
			[]string{"1000 bytes"}},
		{"more than the limit in chunks", func(w http.ResponseWriter, _ *http.Request) {
			for range 20 {
				_, _ = io.WriteString(w, strings.Repeat("x", 100))
				_ = http.NewResponseController(w).Flush()
			}
		}, interact.TooLarge, false, []string{"1000 bytes"}},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `"abc`)
		}, interact.AgentFailed, false, []string{"broke off after 4 bytes"}},
		{"closed without an answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			interact.Unreachable, false, []string{"connection was closed"}},
		{"not gzip", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "plain")
		}, interact.AgentFailed, false, []string{"gzip"}},
		{"unknown coding", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "x")
		}, interact.AgentFailed, false, []string{"br"}},
		{"gzip that grows beyond the limit", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zip(strings.Repeat("x", 1<<20)))
		}, interact.TooLarge, false, []string{"1000 bytes"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			agent := newRecorder(t, tt.answer)
			_, err := ask(t, newClient(t, Options{MaxBody: 1000}), describe(t, agent.URL, plainActions),
				invoke("act", ""))
			e := wantError(t, err, tt.code)
			if e.Remote != tt.remote {
				t.Errorf("remote is %t", e.Remote)
			}
			for _, want := range tt.says {
				if !strings.Contains(everything(e), want) {
					t.Errorf("%q is missing in %s", want, everything(e))
				}
			}
			if n := len(agent.requests()); n != 1 {
				t.Errorf("the agent received %d requests", n)
			}
		})
	}
}

func zip(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.Bytes()
}

func TestAnswersThatAreFine(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, action string
		answer       http.HandlerFunc
		media, data  string
	}{
		{"JSON declared as text", "act", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"a":1}`)
		}, "application/json", `{"a":1}`},
		{"JSON without a type", "act", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, `[1]`)
		}, "application/json", `[1]`},
		{"JSON of another kind", "act", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "Application/Senml+JSON; charset=utf-8")
			_, _ = io.WriteString(w, `[1]`)
		}, "application/senml+json", `[1]`},
		{"204", "act", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "", ""},
		{"no value where none is declared", "quiet", responds(" \n"), "", ""},
		{"a value where none is declared", "quiet", responds("7"), "application/json", "7"},
		{"gzip", "act", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zip(`"zipped"`))
		}, "application/json", `"zipped"`},
		{"exactly the limit", "act", responds(`"` + strings.Repeat("x", 998) + `"`), "application/json",
			`"` + strings.Repeat("x", 998) + `"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			agent := newRecorder(t, tt.answer)
			got, err := ask(t, newClient(t, Options{MaxBody: 1000}), describe(t, agent.URL, plainActions),
				invoke(tt.action, ""))
			if err != nil {
				t.Fatal(err)
			}
			if got.ContentType != tt.media || string(got.Data) != tt.data {
				t.Errorf("got %q %q", got.ContentType, got.Data)
			}
		})
	}
}

func TestHugeAnswerIsCut(t *testing.T) {
	t.Parallel()
	const size = 50 << 20
	for name, known := range map[string]bool{"size announced": true, "size not announced": false} {
		sent := make(chan int, 1)
		agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if known {
				w.Header().Set("Content-Length", strconv.Itoa(size))
			}
			n, chunk := 0, bytes.Repeat([]byte("1"), 64<<10)
			for n < size {
				k, err := w.Write(chunk)
				if n += k; err != nil {
					break
				}
			}
			sent <- n
		})
		_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, plainActions), invoke("act", ""))
		if e := wantError(t, err, interact.TooLarge); !strings.Contains(e.Error(), "4194304 bytes") {
			t.Errorf("%s: got %v", name, e)
		}
		if n := <-sent; n > 32<<20 {
			t.Errorf("%s: the agent got rid of %d bytes", name, n)
		}
	}
}

func TestLongRefusalIsBounded(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, strings.Repeat("ä", 1<<20))
	})
	_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, plainActions), invoke("act", ""))
	e := wantError(t, err, interact.AgentFailed)
	if n := len(e.Error()); n < maxText || n > maxText+200 || !utf8.ValidString(e.Error()) {
		t.Errorf("the error has %d bytes", n)
	}
}

func TestAgentThatIsDown(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	_, err := ask(t, newClient(t, Options{}), describe(t, down.URL, plainActions), invoke("act", ""))
	e := wantError(t, err, interact.Unreachable)
	if !strings.Contains(e.Error(), "connection refused") || !strings.Contains(e.Error(), down.URL) ||
		len(e.Next) != 1 || e.Next[0].Kind != interact.StepPublish {
		t.Errorf("got %s", everything(e))
	}
}

func TestAgentWithoutAName(t *testing.T) {
	t.Parallel()
	c := newClient(t, Options{Transport: failing{&net.DNSError{Name: "nowhere.invalid", IsNotFound: true}}})
	_, err := ask(t, c, describe(t, "http://nowhere.invalid", plainActions), invoke("act", ""))
	if e := wantError(t, err, interact.Unreachable); !strings.Contains(e.Error(), "nowhere.invalid is unknown") {
		t.Errorf("got %v", e)
	}
}

// failing is a transport that fails.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestSlowAgentTimesOutAtTheDeadline(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	for name, answer := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		},
		"half an answer": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `"half`)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		},
	} {
		agent := newRecorder(t, answer)
		m := invoke("act", "")
		m.Deadline = time.Now().Add(100 * time.Millisecond)
		_, err := interact.Call(t.Context(), newClient(t, Options{}).Thing(describe(t, agent.URL, plainActions)), m)
		e := wantError(t, err, interact.Timeout)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(e.Error(), agent.URL) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	close(hold)
}

func TestAgentWithoutHTTP(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"garbage":              "SSH-2.0-OpenSSH_9.6\r\n",
		"headers without end":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100<<10),
		"status is no number":  "HTTP/1.1 abc OK\r\n\r\n",
		"length is no number":  "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
		"chunks are nonsense":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"two different lenths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
	} {
		base := listenRaw(t, text)
		_, err := ask(t, newClient(t, Options{}), describe(t, base, plainActions), invoke("act", ""))
		if e := interact.AsError(err); e == nil || e.Code != interact.AgentFailed && e.Code != interact.Unreachable ||
			e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// listenRaw answers each connection with text after the request's head.
func listenRaw(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			for line := "x"; line != "\r\n" && line != ""; {
				line, _ = r.ReadString('\n')
			}
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

func TestGzipFormsCompressBothWays(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil || r.Header.Get("Content-Encoding") != "gzip" || r.Header.Get("Accept-Encoding") != "gzip" {
			http.Error(w, fmt.Sprint(err, r.Header), http.StatusBadRequest)
			return
		}
		body, _ := io.ReadAll(z)
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(zip(string(body)))
	})
	thing := describe(t, agent.URL, `"actions": {
		"echo": {"input": {}, "output": {}, "forms": [{"href": "BASE/echo", "contentCoding": "gzip"}]},
		"other": {"forms": [{"href": "BASE/other", "contentCoding": "br"}]}}`)
	c := newClient(t, Options{})
	if got, err := ask(t, c, thing, invoke("echo", `{"a":1}`)); err != nil || string(got.Data) != `{"a":1}` {
		t.Errorf("got %v, %v", got, err)
	}
	_, err := ask(t, c, thing, invoke("other", ""))
	wantError(t, err, interact.NotAllowed)
}

func TestStatusCodeValueDecides(t *testing.T) {
	t.Parallel()
	const form = `"actions": {"act": {"output": {}, "forms": [{"href": "BASE/act",
		"response": {"contentType": "application/json", "htv:statusCodeValue": 418},
		"additionalResponses": [{"success": true, "htv:statusCodeValue": 404, "contentType": "text/plain"},
			{"success": false, "htv:statusCodeValue": 203, "contentType": "application/json"}]}]}}`
	for status, fine := range map[int]bool{418: true, 404: true, 203: false, 200: true, 500: false} {
		agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", map[bool]string{true: "text/plain", false: "application/json"}[status == 404])
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "1")
		})
		got, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, form), invoke("act", ""))
		if fine != (err == nil) {
			t.Errorf("%d: got %v", status, err)
		}
		if status == 404 && got.ContentType != "text/plain" {
			t.Errorf("an additional response keeps its type, got %q", got.ContentType)
		}
	}
}

func TestReadable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\r\n\tb":       "a b",
		"\x1b[31mred":    "[31mred",
		"a\u202eb":       "a b",
		"bad \xff utf-8": "bad utf-8",
		"":               "",
	} {
		if got := interact.Readable(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"äöü", 3, "ä…"}, {"ä", 1, "…"}} {
		if got := interact.Clip(tt.in, tt.n); got != tt.want {
			t.Errorf("interact.Clip(%q, %d): got %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	thing := describe(f, "http://agent.example", plainActions)
	f.Add(200, "application/json", "", []byte(`"ok"`))
	f.Add(201, "application/json", "", []byte(`{"status":"pending","href":"http://evil.example/x"}`))
	f.Add(500, "application/problem+json", "", []byte(`{"title":"t","detail":"\u001b[2J"}`))
	f.Add(200, "text/plain", "gzip", zip("x"))
	f.Add(302, "", "br", []byte("x"))
	f.Fuzz(func(t *testing.T, status int, contentType, coding string, body []byte) {
		c := NewClient(Options{MaxBody: 1 << 10})
		r, err := c.request(&form.Request{Thing: thing, Message: invoke("act", ""), Form: &thing.Actions["act"].Forms[0], Media: interact.JSON})
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest(http.MethodPost, "http://agent.example/act", nil)
		resp := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType},
			"Content-Encoding": {coding}, "Location": {string(body)}},
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: -1, Request: req}
		ans, err := c.read(t.Context(), r, resp)
		if err != nil {
			e := interact.AsError(err)
			if e.Code == interact.Internal || e.Hint == "" && e.Next == nil || len(e.Error()) > maxText+500 ||
				strings.ContainsRune(e.Error(), '\x1b') {
				t.Errorf("bad error: %s %q", e.Code, e.Error())
			}
			return
		}
		if len(ans.data) > 1<<10 {
			t.Errorf("%d bytes passed the limit", len(ans.data))
		}
		if task := ans.task(r); task != nil {
			if err := task.resolve(); err == nil && credentials.Origin(task.url) != "http://agent.example" {
				t.Errorf("the status is looked for at %s", task.url)
			}
		}
	})
}
