package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/directorytest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/node"
)

// sizesOfGrowth are the numbers of items, and the columns of the table.
var sizesOfGrowth = []int{1, 10, 100, 1000, 10_000, 100_000}

// fitFrom is the least number of items by which exponents are fitted: the memory of fewer ones is less than the differences between two runs.
const fitFrom = 100

// slowGrowth is the time of one measurement after which larger numbers of the same kind are left out, so that a busy machine ends, too.
const slowGrowth = time.Minute

// A growing kind of item has a cost that may depend on their number.
type growing struct {
	name, work string // work is an operation beside the items
	most       int    // the largest number; a node refuses more than 7,500 subscriptions
	start      func(ctx context.Context) (grower, error)
}

// A grower has the items of one kind.
type grower struct {
	add  func(ctx context.Context, n int) error                              // adds n items, which exist until stop
	work func(ctx context.Context, length time.Duration) (done int, e error) // works for some time beside them
	stop func()
}

var allGrowing = []growing{
	{"own things, stored", "one more is published", 10_000, growOwn},
	{"foreign things", "one more is verified and added", 100_000, growForeign},
	{"peers with gossip", "a thing is published to one, which has no other peer", 1000, growPeers},
	{"subscriptions, the same", "an event is delivered to one", 1000, growSubscriptions(true)},
	{"subscriptions, different", "an event is delivered to one", 1000, growSubscriptions(false)},
	{"open tasks", "one more is started and cancelled", 10_000, growTasks},
	{"open streams", "one more is opened and left", 1000, growStreams},
}

// A grown is the cost with a number of items.
type grown struct {
	Memory, RSS float64 // bytes of each
	CPU         float64 // microseconds of one operation
}

// growthTable prints what one item and one operation cost at each number of items, and the exponents of the costs of all. Each number has a process of
// its own. Both nodes of a call are in that process; peers are in another.
func growthTable(ctx context.Context, p plan) error {
	columns := " | cost"
	for _, n := range sizesOfGrowth {
		columns += fmt.Sprintf(" | %d", n)
	}
	p.table(columns + " | exponent")
	for i, g := range allGrowing {
		all := map[int]grown{}
		for _, n := range sizesOfGrowth {
			if n > g.most {
				continue
			}
			began := time.Now()
			line, stop, err := child(ctx, fmt.Sprintf("growth=%d,%d,%v", i, n, p.length))
			if err != nil && (ctx.Err() != nil || len(all) == 0) {
				return fmt.Errorf("%d %s: %w", n, g.name, err)
			}
			if err != nil { // a limit of the node or of the machine, which the process has printed
				progress("%6d %s are left out: %v", n, g.name, err)
				break
			}
			stop()
			var one grown
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				return err
			}
			all[n] = one
			took := time.Since(began)
			progress("%6d %-25s %8.1f KiB  %8.1f KiB RSS  %8.1f µs  (%v)", n, g.name, one.Memory/1024, one.RSS/1024, one.CPU,
				took.Round(100*time.Millisecond))
			if took > slowGrowth {
				break
			}
		}
		growthRow(p, g.name, "heap and stacks of each, KiB", all, fitFrom, func(one grown) float64 { return one.Memory / 1024 })
		growthRow(p, "", "RSS of each, KiB", all, fitFrom, func(one grown) float64 { return one.RSS / 1024 })
		growthRow(p, "", g.work+": CPU, µs", all, 1, func(one grown) float64 { return one.CPU })
	}
	return nil
}

// growthRow prints one cost at all numbers of items from least on.
func growthRow(p plan, name, what string, all map[int]grown, least int, of func(grown) float64) {
	cells := name + " | " + what
	var x, y []float64
	for _, n := range sizesOfGrowth {
		one, ok := all[n]
		if !ok || n < least {
			cells += " | –"
			continue
		}
		cells += fmt.Sprintf(" | %.3g", of(one))
		if n >= fitFrom {
			x, y = append(x, math.Log(float64(n))), append(y, math.Log(max(of(one), 1e-9)))
		}
	}
	exponent := "–"
	if len(x) > 1 {
		exponent = fmt.Sprintf("%.2f", 1+slope(x, y))
	}
	p.row("%s | %s", cells, exponent)
}

// slope is that of the line with the least squares.
func slope(x, y []float64) float64 {
	var mx, my, xy, xx float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(x))
	}
	for i := range x {
		xy, xx = xy+(x[i]-mx)*(y[i]-my), xx+(x[i]-mx)*(x[i]-mx)
	}
	return xy / xx
}

// serveGrowth measures one kind at one number of items, prints a [grown], and waits.
func serveGrowth(ctx context.Context, arg string) error {
	part := strings.Split(arg, ",")
	kind, _ := strconv.Atoi(part[0])
	n, _ := strconv.Atoi(part[1])
	length, err := time.ParseDuration(part[2])
	if err != nil {
		return err
	}
	g, err := allGrowing[kind].start(ctx)
	if err != nil {
		return err
	}
	defer g.stop()
	time.Sleep(settle / 3)
	before := footprintNow()
	if err := g.add(ctx, n); err != nil {
		return err
	}
	time.Sleep(settle)
	after := footprintNow()
	began := measured().CPU
	done, err := g.work(ctx, length)
	if err != nil {
		return err
	}
	one := grown{Memory: (after.Memory - before.Memory) / float64(n), RSS: float64(after.RSS-before.RSS) / float64(n),
		CPU: us(measured().CPU-began) / float64(done)}
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	<-ctx.Done()
	return nil
}

// repeated returns a worker that does f again and again, with numbers from first on.
func repeated(first int, f func(ctx context.Context, i int) error) func(context.Context, time.Duration) (int, error) {
	return func(ctx context.Context, length time.Duration) (done int, err error) {
		for deadline := time.Now().Add(length); time.Now().Before(deadline) && err == nil; done++ {
			err = f(ctx, first+done)
		}
		return done, err
	}
}

// others is the number of the first Thing that is not one of the items.
const others = 1_000_000

func growOwn(ctx context.Context) (grower, error) {
	dir, err := os.MkdirTemp("", "lmosd-bench-")
	if err != nil {
		return grower{}, err
	}
	o := options("tcp")
	o.Dir = dir
	n, stop, err := start(ctx, o)
	if err != nil {
		os.RemoveAll(dir)
		return grower{}, err
	}
	publish := func(ctx context.Context, i int) error {
		_, err := n.Publish(ctx, directorytest.TD(i))
		return err
	}
	return grower{
		add: func(ctx context.Context, n int) error {
			g, ctx := errgroup.WithContext(ctx)
			g.SetLimit(8)
			for i := range n {
				g.Go(func() error { return publish(ctx, i) })
			}
			return g.Wait()
		},
		work: repeated(others, publish),
		stop: func() { stop(); os.RemoveAll(dir) },
	}, nil
}

func growForeign(context.Context) (grower, error) {
	d, err := directory.New(directory.Options{Max: 200_000})
	if err != nil {
		return grower{}, err
	}
	const batch = 1000
	more, err := directorytest.Sign(others, 2*batch)
	return grower{
		add: func(ctx context.Context, n int) error {
			for first := 0; first < n; first += batch {
				signed, err := directorytest.Sign(first, min(batch, n-first))
				if err != nil {
					return err
				}
				for _, s := range signed {
					d.Ingest(ctx, s)
				}
			}
			return nil
		},
		work: func(ctx context.Context, length time.Duration) (done int, err error) {
			for deadline := time.Now().Add(length); time.Now().Before(deadline) && done < len(more); done++ {
				d.Ingest(ctx, more[done])
			}
			return done, nil
		},
		stop: func() {},
	}, err
}

func growPeers(ctx context.Context) (grower, error) {
	o := options("tcp")
	o.Limits.PeersLow, o.Limits.PeersHigh = 2000, 3000
	n, stop, err := start(ctx, o)
	if err != nil {
		return grower{}, err
	}
	leave, peers := func() {}, 0
	publish := repeated(others, func(ctx context.Context, i int) error {
		_, err := n.Publish(ctx, directorytest.TD(i))
		return err
	})
	return grower{
		add: func(ctx context.Context, count int) error {
			peers += count
			_, stop, err := child(ctx, fmt.Sprintf("growth-peers=%d,%s", count, n.Addrs()[0]))
			if err == nil {
				leave = stop
			}
			return err
		},
		work: func(ctx context.Context, length time.Duration) (int, error) {
			things, err := publish(ctx, length)
			return things * peers, err // each peer asks this node for what gossip has not brought
		},
		stop: func() { leave(); stop() },
	}, nil
}

// serveGrowthPeers connects peers to a node. arg is their number and its address.
func serveGrowthPeers(ctx context.Context, arg string) error {
	number, at, _ := strings.Cut(arg, ",")
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	for range n {
		p, err := newNeighbour(ctx, at, nil)
		if err != nil {
			return err
		}
		defer p.stop()
	}
	fmt.Println("connected")
	<-ctx.Done()
	return nil
}

// newPair starts two connected nodes in this process, the first with an agent.
func newPair(ctx context.Context, o node.Options, agent interact.Thing) (*link, error) {
	host, stopHost, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	p, err := host.Offer(ctx, fmt.Appendf(nil, benchTD, "bench", "http://127.0.0.1:1"), agent)
	if err != nil {
		stopHost()
		return nil, err
	}
	near, stopNear, err := start(ctx, options("tcp"))
	if err != nil {
		stopHost()
		return nil, err
	}
	l := &link{node: near, addr: host.Addrs()[0], ref: p.Ref, stop: func() { stopNear(); stopHost() }}
	if err := meet(ctx, near, l.addr, l.ref); err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

func growSubscriptions(same bool) func(context.Context) (grower, error) {
	return func(ctx context.Context) (grower, error) {
		l, err := newPair(ctx, options("tcp"), &agent{subs: map[*subscription]struct{}{}})
		if err != nil {
			return grower{}, err
		}
		ctx, cancel := context.WithCancel(ctx)
		a := &audience{link: l, batches: make(chan struct{}, ahead)}
		return grower{
			add: func(_ context.Context, n int) error {
				a.size = n
				a.waiting.Store(int64(n))
				for i := range n {
					a.all.Go(func() { a.listen(ctx, cancel, i, same) })
				}
				return a.stand(ctx)
			},
			work: func(_ context.Context, length time.Duration) (int, error) {
				rounds, err := a.flow(ctx, length)
				return rounds * batch * a.size, err
			},
			stop: func() { cancel(); a.all.Wait(); l.stop() },
		}, nil
	}
}

// holding is an agent whose actions send one part and do not end.
func holding(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if yield(m.ReplyStatus(interact.StatusRunning, "application/octet-stream", payload), nil) {
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
}

// hold invokes an action of that agent.
func hold(l *link) *interact.Message {
	return &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.InvokeAction, Thing: l.ref, Name: "download", Accept: "application/octet-stream"}
}

func growTasks(ctx context.Context) (grower, error) {
	o := options("tcp")
	o.Tasks = task.Options{Keep: time.Millisecond, MaxTasks: others, MaxPerCaller: others, MaxOutput: 1 << 30}
	l, err := newPair(ctx, o, interact.Func(holding))
	if err != nil {
		return grower{}, err
	}
	begin := func(ctx context.Context) (id string, err error) {
		m := hold(l)
		m.Detach = true
		for r, err := range l.node.Mesh().Do(ctx, m) {
			if err != nil {
				return "", err
			}
			return r.ActionID, nil // the task goes on
		}
		return "", fmt.Errorf("no task")
	}
	return grower{
		add: func(ctx context.Context, n int) error {
			for range n {
				if _, err := begin(ctx); err != nil {
					return err
				}
			}
			return nil
		},
		work: repeated(0, func(ctx context.Context, _ int) error {
			id, err := begin(ctx)
			if err != nil {
				return err
			}
			m := hold(l)
			m.Type, m.ActionID = interact.CancelAction, id
			_, err = interact.Call(ctx, l.node.Mesh(), m)
			return err
		}),
		stop: l.stop,
	}, nil
}

// callersOfStreams is the number of nodes that open the streams: a node has at most 128 calls without an end with another one.
const callersOfStreams = 10

func growStreams(ctx context.Context) (grower, error) {
	o := options("tcp")
	o.Limits.Memory = 1 << 30 // a stream reserves 256 KiB
	l, err := newPair(ctx, o, interact.Func(holding))
	if err != nil {
		return grower{}, err
	}
	stops, callers := []func(){l.stop}, []*node.Node{l.node}
	stop := func() {
		for _, one := range slices.Backward(stops) {
			one()
		}
	}
	for len(callers) < callersOfStreams {
		n, stopOne, err := start(ctx, options("tcp"))
		if err != nil {
			stop()
			return grower{}, err
		}
		stops, callers = append(stops, stopOne), append(callers, n)
		if err := meet(ctx, n, l.addr, l.ref); err != nil {
			stop()
			return grower{}, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var open errgroup.Group
	return grower{
		add: func(_ context.Context, n int) error {
			first := make(chan error, n)
			for i := range n {
				open.Go(func() error {
					for _, err := range callers[i%len(callers)].Mesh().Do(ctx, hold(l)) {
						first <- err // the second part comes when the stream ends
						if err != nil || ctx.Err() != nil {
							break
						}
					}
					return nil
				})
			}
			for range n {
				if err := <-first; err != nil {
					return err
				}
			}
			return nil
		},
		work: repeated(0, func(ctx context.Context, _ int) error {
			for _, err := range l.node.Mesh().Do(ctx, hold(l)) {
				return err
			}
			return nil
		}),
		stop: func() { cancel(); _ = open.Wait(); stop() },
	}, nil
}
