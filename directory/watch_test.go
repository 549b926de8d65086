package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

var (
	kindWords   = map[ChangeKind]string{Added: "+", Changed: "~", Removed: "-", Overflow: "missed"}
	reasonWords = map[Reason]string{Published: "published", Unreachable: "unreachable", Reachable: "reachable",
		Withdrawn: "withdrawn",
		Moved:     "moved", Expired: "expired", Left: "left"}
)

// watched returns the changes that watchers of q receive after a number, a word per change.
func watched(t *testing.T, d *Directory, q td.Query, after uint64) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the loop ends after the last change
	var words []string
	var before uint64
	for c, err := range d.Watch(ctx, q, after) {
		if err != nil {
			break
		}
		if c.Seq <= before {
			t.Errorf("%d comes after %d", c.Seq, before)
		}
		before = c.Seq
		word := kindWords[c.Kind]
		if c.Thing != nil {
			word += c.Thing.Record.Thing + ":" + reasonWords[c.Reason]
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := openDirectory(t, Options{})
		start := d.changed.last()
		put := func(desc *td.Description, change func(*td.Record)) *td.Description {
			if change != nil {
				desc = with(desc, change)
			}
			if _, err := d.put(desc, received); err != nil {
				t.Fatal(err)
			}
			return desc
		}
		host := didtest.Key(7).DID()
		a := put(plain(t, 1, "a", "Weather"), func(r *td.Record) { r.Hosts = []td.Host{{Node: host}} })
		b := put(plain(t, 1, "b", "Billing"), nil)
		put(a, func(r *td.Record) { r.Seq, r.Expires = 2, r.Expires.Add(time.Minute) }) // a refresh is not a change
		renamed := plain(t, 1, "b", "Weather too")
		put(renamed, func(r *td.Record) { r.Seq = 2 })
		d.SetReachable(host, false)
		d.SetReachable(host, false)
		d.SetReachable(host, true)
		d.SetReachable(host, true)
		put(b, func(r *td.Record) { r.Seq, r.Kind = 3, td.KindTombstone })
		put(plain(t, 2, "c", "Weather"), func(r *td.Record) { r.Seq = 1 })
		put(plain(t, 2, "c", ""), func(r *td.Record) { r.Seq, r.Kind, r.Successor = 2, td.KindMoved, "urn:elsewhere" })
		d.dropDue(time.Now().Add(2 * time.Hour))
		for _, c := range []struct {
			name string
			q    td.Query
			want string
		}{
			{"everything", td.Query{}, "+a:published +b:published ~b:published ~a:unreachable ~a:reachable -b:withdrawn +c:published " +
				"-c:moved -a:expired"},
			{"a Thing that stops to match", td.Query{Text: "billing"}, "+b:published -b:left"},
			{"a Thing that starts to match", td.Query{Text: "too", Not: []td.Query{{ID: "a"}}}, "+b:published -b:withdrawn"},
			{"one Thing", td.Query{ID: "c"}, "+c:published -c:moved"},
			{"nothing", td.Query{ID: "d"}, ""},
		} {
			if got := watched(t, d, c.q, start); got != c.want {
				t.Errorf("%s: got %s, want %s", c.name, got, c.want)
			}
		}
		if got := watched(t, d, td.Query{ID: "c"}, start+7); got != "-c:moved" {
			t.Errorf("from the middle: got %s", got)
		}
	})
}

// A watcher waits for changes, and ends with its context.
func TestWatchWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := openDirectory(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan string, 10)
		var ended error
		go func() {
			defer close(heard)
			for c, err := range d.Watch(ctx, td.Query{}, 0) {
				if ended = err; err == nil {
					heard <- c.Thing.ID
				}
			}
		}()
		for i := range 3 {
			synctest.Wait()
			if _, err := d.put(plain(t, 1, fmt.Sprint(i), "T"), 0); err != nil {
				t.Fatal(err)
			}
			if got := <-heard; got != fmt.Sprint(i) {
				t.Errorf("got %s, want %d", got, i)
			}
		}
		cancel()
		if _, more := <-heard; more || !errors.Is(ended, context.Canceled) {
			t.Errorf("it ended with %v", ended)
		}
	})
}

// Dropped changes are reported as an overflow: by number, by size, and from before a restart.
func TestWatchOverflows(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	start := d.changed.last()
	for range maxChanges + 3 {
		d.changed.add(logEntry{kind: Added, reason: Published, thing: newView(plain(t, 1, "x", "X"))})
	}
	if got := watched(t, d, td.Query{ID: "none"}, start); got != "missed" {
		t.Errorf("too many: got %q", got)
	}
	if got := watched(t, d, td.Query{ID: "none"}, 1); got != "missed" {
		t.Errorf("before a restart: got %q", got)
	}
	if got := watched(t, d, td.Query{ID: "none"}, d.changed.lost); got != "" {
		t.Errorf("recorded changes: got %q", got)
	}
	large := plain(t, 1, "large", "X")
	large.Raw = make([]byte, 1<<20)
	for range 32 {
		d.changed.add(logEntry{kind: Removed, reason: Expired, thing: newView(large)})
	}
	if d.changed.bytes > maxChangeBytes || len(d.changed.log) > 16 {
		t.Errorf("%d changes of %d bytes are recorded", len(d.changed.log), d.changed.bytes)
	}
	later := openDirectory(t, Options{})
	if later.changed.last() <= start {
		t.Error("the numbers of a later run are not higher")
	}
}

// Changes of Things outside of the directory are in one order with the others. These Things are not in the index.
func TestNotify(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	before := d.Latest()
	one, other := plain(t, 1, "urn:found", "Found"), plain(t, 1, "urn:found", "Found again")
	d.Notify(Added, Discovered, one, nil)
	if _, err := d.put(plain(t, 2, "urn:meshed", "Meshed"), received); err != nil {
		t.Fatal(err)
	}
	d.Notify(Changed, Discovered, other, one)
	d.Notify(Removed, Vanished, other, nil)
	var got []string
	for c, err := range d.Watch(t.Context(), td.Query{}, before) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %d %s", c.Kind, c.Reason, c.Thing.Title))
		if c.Kind == Removed {
			break
		}
	}
	want := []string{fmt.Sprintf("%d %d Found", Added, Discovered), fmt.Sprintf("%d %d Meshed", Added, Published),
		fmt.Sprintf("%d %d Found again", Changed, Discovered), fmt.Sprintf("%d %d Found again", Removed, Vanished)}
	if !slices.Equal(got, want) || ids(d.FindLocal(t.Context(), td.Query{})) != "urn:meshed" {
		t.Errorf("got %q, want %q; the index has %q", got, want, ids(d.FindLocal(t.Context(), td.Query{})))
	}
}

// The numbers of changes do not count the changes between them, and a mark does not tell when the last one was.
func TestNumbersOfChangesCountNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for hidden := range 3 {
			d := openDirectory(t, Options{})
			begun := uint64(time.Now().UnixMicro())
			add := func() { d.changed.add(logEntry{kind: Removed, reason: Expired, thing: newView(plain(t, 1, "x", "X"))}) }
			add()
			for range hidden {
				time.Sleep(time.Second)
				add()
			}
			time.Sleep(time.Duration(3-hidden) * time.Second)
			mark := d.Mark()
			add()
			if got := d.Latest(); mark-begun != uint64((3*time.Second).Microseconds()) || got-mark != 1 {
				t.Errorf("after %d hidden changes the mark is %d and the next number %d more", hidden, mark-begun, got-mark)
			}
		}
	})
}
