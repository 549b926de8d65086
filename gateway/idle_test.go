package gateway

import (
	"bufio"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/pipenet"
)

// An idle connection is closed after the idle timeout, and not before.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	for name, requests := range map[string]int{"after one request": 1, "after three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, nil, func(t *testing.T, _ *running, p *pipenet.Listener) {
				c, err := p.Dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				answers := bufio.NewReader(c)
				for i := range requests {
					if i > 0 {
						time.Sleep(defaultTimeouts.idle - time.Second) // not yet
					}
					if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
						t.Fatalf("request %d: %v", i, err)
					}
					resp, err := http.ReadResponse(answers, nil)
					if err != nil {
						t.Fatalf("request %d: %v", i, err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				began := time.Now()
				_, _ = io.Copy(io.Discard, answers) // until it is closed
				if took := time.Since(began); took < defaultTimeouts.idle-time.Second || took > defaultTimeouts.idle+time.Second {
					t.Errorf("closed after %v, want %v", took, defaultTimeouts.idle)
				}
			})
		})
	}
}
