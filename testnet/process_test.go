package testnet

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/examples/weather/agent"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/node/topology"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// runNode is the part of `lmosd run` that Processes relies on; the command itself is tested with the command.
func runNode(args []string) int {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	dir, network, ready := f.String("data-dir", "", ""), f.String("mesh.network", "", ""), f.String("ready-file", "", "")
	f.String("profile", "", "")
	f.String("node.name", "", "")
	f.Bool("listen.private", true, "")
	var listen, announce []string
	f.Func("listen.p2p", "", func(s string) error { listen = append(listen, s); return nil })
	f.Func("listen.announce", "", func(s string) error { announce = append(announce, s); return nil })
	if err := f.Parse(args[1:]); err != nil {
		return 2
	}
	if listen == nil {
		listen = []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := node.New(node.Options{Dir: *dir, Network: *network, Profile: "test", Loopback: true, ListenExplicit: true, Policy: policy.Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}},
		Listen: listen, Announce: announce, PublicOnly: announce != nil,
		HTTP: &node.HTTP{Listen: "127.0.0.1:0", Explicit: true, Socket: filepath.Join(*dir, "lmosd.sock"), Operation: gateway.Operation{LinksFor: topology.ForMesh}}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer n.Close()
	b, _ := json.Marshal(Ready{DID: n.DID(), P2P: n.Addrs(), API: n.API()})
	if err := os.WriteFile(*ready+".new", b, 0o600); err != nil {
		return 1
	}
	if err := os.Rename(*ready+".new", *ready); err != nil {
		return 1
	}
	if err := n.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// shortDir is a folder whose sockets have a path that fits.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func processes(t *testing.T, n int, o Options) *Net {
	t.Helper()
	t.Setenv(runAs, "1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Binary = binary
	net, err := Processes(ctx, n, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := net.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	return net
}

func TestKilledNodeRestoresItsPublications(t *testing.T) {
	dir := shortDir(t)
	handler, _ := agent.New("http://unset")
	server := httptest.NewServer(handler)
	defer server.Close()
	_, raw := agent.New(server.URL)
	net := processes(t, 2, Options{Dir: dir, Seed: 42})
	p, err := net.Members[0].Publish(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := net.Members[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := net.Close(); err != nil {
		t.Fatal(err)
	}
	again := processes(t, 2, Options{Dir: dir, Seed: 42})
	if again.Members[0].DID != net.Members[0].DID {
		t.Errorf("the node came back as %s, was %s", again.Members[0].DID, net.Members[0].DID)
	}
	input := []byte(`{"question":"Rain in Bonn?","interactionMode":"text"}`)
	err = Until(t.Context(), "node 2 calls the agent again", func() bool {
		out, _, err := again.Members[1].Call(t.Context(), p.Ref, "getWeather", interact.JSON, input)
		return err == nil && len(out) > 0
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := again.Members[1].Agent(t.Context(), p.Ref)
	if err != nil || d.Signature.Seq <= p.Seq {
		t.Errorf("after the restart the record has seq %d (%v), want more than %d", d.Signature.Seq, err, p.Seq)
	}
}

// A port that is taken between its choice and its use is replaced by another.
func TestTakenPortIsReplaced(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var chosen atomic.Int32
	processes(t, 2, Options{Dir: shortDir(t), Topology: "line", freePorts: func() (tcp, udp int, err error) {
		tcp, udp, err = freePorts()
		if chosen.Add(1) == 1 {
			tcp = taken.Addr().(*net.TCPAddr).Port
		}
		return tcp, udp, err
	}})
	if n := chosen.Load(); n != 3 {
		t.Errorf("ports were chosen %d times for 2 nodes, want 3", n)
	}
}

func TestStateSurvivesItsMaker(t *testing.T) {
	dir := shortDir(t)
	net := processes(t, 2, Options{Dir: dir, Seed: 7, Topology: "line"})
	if _, err := net.Save(dir, "line", nil); err != nil {
		t.Fatal(err)
	}
	s, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 2 || s.Nodes[0].DID != net.Members[0].DID || s.Nodes[1].API == "" {
		t.Errorf("got %+v, want the two nodes with their addresses", s)
	}
	for _, n := range s.Nodes {
		if !Alive(n.PID, n.Born) {
			t.Errorf("node %d does not live", n.N)
		}
		if Alive(n.PID, "1") {
			t.Errorf("a process with the number of node %d and another birth was taken for it", n.N)
		}
	}
	if err := s.Down(); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if Alive(n.PID, n.Born) {
			t.Errorf("node %d still lives", n.N)
		}
	}
	if _, err := Load(dir); !os.IsNotExist(err) {
		t.Errorf("the state file is still there (%v)", err)
	}
	if err := s.Purge(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("purge left %v", left)
	}
}

func TestLineTopologyPersists(t *testing.T) {
	net := processes(t, 3, Options{Dir: shortDir(t), Seed: 3, Topology: "line"})
	handler, _ := agent.New("http://unset")
	server := httptest.NewServer(handler)
	defer server.Close()
	_, raw := agent.New(server.URL)
	p, err := net.Members[0].Publish(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	err = Until(t.Context(), "node 3 knows the agent", func() bool { // to show it would be to reach its host
		s, err := net.Members[2].Status(t.Context())
		return err == nil && s.Agents.Known > 0
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 2, 1} {
		if peers, err := net.Members[i].Peers(t.Context()); err != nil || len(peers.Items) != want {
			t.Errorf("node %d has %d peers (%v), want %d", i+1, len(peers.Items), err, want)
		}
	}
	if _, _, err := net.Members[2].Read(t.Context(), p.Ref, "units"); err != nil {
		t.Errorf("node 3 cannot reach what it was told of by node 2: %v", err)
	}
}

// The first node of a line maps what the second one reports: nodes of a testnet report to all, because they have no organization.
func TestMapOfALine(t *testing.T) {
	net := processes(t, 3, Options{Dir: shortDir(t), Seed: 4, Topology: "line"})
	number := map[did.DID]int{}
	for _, m := range net.Members {
		number[m.DID] = m.N
	}
	var m *api.Topology
	if err := Until(t.Context(), "the map has three nodes", func() (ok bool) {
		var err error
		m, err = net.Members[0].Topology(t.Context(), api.TopologyOrganization, 0)
		return err == nil && len(m.Nodes) == 3 && m.Coverage.Answered == 1
	}); err != nil {
		t.Fatalf("%v: %+v", err, m)
	}
	var links []string
	for _, l := range m.Links {
		links = append(links, fmt.Sprintf("%d-%d by %d", min(number[l.From], number[l.To]), max(number[l.From], number[l.To]), number[l.SeenBy]))
	}
	slices.Sort(links)
	if got, want := strings.Join(links, ", "), "1-2 by 1, 2-3 by 2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAFolderOfAnotherSeedIsRefused(t *testing.T) {
	dir := shortDir(t)
	first := processes(t, 1, Options{Dir: dir, Seed: 7})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Processes(t.Context(), 1, Options{Dir: dir, Seed: 8, Binary: "/bin/false"})
	if e := interact.AsError(err); e == nil || e.Code != interact.Usage || e.Hint == "" && e.Next == nil {
		t.Errorf("got %v, want a usage error: the node would have another DID than the seed says", err)
	}
}

func TestNodeThatDoesNotStartReportsTheReason(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ says, want string }{
		"an error with its cause": {"x\nerror: no space  LMOS-3021\n  cause  disk full\n  hint   rm", "no space  LMOS-3021: disk full"},
		"an error alone":          {"error: no", "did not start: no (log: "},
		"no error":                {"warming up", "it ended: warming up"},
		"nothing":                 {"", "it ended: "},
	} {
		dir := shortDir(t)
		binary := filepath.Join(dir, "lmosd")
		if err := os.WriteFile(binary, []byte("#!/bin/sh\nprintf '%b' '"+test.says+"'\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Processes(t.Context(), 1, Options{Dir: dir, Binary: binary})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestUntrustedPeerIsRejected(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	net, err := InProcess(ctx, 2, Options{Network: "stranger"})
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	if err := net.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := NewAdversary("stranger")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	owner, err := Key(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	genuine := signed(owner, weatherTD(1), now)
	key := recordKey(t, genuine)
	if err := s.Store(ctx, net.Members[1].Addrs[0], key, genuine.Record); err != nil {
		t.Errorf("a true record was not taken: %v", err)
	}
	for name, value := range map[string][]byte{
		"garbage":         []byte("garbage"),
		"another's key":   signed(s.Key, weatherTD(1), now).Record,
		"a changed byte":  flip(genuine.Record, len(genuine.Record)/2),
		"a cut record":    genuine.Record[:len(genuine.Record)-1],
		"an empty record": {},
	} {
		if err := s.Store(ctx, net.Members[1].Addrs[0], key, value); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func flip(b []byte, at int) []byte {
	c := append([]byte(nil), b...)
	c[at] ^= 1
	return c
}
