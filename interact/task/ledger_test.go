package task

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A disk is a store that counts durable writes and can fail.
type disk struct {
	ds.Batching
	mu     sync.Mutex
	puts   int
	synced int   // puts before the last Sync
	err    error // of the next ones
	full   error // of the next changes; reads succeed
}

func newDisk() *disk { return &disk{Batching: dssync.MutexWrap(ds.NewMapDatastore())} }

func (d *disk) Put(ctx context.Context, k ds.Key, v []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.puts++; d.err != nil {
		return d.err
	}
	return d.Batching.Put(ctx, k, v)
}

func (d *disk) Delete(ctx context.Context, k ds.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if d.full != nil {
		return d.full
	}
	return d.Batching.Delete(ctx, k)
}

func (d *disk) Query(ctx context.Context, q query.Query) (query.Results, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.Batching.Query(ctx, q)
}

func (d *disk) Sync(ctx context.Context, k ds.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.synced = d.puts
	return d.err
}

func (d *disk) stored(t *testing.T) (n int) {
	t.Helper()
	res, err := d.Batching.Query(t.Context(), query.Query{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := res.Rest()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func open(t *testing.T, d *disk, o LedgerOptions) *Ledger {
	t.Helper()
	l, err := NewLedger(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// replying returns a mesh that yields replies and an error.
func replying(err error, replies ...*interact.Message) interact.Thing {
	return interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for _, r := range replies {
				if !yield(r, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
		}
	})
}

func status(id string, s interact.Status) *interact.Message {
	return &interact.Message{Type: interact.ActionStatus, ActionID: id, Status: s}
}

func tell(t *testing.T, l *Ledger, thing interact.Thing, typ interact.Type, changes ...change) {
	t.Helper()
	m := &interact.Message{Type: typ, Thing: "urn:oven@z6Mkx", Name: "bake", Detach: true, From: who("")}
	for _, c := range changes {
		c(m)
	}
	_, _ = interact.Call(t.Context(), interact.Chain(thing, l.Middleware()), m)
}

func TestLedgerSurvivesARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		l := open(t, d, LedgerOptions{})
		began := time.Now()
		for i, r := range []*interact.Message{status("id 0", interact.StatusPending), status("id 1", interact.StatusPending)} {
			for got, err := range interact.Chain(replying(nil, r, status(r.ActionID, interact.StatusRunning)), l.Middleware()).Do(t.Context(),
				&interact.Message{Type: interact.InvokeAction, From: did.Consumer(did.Token, "operator"), Thing: "urn:oven@z6Mkx", Name: fmt.Sprint("bake", i)}) {
				if err != nil || got != r {
					t.Errorf("got %v, %v", got, err)
				}
				if d.synced != d.puts || d.puts != i+1 {
					t.Errorf("the pending state is reported after %d of %d writes are durable", d.synced, d.puts)
				}
				break // the consumer leaves, and the node dies
			}
			time.Sleep(time.Minute)
		}
		l = open(t, d, LedgerOptions{})
		operator := did.Consumer(did.Process, "operator") // the caller that started it; how it was authenticated does not matter now
		want := []Entry{
			{ActionID: "id 1", Thing: "urn:oven@z6Mkx", Action: "bake1", Began: began.Add(time.Minute), State: interact.StatusPending, LastSeen: began.Add(time.Minute), By: operator},
			{ActionID: "id 0", Thing: "urn:oven@z6Mkx", Action: "bake0", Began: began, State: interact.StatusPending, LastSeen: began, By: operator},
		}
		if diff := cmp.Diff(want, l.List()); diff != "" {
			t.Error(diff)
		}
		if e, ok := l.Get("id 0"); !ok || !cmp.Equal(e, want[1]) {
			t.Errorf("got %v, %t", e, ok)
		}
		if e, ok := l.Get("id 2"); ok {
			t.Errorf("got %v for an id that is not there", e)
		}
		tell(t, l, replying(nil, status("id 0", interact.StatusCompleted)), interact.QueryAction)
		l = open(t, d, LedgerOptions{})
		if e, _ := l.Get("id 0"); e.State != interact.StatusCompleted || !e.Ended.Equal(began.Add(2*time.Minute)) {
			t.Errorf("got %+v, want it completed", e)
		}
		ended := time.Now().Add(-30 * time.Second) // the time of the host; a time before the start or in the future is ignored
		for id, at := range map[string]time.Time{"id 1": ended, "id 4": began.Add(-time.Hour), "id 5": time.Now().Add(time.Hour)} {
			tell(t, l, replying(nil, status(id, interact.StatusPending)), interact.InvokeAction)
			r := status(id, interact.StatusCompleted)
			r.Time = at
			time.Sleep(time.Second)
			tell(t, l, replying(nil, r), interact.QueryAction)
			want := time.Now()
			if id == "id 1" {
				want = ended
			}
			if e, _ := l.Get(id); !e.Ended.Equal(want) || !e.LastSeen.Equal(time.Now()) {
				t.Errorf("%s has ended at %v, was seen at %v, want %v", id, e.Ended, e.LastSeen, want)
			}
		}
	})
}

func TestLedgerNotes(t *testing.T) {
	t.Parallel()
	pending, running, completed := status("x", interact.StatusPending), status("x", interact.StatusRunning), status("x",
		interact.StatusCompleted)
	for name, c := range map[string]struct {
		replies []*interact.Message
		err     error
		want    string // the state; empty: no entry
	}{
		"started":   {[]*interact.Message{pending}, nil, "pending"},
		"running":   {[]*interact.Message{pending, running}, nil, "running"},
		"completed": {[]*interact.Message{pending, running, completed}, nil, "completed"},
		"failed": {[]*interact.Message{pending}, &interact.Error{Code: interact.AgentFailed,
			Remote: true}, "failed"},
		"lost connection": {[]*interact.Message{pending, running}, &interact.Error{Code: interact.Unreachable},
			"running"},
		"deadline of the caller": {[]*interact.Message{pending}, context.DeadlineExceeded, "pending"},
		"may continue": {[]*interact.Message{pending}, &interact.Error{Code: interact.Internal, Started: true},
			"pending"},
		"rejected": {nil, &interact.Error{Code: interact.Forbidden}, ""},
		"without an id": {[]*interact.Message{status("", interact.StatusPending), status("",
			interact.StatusCompleted)}, nil, ""},
		"completed immediately":  {[]*interact.Message{completed}, nil, ""},
		"an id that is too long": {[]*interact.Message{status(strings.Repeat("x", 257), interact.StatusPending)}, nil, ""},
		"an invalid id":          {[]*interact.Message{status("\xff", interact.StatusPending)}, nil, ""},
	} {
		l := open(t, newDisk(), LedgerOptions{})
		tell(t, l, replying(c.err, c.replies...), interact.InvokeAction)
		got := ""
		for _, e := range l.List() {
			got += e.State.String()
		}
		want(t, name, got, c.want)
	}
}

func TestLedgerLearnsStates(t *testing.T) {
	t.Parallel()
	l := open(t, newDisk(), LedgerOptions{})
	for i := range 4 {
		tell(t, l, replying(nil, status(fmt.Sprint(i), interact.StatusPending)), interact.InvokeAction)
	}
	tell(t, l, replying(nil, status("0", interact.StatusFailed)), interact.QueryAction)
	tell(t, l, replying(nil, status("1", interact.StatusCancelled)), interact.CancelAction)
	tell(t, l, replying(nil, status("2", interact.StatusRunning)), interact.QueryAction)
	tell(t, l, replying(&interact.Error{Code: interact.NoTask}), interact.CancelAction, id("3"))
	tell(t, l, replying(nil, status("0", interact.StatusRunning)), interact.QueryAction) // it has ended
	tell(t, l, replying(nil, status("9", interact.StatusCompleted)), interact.QueryAction)
	var got []string
	for _, e := range l.List() {
		got = append(got, e.ActionID+" "+e.State.String())
		if e.Ended.IsZero() == e.State.Final() {
			t.Errorf("%+v", e)
		}
	}
	if want := []string{"3 pending", "2 running", "1 cancelled", "0 failed"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLedgerIsOfThisNode: messages of other nodes, and messages that start no action, are not stored.
func TestLedgerIsOfThisNode(t *testing.T) {
	t.Parallel()
	l := open(t, newDisk(), LedgerOptions{})
	tell(t, l, replying(nil, status("1", interact.StatusPending)), interact.InvokeAction, from(bob))
	tell(t, l, replying(nil, status("1", interact.StatusPending)), interact.QueryAction)
	tell(t, l, replying(nil, status("1", interact.StatusPending)), interact.ReadProperty)
	if all := l.List(); len(all) != 0 {
		t.Errorf("got %v", all)
	}
}

// The texts of a message may be parts of a long request line, which an entry does not keep in memory.
func TestLedgerKeepsNoRequests(t *testing.T) {
	t.Parallel()
	l := open(t, newDisk(), LedgerOptions{})
	line := "POST /things/urn:x:oven/actions/bake?" + strings.Repeat("x", 60<<10)
	id := strings.Repeat("1", 1<<10)[:1]
	tell(t, l, replying(nil, status(id, interact.StatusPending)), interact.InvokeAction, func(m *interact.Message) { m.Thing, m.Name = line[13:23], line[32:36] })
	e, ok := l.Get("1")
	if !ok || e.Thing != "urn:x:oven" || e.Action != "bake" {
		t.Fatalf("got %+v", e)
	}
	for name, texts := range map[string][2]string{"the Thing": {e.Thing, line[13:23]}, "the action": {e.Action, line[32:36]}, "the id": {e.ActionID, id}} {
		if unsafe.StringData(texts[0]) == unsafe.StringData(texts[1]) {
			t.Errorf("%s is a part of the request", name)
		}
	}
}

// TestLedgerIDsAreOfTheirThing: another host cannot take an entry over.
func TestLedgerIDsAreOfTheirThing(t *testing.T) {
	t.Parallel()
	l := open(t, newDisk(), LedgerOptions{})
	tell(t, l, replying(nil, status("1", interact.StatusPending)), interact.InvokeAction)
	tell(t, l, replying(nil, status("1", interact.StatusPending)), interact.InvokeAction,
		func(m *interact.Message) { m.Thing = "urn:thief" })
	if e, _ := l.Get("1"); e.Thing != "urn:oven@z6Mkx" || len(l.List()) != 1 {
		t.Errorf("got %v", l.List())
	}
}

func TestLedgerIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		l := open(t, d, LedgerOptions{Max: 10})
		for i := range 50 {
			tell(t, l, replying(nil, status(fmt.Sprint(i), interact.StatusPending)), interact.InvokeAction)
			time.Sleep(time.Second)
		}
		if all := l.List(); len(all) > 11 || all[0].ActionID != "49" || d.stored(t) > 11 {
			t.Errorf("%d entries, %d stored", len(all), d.stored(t))
		}
		l = open(t, d, LedgerOptions{Max: 3})
		if all := l.List(); len(all) != 3 || all[0].ActionID != "49" || all[2].ActionID != "47" || d.stored(t) != 3 {
			t.Errorf("%v, %d stored", all, d.stored(t))
		}
		time.Sleep(23 * time.Hour)
		if n := len(l.List()); n != 3 {
			t.Errorf("%d entries before the day is over", n)
		}
		time.Sleep(time.Hour)
		if _, ok := l.Get("49"); ok || len(l.List()) != 0 {
			t.Error("entries are older than a day")
		}
		tell(t, l, replying(nil, status("new", interact.StatusPending)), interact.InvokeAction)
		if d.stored(t) != 1 {
			t.Errorf("%d stored, want the new one", d.stored(t))
		}
		time.Sleep(25 * time.Hour)
		if open(t, d, LedgerOptions{}); d.stored(t) != 0 {
			t.Error("a restart keeps old entries")
		}
	})
}

// TestLedgerClockJumps: an entry from the future has the age 0.
func TestLedgerClockJumps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		e := Entry{ActionID: "1", Thing: "t", Action: "a", Began: time.Now().Add(365 * 24 * time.Hour), State: interact.StatusRunning}
		if err := d.Put(t.Context(), keyOf("1"), e.append(nil)); err != nil {
			t.Fatal(err)
		}
		l := open(t, d, LedgerOptions{})
		if got, ok := l.Get("1"); !ok || !got.Began.Equal(e.Began) {
			t.Errorf("got %v, %t", got, ok)
		}
		time.Sleep(24 * time.Hour)
		if _, ok := l.Get("1"); ok {
			t.Error("it stays until its year has come")
		}
	})
}

func TestLedgerOverABrokenStore(t *testing.T) {
	t.Parallel()
	d := newDisk()
	l := open(t, d, LedgerOptions{Max: 1})
	d.err = errors.New("the cable is out")
	for i := range 3 {
		r, err := interact.Call(t.Context(), interact.Chain(replying(nil, status(fmt.Sprint(i), interact.StatusPending),
			status(fmt.Sprint(i), interact.StatusCompleted)), l.Middleware()), &interact.Message{Type: interact.InvokeAction, From: who("")})
		if err != nil || r.Status != interact.StatusCompleted {
			t.Errorf("got %v, %v: a started action continues", r, err)
		}
	}
	if e, ok := l.Get("2"); !ok || e.State != interact.StatusCompleted {
		t.Errorf("got %v, %t, want it in memory at least", e, ok)
	}
	if _, err := NewLedger(d, LedgerOptions{}); !errors.Is(err, d.err) {
		t.Errorf("got %v, want the store's error", err)
	}
	d.err = nil
	for k, v := range map[string]string{"/x": "{",
		"/y":                `{"v":1,"actionID":"1","thing":"t","action":"a","began":"2026-01-02T03:04:05Z","state":"pending"}`,
		keyOf("2").String(): strings.Repeat(" ", maxEntry+1)} {
		if err := d.Put(t.Context(), ds.RawKey(k), []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	d.full = syscall.ENOSPC
	if l, err := NewLedger(d, LedgerOptions{}); err != nil || len(l.List()) != 0 {
		t.Errorf("on a full disk: %v; unreadable entries are dropped later", err)
	}
	d.full = nil
	if l = open(t, d, LedgerOptions{}); len(l.List()) != 0 || d.stored(t) != 0 {
		t.Errorf("got %v, %d stored: unreadable entries are dropped", l.List(), d.stored(t))
	}
}

func TestParseEntry(t *testing.T) {
	t.Parallel()
	good := `{"v":1,"actionID":"1","thing":"t","action":"a","began":"2026-01-02T03:04:05Z","state":"pending"}`
	if e, err := parseEntry([]byte(good)); err != nil || e.ActionID != "1" || e.State != interact.StatusPending {
		t.Errorf("got %v, %v", e, err)
	}
	for name, text := range map[string]string{
		"nothing":           "",
		"another version":   strings.Replace(good, `"v":1`, `"v":2`, 1),
		"a member more":     strings.Replace(good, `"v":1`, `"v":1,"x":2`, 1),
		"two":               good + good,
		"no id":             strings.Replace(good, `"1"`, `""`, 1),
		"a long id":         strings.Replace(good, `"1"`, `"`+strings.Repeat("1", 257)+`"`, 1),
		"a long action":     strings.Replace(good, `"a"`, `"`+strings.Repeat("1", 1025)+`"`, 1),
		"a time that is no": strings.Replace(good, "2026-01-02T", "", 1),
		"the year 0":        strings.Replace(good, "2026-01", "0000-01", 1),
	} {
		if e, err := parseEntry([]byte(text)); err == nil {
			t.Errorf("%s: got %v", name, e)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"v":1,"actionID":"1","thing":"t","action":"a","began":"2026-01-02T03:04:05Z","state":"pending"}`))
	f.Add([]byte(`{"v":1,"actionID":"é","thing":"","action":"","began":"9999-12-31T23:59:59-01:00","state":"x",` +
		`"ended":"0001-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEntry(data)
		if err != nil {
			return
		}
		again, err := parseEntry(e.append(nil))
		if err != nil {
			t.Fatalf("%+v is written as %s: %v", e, e.append(nil), err)
		}
		if !again.Began.Equal(e.Began) || !again.LastSeen.Equal(e.LastSeen) || !again.Ended.Equal(e.Ended) || again.ActionID != e.ActionID || again.Thing != e.Thing ||
			again.Action != e.Action || again.State != e.State {
			t.Errorf("%+v becomes %+v", e, again)
		}
	})
}

// TestLedgerManyAtOnce is for the race detector: at the end the store matches the memory.
func TestLedgerManyAtOnce(t *testing.T) {
	t.Parallel()
	d := newDisk()
	l := open(t, d, LedgerOptions{Max: 20})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				one := fmt.Sprint(i%4, j%10)
				tell(t, l, replying(nil, status(one, interact.StatusPending), status(one, interact.StatusCompleted)), interact.InvokeAction)
				l.List()
				l.Get(one)
			}
		})
	}
	wg.Wait()
	have := l.List()
	again := open(t, d, LedgerOptions{}).List()
	less := func(a, b Entry) int { return strings.Compare(a.ActionID, b.ActionID) }
	slices.SortFunc(have, less)
	slices.SortFunc(again, less)
	if len(have) == 0 || !slices.EqualFunc(have, again, func(a, b Entry) bool {
		return a.ActionID == b.ActionID &&
			a.State == b.State
	}) {
		t.Errorf("in memory %v, stored %v", have, again)
	}
}
