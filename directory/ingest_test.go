package directory

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/td"
)

// bodies returns a Fetch with the TDs of agents.
func bodies(t testing.TB, signed ...*td.Signed) func(context.Context, *td.Record) ([]byte, error) {
	by := map[[32]byte][]byte{}
	for _, s := range signed {
		desc := described(t, s)
		by[desc.Record.Hash] = desc.Signed.TD
	}
	return func(_ context.Context, r *td.Record) ([]byte, error) {
		if body, ok := by[r.Hash]; ok {
			return body, nil
		}
		return nil, errors.New("not found")
	}
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := weather(t, 1)
		s := a.signed(t, 2)
		tampered := numbered(t, 1, 1).signed(t, 1)
		tampered.Record[20] ^= 1
		for _, c := range []struct {
			name    string
			records []*td.Signed
			want    string
			stats   Stats
		}{
			{"with its TD inline", []*td.Signed{s}, a.id, Stats{Known: 1, Counters: Counters{Added: 1}}},
			{"without its TD", []*td.Signed{bare(t, s)}, a.id, Stats{Known: 1, Counters: Counters{Added: 1, Fetches: 1}}},
			{"refresh without its TD", []*td.Signed{s, bare(t, a.signed(t, 3))}, a.id, Stats{Known: 1, Counters: Counters{Added: 2}}},
			{"again", []*td.Signed{s, s, bare(t, s)}, a.id, Stats{Known: 1, Counters: Counters{Added: 1}}},
			{"older", []*td.Signed{s, a.signed(t, 1)}, a.id, Stats{Known: 1, Counters: Counters{Added: 1}}},
			{"tombstone", []*td.Signed{s, a.tombstone(t, 3)}, "", Stats{Removed: 1, Counters: Counters{Added: 1, Withdrawn: 1}}},
			{"tampered", []*td.Signed{tampered, s}, a.id, Stats{Known: 1, Counters: Counters{Added: 1, Invalid: 1}}},
			{"no record", []*td.Signed{{Record: []byte("x")}}, "", Stats{Counters: Counters{Invalid: 1}}},
		} {
			d := openDirectory(t, Options{Fetch: bodies(t, s)})
			stop := run(t, d)
			for _, o := range c.records {
				d.Enqueue(o)
				synctest.Wait()
			}
			if got := ids(d.FindLocal(t.Context(), td.Query{})); got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
			got := d.Stats()
			if got.Bytes, got.Words = 0, 0; got != c.stats {
				t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.stats)
			}
			stop()
		}
	})
}

// A refresh costs the check of one signature: the TD is neither verified nor stored again.
func TestRefreshKeepsTheThing(t *testing.T) {
	t.Parallel()
	first := weather(t, 1).signed(t, 1)
	d := filled(t, Options{}, described(t, first))
	before, err := d.Get(t.Context(), "urn:example:weather")
	if err != nil {
		t.Fatal(err)
	}
	second, err := td.Renew(before, didtest.Key(1), td.Lease{Seq: 2, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*td.Signed{second, bare(t, second)} {
		desc, _, err := d.open(t.Context(), s)
		if err != nil || desc.Thing != before.Thing || desc.Record.Seq != 2 {
			t.Errorf("got %+v, %v", desc, err)
		}
	}
	other := weather(t, 2).signed(t, 3)
	if desc, _, err := d.open(t.Context(), other); err != nil || desc.Thing == before.Thing {
		t.Errorf("a Thing of another owner: got %+v, %v", desc, err)
	}
}

func TestEnqueueNeverBlocks(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{}) // Run is not called
	for i := range cap(d.queue) + 10 {
		d.Enqueue(&td.Signed{Record: fmt.Append(nil, i)})
	}
	if n := d.Stats().Dropped; n != 10 {
		t.Errorf("got %d dropped, want 10", n)
	}
	if first := <-d.queue; string(first.Record) != "10" {
		t.Errorf("the first is %s, want the oldest dropped", first.Record)
	}
}

// The TDs in the queue are bounded. Others are fetched later.
func TestQueueBoundsTDs(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{}) // Run is not called
	for range 2 * cap(d.queue) {
		d.Enqueue(&td.Signed{Record: []byte("x"), TD: make([]byte, td.MaxTD)})
	}
	held := 0
	for range cap(d.queue) {
		held += len((<-d.queue).TD)
	}
	if held > maxQueued || int64(held) != d.queued.Load() {
		t.Errorf("%d bytes of TDs are queued, %d are counted; want at most %d", held, d.queued.Load(), maxQueued)
	}
}

// One fetch serves all records that wait for it.
func TestFetchesAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := weather(t, 1)
		first := a.signed(t, 1)
		body := described(t, first).Signed.TD
		var calls atomic.Int32
		d := openDirectory(t, Options{Fetch: func(context.Context, *td.Record) ([]byte, error) {
			calls.Add(1)
			time.Sleep(time.Second)
			return body, nil
		}})
		run(t, d)
		for seq := uint64(1); seq <= 5; seq++ {
			d.Enqueue(bare(t, a.signed(t, seq)))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("fetched %d times", n)
		}
		got, err := d.Get(t.Context(), "weather")
		if err != nil || got.Record.Seq != 5 {
			t.Errorf("got %v, %v, want seq 5", got, err)
		}
	})
}

// An unreachable host delays neither other hosts nor the workers.
func TestUnreachableHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead, alive := td.Host{Node: didtest.Key(7).DID()}, td.Host{Node: didtest.Key(8).DID()}
		good := numbered(t, 1, 500)
		good.hosts = []td.Host{alive}
		s := good.signed(t, 1)
		get := bodies(t, s)
		var most, now atomic.Int32
		d := openDirectory(t, Options{Fetch: func(ctx context.Context, r *td.Record) ([]byte, error) {
			if r.Hosts[0].Node != dead.Node {
				return get(ctx, r)
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		run(t, d)
		for i := range 100 {
			a := numbered(t, 1, i)
			a.hosts = []td.Host{dead}
			d.Enqueue(bare(t, a.signed(t, 1)))
		}
		d.Enqueue(bare(t, s))
		synctest.Wait()
		if got := ids(d.FindLocal(t.Context(), td.Query{})); got != good.id {
			t.Errorf("got %q, want the Thing of the living host", got)
		}
		if n := most.Load(); n != 4 {
			t.Errorf("%d concurrent fetches from one host, want 4", n)
		}
		if n := d.Stats().Dropped; n != 100-4-64 {
			t.Errorf("%d dropped, want those beyond the queue", n)
		}
	})
}

func TestFailedFetchesBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := weather(t, 1)
		var calls int
		d := openDirectory(t, Options{Fetch: func(context.Context, *td.Record) ([]byte, error) {
			calls++
			return nil, errors.New("no")
		}})
		run(t, d)
		seq := uint64(0)
		first := described(t, a.signed(t, 1))
		try := func(after time.Duration) int {
			time.Sleep(after)
			seq++
			refresh, err := td.Renew(first, a.key, td.Lease{Seq: seq, Now: time.Now(), Lifetime: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			d.Enqueue(bare(t, refresh))
			synctest.Wait()
			return calls
		}
		for i, step := range []struct {
			after time.Duration
			want  int
		}{
			{0, 1}, {time.Second, 1}, {4 * time.Second, 2}, {19 * time.Second, 2}, {time.Second, 3}, {80 * time.Second, 4},
			{320 * time.Second, 5}, {59 * time.Minute, 5}, {time.Minute, 6},
		} {
			if got := try(step.after); got != step.want {
				t.Errorf("step %d: got %d fetches, want %d", i, got, step.want)
			}
		}
		if n := d.Stats().Unfetched; n != uint64(seq) {
			t.Errorf("got %d unfetched, want %d", n, seq)
		}
	})
}

func TestInvalidTDIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := weather(t, 1)
		calls := 0
		d := openDirectory(t, Options{Fetch: func(context.Context, *td.Record) ([]byte, error) {
			calls++
			return []byte(`{"title":"something else"}`), nil
		}})
		run(t, d)
		for seq := uint64(1); seq <= 3; seq++ {
			d.Enqueue(bare(t, a.signed(t, seq)))
			synctest.Wait()
		}
		if s := d.Stats(); calls != 1 || s.Known != 0 || s.Invalid != 1 {
			t.Errorf("fetched %d times, %+v", calls, s)
		}
	})
}

// A host that never sends the TDs of its Things stops neither records that have their TD nor the fetches from other hosts.
func TestSilentHostStopsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent, other := didtest.Key(8).DID(), didtest.Key(9).DID()
		fetched := numbered(t, 2, 1)
		fetched.hosts = []td.Host{{Node: other}}
		get := bodies(t, fetched.signed(t, 1))
		d := openDirectory(t, Options{Fetch: func(ctx context.Context, r *td.Record) ([]byte, error) {
			if r.Hosts[0].Node == silent {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return get(ctx, r)
		}})
		run(t, d)
		for i := range 40 { // more than there are workers
			a := numbered(t, 1, i)
			a.hosts = []td.Host{{Node: silent}}
			d.Enqueue(bare(t, a.signed(t, 1)))
		}
		with := numbered(t, 2, 2)
		d.Enqueue(with.signed(t, 1))
		d.Enqueue(bare(t, fetched.signed(t, 1)))
		synctest.Wait() // no time passes: no fetch ends by its timeout
		if got, want := ids(d.FindLocal(t.Context(), td.Query{})), fetched.id+" "+with.id; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := d.Stats(); got.Fetches != 41 || got.Unfetched != 0 {
			t.Errorf("%d fetches, %d ended without a TD; want 41, 0", got.Fetches, got.Unfetched)
		}
	})
}

// While the disk does not answer, records are verified, found and withdrawn.
func TestSlowDiskStopsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{Batching: memory(), began: make(chan bool, 1), answers: make(chan bool)}
		d := openDirectory(t, Options{Store: disk})
		stop := run(t, d)
		first, second := numbered(t, 1, 1), numbered(t, 1, 2)
		d.Enqueue(first.signed(t, 1))
		<-disk.began
		d.Enqueue(second.signed(t, 1))
		d.Enqueue(first.tombstone(t, 2))
		synctest.Wait()
		if got := ids(d.FindLocal(t.Context(), td.Query{})); got != second.id {
			t.Errorf("got %q, want %q", got, second.id)
		}
		close(disk.answers)
		stop()
		if got := stored(t, disk, persist.Descriptions); len(got) != 1 {
			t.Errorf("the store has %d descriptions, want that of %s", len(got), second.id)
		}
	})
}

// A slowDisk does not write before answers is closed. It sends on began when it could begin.
type slowDisk struct {
	ds.Batching
	began, answers chan bool
}

func (s *slowDisk) Batch(ctx context.Context) (ds.Batch, error) {
	b, err := s.Batching.Batch(ctx)
	return slowBatch{b, s}, err
}

type slowBatch struct {
	ds.Batch
	disk *slowDisk
}

func (b slowBatch) Commit(ctx context.Context) error {
	select {
	case b.disk.began <- true:
	default:
	}
	<-b.disk.answers
	return b.Batch.Commit(ctx)
}
