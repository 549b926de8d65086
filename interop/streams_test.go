package interop

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// pattern yields n bytes that differ from chunk to chunk.
type pattern struct{ at, n int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.at >= p.n {
		return 0, io.EOF
	}
	k := int(min(int64(len(b)), p.n-p.at, 32<<10))
	for i := 0; i < k; i += 8 {
		v := p.at + int64(i)
		for j := i; j < min(i+8, k); j++ {
			b[j] = byte(v >> (8 * (j - i)))
		}
	}
	p.at += int64(k)
	return k, nil
}

// A stream through two nodes to an HTTP agent that streams it back, in constant memory. LMOSD_LONG=1 makes it 1 GiB.
func TestStreamsBothWaysAtOnce(t *testing.T) {
	m := testmesh.Start(t)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "audio/opus")
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buf)
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
			control.Flush()
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(agent.Close)
	m.Offer(t, fmt.Appendf(nil, `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Parrot",
		"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
		"actions": {"pipe": {"synchronous": true, "forms": [{"href": "%s/pipe", "contentType": "audio/opus"}]}}}`, agent.URL), nil)
	m.Known(t, "parrot")
	size := int64(64 << 20)
	if os.Getenv("LMOSD_LONG") != "" {
		size = 1 << 30
	}
	want := sha256.New()
	if _, err := io.Copy(want, &pattern{n: size}); err != nil {
		t.Fatal(err)
	}
	before := liveheap.Bytes()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	pipe := m.API + "/things/parrot/actions/pipe?timeout=5m"
	req, err := http.NewRequestWithContext(t.Context(), "POST", pipe, io.NopCloser(&pattern{n: size}))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "audio/opus")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "audio/opus" {
		raw, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s", resp.Status, raw)
	}
	got := sha256.New()
	var total, peak int64
	buf := make([]byte, 256<<10)
	for {
		n, err := resp.Body.Read(buf)
		got.Write(buf[:n])
		if total += int64(n); total>>23 != (total-int64(n))>>23 { // every 8 MiB
			peak = max(peak, liveheap.Bytes()-before)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if total != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d of %d bytes came back, or others", total, size)
	}
	if peak > 48<<20 {
		t.Errorf("the heap grew by %d MiB for a stream of %d MiB", peak>>20, size>>20)
	}
	t.Logf("%d MiB there and back; the heap of both nodes, agent and consumer grew by at most %d MiB", size>>20, peak>>20)
}
