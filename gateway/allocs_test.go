package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A discarding response has a header and no body.
type discarding struct {
	header http.Header
	status int
}

func (d *discarding) Header() http.Header         { return d.header }
func (d *discarding) Write(b []byte) (int, error) { return len(b), nil }
func (d *discarding) WriteHeader(status int)      { d.status = status }

// SetReadDeadline is called with http.ResponseController.
func (d *discarding) SetReadDeadline(time.Time) error { return nil }

// served returns a function that serves one call of an action without a connection and returns the status of its response.
func served(t testing.TB) func() int {
	g, err := New(serving(newFake(describe("urn:x:weather", "Weather", owner1)), Options{Listen: "127.0.0.1:0"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	u, err := url.Parse("/things/urn:x:weather/actions/ask")
	if err != nil {
		t.Fatal(err)
	}
	const input = `{"question":"how"}`
	ctx := did.WithPrincipal(t.Context(), did.Consumer(did.Loopback, ""))
	template := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
	return func() int {
		r := *template
		r.URL, r.Host, r.ContentLength = u, "127.0.0.1:4668", int64(len(input))
		r.Header = http.Header{"Content-Type": {"application/json"}}
		r.Body = io.NopCloser(strings.NewReader(input))
		w := &discarding{header: http.Header{}}
		g.serve(w, &r)
		return w.status
	}
}

// TestAllocationsOfARequest limits the objects that the gateway and the server of Things allocate for a call, without those of net/http. The
// test itself makes 10 of them.
func TestAllocationsOfARequest(t *testing.T) {
	call := served(t)
	if status := call(); status != http.StatusOK {
		t.Fatal(status)
	}
	if n := testing.AllocsPerRun(100, func() { call() }); n > 34 {
		t.Errorf("a request allocates %v objects, want 34 at most", n)
	}
}

func BenchmarkServed(b *testing.B) {
	call := served(b)
	b.ReportAllocs()
	for b.Loop() {
		if status := call(); status != http.StatusOK {
			b.Fatal(status)
		}
	}
}
