package rest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/poll"
)

// newCallbacks returns callbacks that are served.
func newCallbacks(t *testing.T) *Callbacks {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c := NewCallbacks(server.URL + "/callbacks/")
	mux.Handle("/callbacks/", c)
	return c
}

// receive returns callbacks that are served, and one address of them.
func receive(t *testing.T) (c *Callbacks, url string, deliveries <-chan Delivery, release func()) {
	t.Helper()
	c = newCallbacks(t)
	url, deliveries, release, err := c.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return c, url, deliveries, release
}

// call sends a delivery as an agent does, and returns the status.
func call(t *testing.T, method, url, contentType, body string, header ...string) int {
	t.Helper()
	resp := calling(t, method, url, contentType, body, header...)
	defer resp.Body.Close()
	return resp.StatusCode
}

func calling(t *testing.T, method, url, contentType, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestCallbackDelivers(t *testing.T) {
	t.Parallel()
	_, url, deliveries, _ := receive(t)
	statuses := make(chan int)
	for _, tt := range []struct {
		contentType, body, link string
		want                    Delivery
	}{
		{"application/json", `{"a":1}`, `<http://a.example/x>; rel="self"`, Delivery{"application/json", []byte(`{"a":1}`),
			"9", "http://a.example/x"}},
		{"", ``, ``, Delivery{ID: "9"}},
		{"text/plain", ``, ``, Delivery{ID: "9"}},
		{"application/cbor", "\x01", `</x>; rel=up, </y>; title="t"; rel=self`, Delivery{"application/cbor", []byte{1}, "9", "/y"}},
		{"application/json; x=" + strings.Repeat("x", 300), `1`, `<` + strings.Repeat("x", 3000) + `>; rel=self`, Delivery{"",
			[]byte(`1`), "9", ""}},
	} {
		go func() { statuses <- call(t, "POST", url, tt.contentType, tt.body, "Link", tt.link, EventIDHeader, "9") }()
		got := <-deliveries
		if got.ContentType != tt.want.ContentType || string(got.Data) != string(tt.want.Data) || got.Self != tt.want.Self ||
			got.ID != tt.want.ID {
			t.Errorf("got %+v, want %+v", got, tt.want)
		}
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
}

func TestCallbackRefuses(t *testing.T) {
	t.Parallel()
	c, url, _, _ := receive(t)
	for name, tt := range map[string]struct {
		method, url, body string
		header            []string
		status            int
		code              interact.Code
	}{
		"another address":  {"POST", c.base + "AAAAAAAAAAAAAAAAAAAAAAAAAA", "1", nil, 404, interact.NotFound},
		"no address":       {"POST", c.base, "1", nil, 404, interact.NotFound},
		"a longer address": {"POST", url + "/x", "1", nil, 404, interact.NotFound},
		"another method":   {"GET", url, "", nil, 405, interact.NotAllowed},
		"too large":        {"POST", url, strings.Repeat("x", maxDelivery+1), nil, 413, interact.TooLarge},
		"compressed":       {"POST", url, "x", []string{"Content-Encoding", "gzip"}, 415, interact.UnsupportedType},
	} {
		resp := calling(t, tt.method, tt.url, "application/json", tt.body, tt.header...)
		body := make([]byte, 4<<10)
		n, _ := resp.Body.Read(body)
		_ = resp.Body.Close()
		e := problem.Read(resp, body[:n])
		if resp.StatusCode != tt.status || e.Code != tt.code || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: status %d, %v", name, resp.StatusCode, e)
		}
		if tt.status == 405 && resp.Header.Get("Allow") != "POST" {
			t.Errorf("Allow %q", resp.Header.Get("Allow"))
		}
	}
}

func TestCallbackAddressesAreUnguessable(t *testing.T) {
	t.Parallel()
	c := NewCallbacks("https://node.example/callbacks")
	seen := map[string]bool{}
	for range maxCallbacks {
		url, _, _, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		key, ok := strings.CutPrefix(url, "https://node.example/callbacks/")
		if !ok || len(key) < 26 || seen[key] || strings.Contains(key, "/") {
			t.Fatalf("got %s", url)
		}
		seen[key] = true
	}
	_, _, _, err := c.Receive(t.Context())
	wantError(t, err, interact.Overloaded)
}

func TestClosedCallback(t *testing.T) {
	t.Parallel()
	c, url, _, release := receive(t)
	status := make(chan int)
	go func() { status <- call(t, "POST", url, "", "1") }() // it is not received
	one := c.find(url[len(c.base):])
	poll.Until(t, "the delivery waits", func() bool { return len(one.busy) == 1 })
	release()
	release() // does no harm
	if got := <-status; got != http.StatusNotFound {
		t.Errorf("a delivery that waited: status %d", got)
	}
	if got := call(t, "POST", url, "", "1"); got != http.StatusNotFound {
		t.Errorf("a delivery after: status %d", got)
	}
	if len(c.open) != 0 {
		t.Errorf("%d addresses are open", len(c.open))
	}
}

func TestSlowConsumerOfACallback(t *testing.T) {
	t.Parallel()
	c, url, deliveries, _ := receive(t)
	one := c.find(url[len(c.base):])
	status := make(chan int)
	for range maxEachCalls {
		go func() { status <- call(t, "POST", url, "", "1") }()
	}
	poll.Until(t, "all deliveries wait", func() bool { return len(one.busy) == maxEachCalls })
	resp := calling(t, "POST", url, "", "1")
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: status %d, %v", resp.StatusCode, resp.Header)
	}
	for range maxEachCalls {
		<-deliveries
		if got := <-status; got != http.StatusOK {
			t.Errorf("status %d", got)
		}
	}
	// Other addresses are not concerned, until all of them together are too many.
	for range maxDelivering {
		c.busy <- struct{}{}
	}
	if got := call(t, "POST", url, "", "1"); got != http.StatusServiceUnavailable {
		t.Errorf("status %d", got)
	}
}

func TestDeliveryWithoutReceiver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := &callback{deliveries: make(chan Delivery), closed: make(chan struct{})}
		begun := time.Now()
		err := one.deliver(t.Context(), Delivery{})
		if wantError(t, err, interact.Overloaded); time.Since(begun) != callbackTimeout {
			t.Errorf("after %v", time.Since(begun))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := one.deliver(ctx, Delivery{}); interact.AsError(err).Code != interact.Cancelled {
			t.Errorf("got %v", err)
		}
	})
}

func TestDeliveryThatBreaksOff(t *testing.T) {
	t.Parallel()
	_, url, deliveries, _ := receive(t)
	host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", path)
	defer conn.Close()
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", resp.StatusCode)
	}
	select {
	case d := <-deliveries:
		t.Errorf("half a delivery came: %+v", d)
	default:
	}
}

func FuzzSelfLink(f *testing.F) {
	f.Add(`<http://a.example/x>; rel="self"`)
	f.Add(`</a>;rel=up,</b>;REL=Self`)
	f.Add(`<`)
	f.Fuzz(func(t *testing.T, field string) {
		if got := selfLink([]string{field}); len(got) > 2<<10 || !strings.Contains(field, got) {
			t.Errorf("%q: got %q", field, got)
		}
	})
}
