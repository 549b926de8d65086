package node

import (
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
)

func TestStatusCounts(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	a := newAgent(t)
	ref := publish(t, nodes[0], toolAt("Echo", "", a.url))
	publish(t, nodes[0], toolAt("Gone", "urn:x:gone", a.url))
	if _, err := nodes[0].Client().Unpublish(t.Context(), "urn:x:gone"); err != nil {
		t.Fatal(err)
	}
	knows(t, nodes[1], ref)
	for _, body := range []string{`"x"`, `7`} { // one good, one bad
		m := &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: []byte(body)}
		_, _ = interact.Call(t.Context(), asConsumer(nodes[1]), m)
	}
	until(t, "they are meshed and agree", func() bool {
		s := nodes[1].Status()
		return s.DHT.Table == 1 && s.Gossip.Peers == 1 && s.Agents.Known == 1 // both have received the tombstones
	})
	s := nodes[1].Status()
	if s.Peers.Total != 1 || s.Peers.Direct != 1 || s.Peers.Relayed != 0 || s.Gossip.Topics != 16 || s.DHT.Mode != "server" {
		t.Errorf("got %+v", s)
	}
	if s.Agents.Local != 0 || s.Agents.Known != 1 || s.Calls.Total != 2 || s.Calls.Errors != 1 {
		t.Errorf("agents %+v, calls %+v; want one known, two calls with one error", s.Agents, s.Calls)
	}
	s = nodes[0].Status()
	if s.Agents.Local != 1 || s.Agents.Known != 1 || s.State != "ready" || len(s.Warnings) != 0 || s.DID != nodes[0].DID() {
		t.Errorf("the host says %+v", s)
	}
	peers := nodes[1].network.peers.List()
	if len(peers) != 1 || peers[0].DID != nodes[0].DID() || peers[0].PeerID != nodes[0].network.ID().String() || peers[0].Transport != "tcp" ||
		peers[0].Direction != "outbound" || !strings.HasPrefix(peers[0].Agent, "lmosd/") || peers[0].Since <= 0 {
		t.Errorf("the peers are %+v", peers)
	}
}

func TestPeersAreSorted(t *testing.T) {
	t.Parallel()
	middle := start(t, quiet())
	for range 4 {
		connect(t, start(t, quiet()), middle)
	}
	until(t, "four are connected", func() bool { return len(middle.network.peers.List()) == 4 })
	peers := middle.network.peers.List()
	for i := 1; i < len(peers); i++ {
		if peers[i-1].DID >= peers[i].DID || peers[i].Direction != "inbound" {
			t.Errorf("%+v comes before %+v", peers[i-1], peers[i])
		}
	}
}

func TestFullDiskIsReported(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir = t.TempDir()
	var free atomic.Uint64
	free.Store(storage.MinFree)
	o.free = func() (uint64, error) { return free.Load(), nil }
	n := start(t, o)
	ref := publish(t, n, toolAt("Echo", "", newAgent(t).url))
	if s := n.Status(); s.State != "ready" || len(s.Warnings) != 0 {
		t.Errorf("with room the node is %s and warns of %+v", s.State, s.Warnings)
	}
	free.Store(4096)
	s := n.Status()
	if s.State != "degraded" || len(s.Warnings) != 1 || s.Warnings[0].Code != "LMOS-W020" || s.Warnings[0].Hint == "" {
		t.Errorf("the node is %s and warns of %+v; want disk-low", s.State, s.Warnings)
	}
	_, err := n.Client().Publish(t.Context(), tool("New", ""))
	wantCode(t, err, interact.DiskFull)
	if err := ask(t, n, ref); err != nil {
		t.Errorf("what was published before gives %v", err)
	}
	if _, err := n.Client().Unpublish(t.Context(), ref); err != nil {
		t.Errorf("withdrawing, which makes room, gives %v", err)
	}
}

// TestCountersHaveNoNames: a label with a peer or a thing in it would make as many series as the mesh has.
func TestCountersHaveNoNames(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.HTTP = &HTTP{Listen: "127.0.0.1:0"}
	host, n := start(t, quiet()), start(t, o)
	connect(t, n, host)
	ref := publish(t, host, toolAt("Echo", "urn:x:secret-thing", newAgent(t).url))
	knows(t, n, ref)
	if err := ask(t, n, ref); err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for _, c := range n.reporter.Counters() {
		if c.Value != "" && c.Label == "" || c.Label != "" && c.Value == "" {
			t.Errorf("%+v has half a label", c)
		}
		key := c.Name + "/" + c.Value
		if _, twice := seen[key]; twice {
			t.Errorf("%s is counted twice", key)
		}
		seen[key] = c.Count
	}
	if seen["stream_calls_total/out"] != 1 || seen["stream_errors_total/out"] != 0 || len(seen) < 20 {
		t.Errorf("counted are %v", seen)
	}
	if n, ok := seen["tasks/input-required"]; !ok || n != 0 || seen["store_bytes/directory"] == 0 {
		t.Errorf("no tasks by state, or no bytes of the directory: %v", seen)
	}
	text := scrape(t, n.API()+"/metrics")
	for _, name := range []string{n.network.ID().String(), host.network.ID().String(), host.DID().Multibase(), "secret-thing"} {
		if strings.Contains(text, name) {
			t.Errorf("/metrics names %s", name)
		}
	}
	if !strings.Contains(text, "stream_calls_total") {
		t.Error("/metrics lacks what the node counts")
	}
}

// scrape returns the body at a URL of this host.
func scrape(t testing.TB, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s gives %d, %v", url, resp.StatusCode, err)
	}
	return string(b)
}

func TestOptionsOfTheAPI(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir, o.HTTP = shortDir(t), &HTTP{Listen: "127.0.0.1:0", Operation: gateway.Operation{HideMetrics: true}}
	o.HTTP.Socket = o.Dir + "/lmosd.sock"
	n := start(t, o)
	if self := scrape(t, n.API()+"/.well-known/wot"); self != string(n.gateway.Self()) {
		t.Errorf("the node describes itself as %s", self)
	}
	if s := scrape(t, n.API()+"/v1/status"); !strings.Contains(s, string(n.DID())) {
		t.Errorf("the status is %s", s)
	}
	if info, err := os.Stat(o.HTTP.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v; want 0600", info.Mode(), err)
	}
	if info, err := os.Stat(tokens.OperatorPath(o.Dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token has mode %v, %v; want 0600", info.Mode(), err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(n.API() + "/metrics")
	if err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("hidden metrics give %+v, %v", resp, err)
	}
}

// shortDir is a folder whose sockets have a path that fits.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
