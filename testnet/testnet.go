// Package testnet starts meshes of nodes for tests and demonstrations: simulated, in one process, or as processes.
//
// There are three tiers with one type. [Simulated] nodes have a simulated network without sockets, for testing/synctest. [InProcess] nodes
// are hosts on loopback in this process. [Processes] are lmosd processes, which can be killed. All have the same client of the HTTP API.
package testnet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
)

// Options are the settings of a testnet. The zero value is a full mesh with reproducible keys.
type Options struct {
	// Network is the name of the network; empty derives one from Seed, so that the nodes never join a real mesh.
	Network string
	// Seed makes keys, and so DIDs, reproducible. 0 means 1.
	Seed int64
	// Topology is the graph of connections: full, ring, star, line, two-orgs or random:K. Empty means full. [Processes] in other topologies
	// do not announce their addresses, so that it persists; in other tiers nodes find each other in time.
	Topology string
	// Latency is the one-way delay of a link. [Simulated] only; 0 means 10 ms.
	Latency time.Duration
	// Farthest is the maximal one-way delay: each link has a delay from Latency to Farthest, determined by Seed. [Simulated] only; 0 means
	// Latency.
	Farthest time.Duration
	// Lifetime is the validity period of a record; 0 means a day. Not for [Processes].
	Lifetime time.Duration
	// Dir has the data directories and logs, Binary is the lmosd program, and Flags are further flags of `lmosd run`. [Processes] only.
	Dir, Binary string
	Flags       []string
	// In calls start, which starts a process, where the process is to run: in a network namespace. Nil calls it. [Spawn] only.
	In  func(start func() error) error
	Log *slog.Logger

	freePorts func() (tcp, udp int, err error) // nil means freePorts
	// pause is between two connections at the start. Hundreds of nodes that join at once have a connection with nearly each other one for half a
	// minute, of 65 kB each.
	pause time.Duration
}

func (o Options) withDefaults() Options {
	o.Seed = cmp.Or(o.Seed, 1)
	if o.Network == "" {
		o.Network = fmt.Sprintf("tn-%d", o.Seed)
	}
	o.Topology = cmp.Or(o.Topology, "full")
	o.Latency = cmp.Or(o.Latency, 10*time.Millisecond)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// A Net is a running testnet. The caller closes it.
type Net struct {
	Network string
	Seed    int64
	Members []*Member // in order; number 1 first
	close   []func() error
	sim     *simulation // of [Simulated]
	options Options     // of [Processes]
}

// A Member is one node of a testnet. Its embedded client has the rights of the administrator.
type Member struct {
	*api.Client
	N     int // from 1
	DID   did.DID
	Addrs []string // multiaddrs with /p2p
	// The following fields are empty in tiers without processes.
	API, Socket, DataDir, Log string
	PID                       int

	stop, kill func() error
	// node, and cut, which disconnects it, are set in tiers without processes.
	node *node.Node
	cut  func() error
}

// Kill ends the node like SIGKILL.
func (m *Member) Kill() error { return m.kill() }

// Stop ends the node like SIGTERM. [Processes] only.
func (m *Member) Stop() error { return m.stop() }

// Close stops all running nodes.
func (t *Net) Close() error {
	var errs []error
	for i := len(t.close) - 1; i >= 0; i-- {
		errs = append(errs, t.close[i]())
	}
	t.close = nil
	return errors.Join(errs...)
}

// Key returns the key of node n (from 1) of the testnet of a seed.
func Key(seed int64, n int) (*keystore.Key, error) { return keystore.FromSeed(keySeed(seed, n)) }

func keySeed(seed int64, n int) [32]byte {
	b := []byte("lmosd testnet key ")
	b = binary.BigEndian.AppendUint64(b, uint64(seed))
	return sha256.Sum256(binary.BigEndian.AppendUint64(b, uint64(n)))
}

// A link is a connection of two nodes, by number from 0; the first dials.
type link struct{ from, to int }

// links returns the connections of a topology over n nodes.
func links(topology string, n int, seed int64) ([]link, error) {
	name, arg, _ := strings.Cut(topology, ":")
	switch name {
	case "full":
		return every(n, func(i, j int) bool { return true }), nil
	case "ring":
		return every(n, func(i, j int) bool { return j == i+1 || i == 0 && j == n-1 }), nil
	case "line":
		return every(n, func(i, j int) bool { return j == i+1 }), nil
	case "star":
		return every(n, func(i, j int) bool { return i == 0 }), nil
	case "two-orgs": // two full halves with one connection between them
		half := (n + 1) / 2
		return every(n, func(i, j int) bool { return (i < half) == (j < half) || i == 0 && j == half }), nil
	case "random":
		if k, err := strconv.Atoi(arg); err == nil && k > 0 {
			return random(n, k, seed), nil
		}
	}
	return nil, interact.Errorf(interact.Usage, "use full, ring, line, star, two-orgs or random:3", "unknown topology %q", topology)
}

// every returns the pairs i < j that satisfy want.
func every(n int, want func(i, j int) bool) []link {
	var ls []link
	for i := range n {
		for j := i + 1; j < n; j++ {
			if want(i, j) {
				ls = append(ls, link{i, j})
			}
		}
	}
	return ls
}

// random connects each node to its successor, so that the mesh is connected, and to k-1 others.
func random(n, k int, seed int64) []link {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	set := map[link]bool{}
	for i := range n {
		set[ordered(i, (i+1)%n)] = true
		for range k - 1 {
			set[ordered(i, r.IntN(n))] = true
		}
	}
	ls := make([]link, 0, len(set))
	for l := range set {
		if l.from != l.to {
			ls = append(ls, l)
		}
	}
	slices.SortFunc(ls, func(a, b link) int { return a.from*n + a.to - b.from*n - b.to })
	return ls
}

func ordered(i, j int) link { return link{min(i, j), max(i, j)} }

// connect connects the nodes of a topology concurrently.
func (t *Net) connect(ctx context.Context, o Options) error {
	ls, err := links(o.Topology, len(t.Members), t.Seed)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, l := range ls {
		time.Sleep(o.pause)
		g.Go(func() error {
			from, to := t.Members[l.from], t.Members[l.to]
			if len(to.Addrs) == 0 {
				return fmt.Errorf("node %d has no address", to.N)
			}
			if err := from.Connect(ctx, to.Addrs[0]); err != nil {
				return fmt.Errorf("connect node %d to node %d: %w", from.N, to.N, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Settle waits until all nodes have gossip peers and DHT routes, or ctx ends.
func (t *Net) Settle(ctx context.Context) error {
	if len(t.Members) < 2 {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range t.Members {
		g.Go(func() error {
			return Until(ctx, fmt.Sprintf("node %d is meshed", m.N), func() bool {
				s, err := m.Status(ctx)
				return err == nil && s.Gossip.Peers > 0 && s.DHT.Table > 0
			})
		})
	}
	return g.Wait()
}

// Until polls cond until it holds. The error contains what.
func Until(ctx context.Context, what string, cond func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for: %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}
