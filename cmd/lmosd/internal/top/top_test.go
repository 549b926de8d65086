package top

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

const key = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// A fake node counts 10 calls and 2 errors at each status, and refuses its calls without full rights.
type fake struct {
	calls     uint64
	isLimited bool
	peers     int
}

func (f *fake) Status(context.Context) (*api.Status, error) {
	st := &api.Status{DID: key, Name: "lab\x1b1", State: "degraded", Version: "1.0", Uptime: 3700, Warnings: []api.Warning{{Code: "LMOS-W001", Text: "this node is alone"}}}
	st.Calls.Total, st.Calls.Errors, st.Calls.P50, st.Calls.P99, st.Calls.Queue = f.calls, f.calls/5, 2.1, 19, 1
	f.calls += 10
	st.Agents.Local, st.Agents.Known, st.Peers.Total, st.Peers.Direct = 1, 7, f.peers, f.peers
	return st, nil
}

func (f *fake) Peers(context.Context) (*api.PeerList, error) {
	list := &api.PeerList{Items: []api.Peer{}}
	for i := range f.peers {
		list.Items = append(list.Items, api.Peer{DID: key, Name: "near", RTT: float64(i), Since: 60})
	}
	return list, nil
}

func (f *fake) Calls(context.Context, api.CallQuery) (*api.CallList, error) {
	if f.isLimited {
		return nil, errors.New("needs full rights")
	}
	at := time.Now().Add(-61 * time.Second)
	return &api.CallList{Items: []api.Call{{Name: "weather", At: at, Took: 14}, {Name: "weather", At: at, Took: 2000, Code: "LMOS-1502"},
		{Thing: "urn:x:gone", At: at, Status: api.CallRunning}}}, nil
}

func (f *fake) Series(context.Context, time.Duration) (*api.Series, error) {
	rss := 84e6
	return &api.Series{Items: api.Samples{RSS: []*float64{nil, &rss}}}, nil
}

func take(t *testing.T, f *fake) *Snapshot {
	t.Helper()
	s := New(f)
	if x, err := s.Take(t.Context()); err != nil || x.Rate != nil {
		t.Fatalf("the first snapshot: %+v, %v", x, err)
	}
	x, err := s.Take(t.Context())
	if err != nil || x.Rate == nil || *x.Rate <= 0 || *x.ErrorRate <= 0 || *x.ErrorRate*4.9 > *x.Rate {
		t.Fatalf("got %+v, %v", x, err)
	}
	*x.Rate, *x.ErrorRate = 12, 0.5
	return x
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	s := terminal.NewScreen(&bytes.Buffer{}, func(string) string { return "" })
	lines := take(t, &fake{peers: 2}).Lines(s, 0, 0)
	text := strings.Join(lines, "\n")
	for _, want := range []string{"● degraded  lab�1 (z6MkpTHR…) · up 1h · ", "calls   12.0/s · 0.5 errors/s · p50 2.1 ms, p99 19 ms · queue 1", "peers   2 (2 direct, 0 relayed)", "agents  1 local, 7 known",
		"memory  84 MB", "! LMOS-W001 this node is alone", "AGENT (last 3 calls)", "weather                       2      1        0     2.0 s    1m", "urn:x:gone",
		"PEER                           RTT PATH", "near (z6MkpTHR…)            1.0 ms direct      1m"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if text := strings.Join(take(t, &fake{isLimited: true}).Lines(s, 0, 0), "\n"); strings.Contains(text, "AGENT") || strings.Contains(text, "PEER") {
		t.Errorf("tables without rows:\n%s", text)
	}
}

// Whatever the size of the terminal, the lines fit.
func TestSizes(t *testing.T) {
	t.Parallel()
	s := terminal.NewScreen(&bytes.Buffer{}, func(string) string { return "" })
	x := take(t, &fake{peers: 100})
	for _, width := range []int{1, 20, 80, 200} {
		for height := 1; height < 40; height++ {
			lines := x.Lines(s, width, height)
			if len(lines) > height {
				t.Errorf("%d lines on %d", len(lines), height)
			}
			for _, line := range lines {
				if terminal.Columns(line) > width {
					t.Errorf("%d columns on %d: %q", terminal.Columns(line), width, line)
				}
			}
			if height > 20 && width == 80 && (!strings.Contains(strings.Join(lines, "\n"), "AGENT") || !strings.Contains(strings.Join(lines, "\n"), "PEER")) {
				t.Errorf("a table is missing on %d lines", height)
			}
		}
	}
}
