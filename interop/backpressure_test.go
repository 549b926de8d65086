package interop

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// underWay is how many bytes of a stream may be between its source and a reader that stopped: the windows of the two nodes, and the kernel
// buffers of two connections.
const underWay = 20 << 20

// size is the length of the streams.
const size = 2 * underWay

// standsStill waits until the number of bytes that a source has written is constant, and returns it.
func standsStill(t *testing.T, written *atomic.Int64) int64 {
	t.Helper()
	const long = 300 * time.Millisecond // data is written at GB/s as long as it is read
	last, since := written.Load(), time.Now()
	eventually(t, "the source waits", func() bool {
		if now := written.Load(); now != last {
			last, since = now, time.Now()
		}
		if last >= size {
			t.Fatal("all was written without a reader")
		}
		return last > 0 && time.Since(since) > long
	})
	if last > underWay {
		t.Errorf("%d MiB are under way, want %d at most", last>>20, underWay>>20)
	}
	t.Logf("%d KiB are under way", last>>10)
	return last
}

// When one end of a stream stops reading, the other, behind two nodes and two HTTP connections, stops writing, and continues when it is
// read again.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	var written atomic.Int64 // by the source
	read := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/down", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", octets)
		_, _ = io.Copy(w, &counted{&pattern{n: size}, &written}) // the count shows the progress
	})
	mux.HandleFunc("/up", func(w http.ResponseWriter, r *http.Request) {
		<-read
		n, _ := io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", interact.JSON)
		w.Write(asJSON(n))
	})
	agent := httptest.NewServer(mux)
	t.Cleanup(agent.Close)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	form := `, "contentType": "` + octets + `", "response": {"contentType": "`
	m.Offer(t, simple("source", "run", agent.URL+"/down", form+octets+`"}`), nil)
	m.Offer(t, simple("sink", "run", agent.URL+"/up", form+interact.JSON+`"}`), nil)
	m.Known(t, "source")
	m.Known(t, "sink")

	resp, err := client.Post(m.API+"/things/source/actions/run?timeout=5m", octets, nil)
	if err != nil {
		t.Fatal(err)
	}
	standsStill(t, &written)
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if n != size || err != nil {
		t.Errorf("%d of %d bytes came, %v", n, size, err)
	}

	written.Store(0)
	answer := make(chan string, 1)
	go func() {
		body := io.NopCloser(&counted{&pattern{n: size}, &written})
		resp, err := client.Post(m.API+"/things/sink/actions/run?timeout=5m", octets, body)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		raw, _ := io.ReadAll(resp.Body)
		answer <- string(raw)
	}()
	standsStill(t, &written)
	close(read)
	if got, want := <-answer, string(asJSON(size)); got != want {
		t.Errorf("the agent took %s, want %s bytes", got, want)
	}
}

// counted counts the bytes read from a source, which were written except for one buffer.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}
