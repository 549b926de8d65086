package problem

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func respond(t *testing.T, method string, err error) (*http.Response, []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	Write(w, httptest.NewRequestWithContext(t.Context(), method, "/x", nil), err)
	return w.Result(), w.Body.Bytes()
}

var version4 = regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestProblem(t *testing.T) {
	t.Parallel()
	resp, body := respond(t, "GET", interact.Errorf(interact.NotFound, "search for it", "no agent matches %q",
		"weathr"))
	if resp.StatusCode != 404 || resp.Header.Get("Content-Type") != "application/problem+json" ||
		resp.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got %d %v", resp.StatusCode, resp.Header)
	}
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	instance, _ := got["instance"].(string)
	if !version4.MatchString(instance) {
		t.Errorf("instance %q", instance)
	}
	delete(got, "instance")
	want := map[string]any{"type": "urn:lmosd:error:agent-not-found", "code": "LMOS-1404", "title": "Agent not found",
		"status": 404.0,
		"detail": `no agent matches "weathr"`, "hint": "search for it", "retryable": false, "remote": false}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestProblemNeverSendsTheCause(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		errors.New("hunter2"),
		&interact.Error{Code: interact.Unreachable, Title: "down", Err: errors.New("hunter2")},
		&interact.Error{Code: interact.Internal, Err: errors.New("hunter2")},
	} {
		if _, body := respond(t, "GET", err); bytes.Contains(body, []byte("hunter2")) {
			t.Errorf("%v: sent %s", err, body)
		}
	}
}

func TestProblemHeaders(t *testing.T) {
	t.Parallel()
	for code, field := range map[interact.Code]string{interact.Unauthenticated: "Www-Authenticate",
		interact.RateLimited: "Retry-After", interact.Overloaded: "Retry-After", interact.NotAllowed: "Allow"} {
		resp, _ := respond(t, "GET", &interact.Error{Code: code})
		if _, ok := resp.Header[field]; !ok {
			t.Errorf("%s has no %s", code, field)
		}
	}
	resp, body := respond(t, "GET", &interact.Error{Code: interact.RateLimited, RetryAfter: 2100 * time.Millisecond})
	if got := resp.Header.Get("Retry-After"); got != "3" {
		t.Errorf("Retry-After is %s, want it rounded up", got)
	}
	if e := Read(resp, body); e.RetryAfter != 3*time.Second {
		t.Errorf("RetryAfter of the client is %v", e.RetryAfter)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Allow", "GET")
	Write(w, httptest.NewRequest("PUT", "/", nil), &interact.Error{Code: interact.NotAllowed})
	if got := w.Header().Get("Allow"); got != "GET" {
		t.Errorf("Allow is %q", got)
	}
	if resp, body := respond(t, "HEAD", &interact.Error{Code: interact.NotFound}); len(body) != 0 ||
		resp.Header.Get("Content-Length") == "" {
		t.Errorf("HEAD has %q, %v", body, resp.Header)
	}
	if resp, _ := respond(t, "GET", nil); resp.StatusCode != 500 {
		t.Errorf("no error is %d", resp.StatusCode)
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	t.Parallel()
	for _, c := range interact.Codes() {
		if _, ok := statuses[c]; !ok {
			t.Errorf("%s has no status", c)
		}
		if s := Status(c); s < 400 || s > 599 || c.Retryable() && s != 429 && s < 500 {
			t.Errorf("%s is %d", c, s)
		}
	}
	if len(statuses) != len(interact.Codes()) {
		t.Errorf("%d statuses for %d codes", len(statuses), len(interact.Codes()))
	}
	if got := Status(9999); got != 500 {
		t.Errorf("unknown code is %d", got)
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, code := range interact.Codes() {
		for _, want := range []*interact.Error{
			{Code: code},
			{Code: code, Title: "what happened", Hint: "what to do", Next: interact.Next(interact.StepShow, "urn:a"), Remote: true, Started: true},
			{Code: code, Title: "bad", Issues: []td.Issue{{Pointer: "/a~1b", Reason: "expected string"}}},
		} {
			resp, body := respond(t, "GET", want)
			if resp.Header.Get("Retry-After") != "" {
				want.RetryAfter = time.Second // the default
			}
			if d := cmp.Diff(want, Read(resp, body)); d != "" {
				t.Errorf("%s: %s", code, d)
			}
		}
	}
}

func TestIssueAsDetail(t *testing.T) {
	t.Parallel()
	resp, body := respond(t, "POST", &interact.Error{Code: interact.BadTD,
		Issues: []td.Issue{{Pointer: "/title", Reason: "is needed"}, {}, {}}})
	if got := Read(resp, body).Title; got != "/title: is needed (and 2 more)" {
		t.Errorf("got %q", got)
	}
}

func TestResponsesThatAreNotProblems(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, contentType, body string
		status                  int
		code                    interact.Code
		title                   string
	}{
		{"text of a proxy", "text/html", "<h1>Bad\nGateway</h1>\x1b", 502, interact.AgentFailed,
			"status 502 <h1>Bad Gateway</h1>"},
		{"an empty body", "", "", 404, interact.NotFound, "status 404"},
		{"JSON of another kind", "application/json", `{"error":"x"}`, 400, interact.Invalid, `status 400 {"error":"x"}`},
		{"incomplete JSON", "application/problem+json", `{"title":`, 418, interact.Internal, `status 418 {"title":`},
		{"a problem of another server", "application/problem+json; charset=utf-8", `{"title":"Teapot","status":418}`,
			418, interact.Internal, "Teapot"},
		{"an unknown code", "application/problem+json",
			`{"type":"urn:x","code":"LMOS-9999","title":"New","detail":"what"}`, 429, interact.RateLimited, "what"},
		{"an invalid code", "application/problem+json", `{"type":"urn:x","code":"LMOS-x","title":"New"}`, 504,
			interact.Timeout, "New"},
	}
	for _, tt := range tests {
		resp := &http.Response{StatusCode: tt.status, Header: http.Header{"Content-Type": {tt.contentType}}}
		if got := Read(resp, []byte(tt.body)); got.Code != tt.code || got.Title != tt.title {
			t.Errorf("%s: got %s %q", tt.name, got.Code, got.Title)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(404, "application/problem+json",
		[]byte(`{"type":"urn:lmosd:error:agent-not-found","code":"LMOS-1404","title":"t","detail":"d",
			"hint":"h","validationErrors":[{"field":"/a","description":"b"}]}`))
	f.Add(500, "text/plain", []byte("boom\x00\x1b"))
	f.Add(0, "application/json", []byte(`{"validationErrors":[null,{}]}`))
	f.Add(-1, "", []byte{0xff})
	f.Fuzz(func(t *testing.T, status int, contentType string, body []byte) {
		e := Read(&http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}}}, body)
		if _, ok := statuses[e.Code]; !ok {
			t.Errorf("unknown code %s", e.Code)
		}
		if len(e.Title) > MaxText+100 || len(e.Hint) > MaxText+100 || !utf8.ValidString(e.Title+e.Hint) ||
			strings.ContainsAny(e.Title+e.Hint, "\x1b\n\x00") {
			t.Errorf("title %q, hint %q", e.Title, e.Hint)
		}
	})
}
