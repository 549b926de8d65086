package rest

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A canned transport answers each request with the same text.
type canned string

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		ContentLength: int64(len(c)), Body: io.NopCloser(strings.NewReader(string(c)))}, nil
}

const echoing = `"actions": {"echo": {"input": {"type": "string"}, "output": {"type": "string"}, "forms": [{"href": "http://agent.example/echo"}]}}`

// cannedCall returns a function that makes one call over the canned transport.
func cannedCall(t testing.TB) func() error {
	c, thing := newClient(t, Options{Transport: canned(`"hello"`)}), describe(t, "", echoing)
	a, m := c.Thing(thing), invoke("echo", `"hello"`)
	m.From, m.Deadline = did.Consumer(did.Loopback, ""), time.Now().Add(time.Hour)
	return func() error {
		_, err := interact.Call(context.Background(), a, m)
		return err
	}
}

// TestAllocationsOfARequest limits the objects that a call of an agent over HTTP allocates here, without those of net/http's connections.
// The canned transport makes 6 of them.
func TestAllocationsOfARequest(t *testing.T) {
	call := cannedCall(t)
	if err := call(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = call() }); n > 40 {
		t.Errorf("a request allocates %v objects, want 40 at most", n)
	}
}

func BenchmarkCannedCall(b *testing.B) {
	call := cannedCall(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
	}
}
