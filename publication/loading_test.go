package publication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// stored returns the next process of a node with a number of stored Things, "urn:x:0" and so on, and the Things that Open leaves to Run.
func stored(t *testing.T, things int, publish func(f *fixture, i int)) (next *fixture, left func() []string) {
	t.Helper()
	f := newFixture(t)
	f.withRules()
	for i := range things {
		publish(f, i)
	}
	next = fixtureOver(t, f.o.Signer.(*keystore.Key), f.disk.Batching)
	return next, func() (ids []string) {
		for i := range things {
			if id := fmt.Sprint("urn:x:", i); next.Index.known(id) == nil {
				ids = append(ids, id)
			}
		}
		return ids
	}
}

func publishTool(f *fixture, i int) { f.publish(fmt.Sprint("Tool ", i), fmt.Sprint("urn:x:", i)) }

// Until all Things are loaded, those that are asked for are loaded at once, what names no id waits, and changes are as if all were loaded.
func TestOpen(t *testing.T) {
	t.Parallel()
	const things = firstEntries + 40
	d, left := stored(t, things, publishTool)
	if err := d.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest := left()
	if len(rest) != things-firstEntries || !d.IsLoading() {
		t.Fatalf("%d of %d Things are left, loading %v; want %d", len(rest), things, d.IsLoading(), things-firstEntries)
	}
	for _, find := range []func(id string) bool{
		func(id string) bool { return d.Get(id) != nil && d.dir.has(id) },
		func(id string) bool { _, err := d.Locate(t.Context(), id); return err == nil },
		func(id string) bool {
			_, err := d.Locate(t.Context(), td.ExactRef(id, d.o.Signer.DID()))
			return err == nil
		},
		func(id string) bool { return len(d.Hosted(t.Context(), td.Query{ID: id})) == 1 },
		func(id string) bool { return d.Await(t.Context(), td.ParseRef(id)) == nil && d.Index.known(id) != nil },
		func(id string) bool {
			_, err := d.renew(t.Context(), id)
			return err == nil && d.Index.known(id) != nil
		},
	} {
		if id := left()[0]; !find(id) {
			t.Errorf("%s is not found before its turn", id)
		}
	}
	if _, err := d.Locate(t.Context(), "urn:x:unknown"); codeOf(err) != interact.NotFound {
		t.Errorf("an unknown id: %v", err)
	}

	name := fmt.Sprint("tool-", strings.TrimPrefix(left()[2], "urn:x:"))
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Locate(short, name); !errors.Is(err, context.Canceled) {
		t.Errorf("a name, for a caller who leaves: %v", err)
	}
	for what, found := range map[string]int{"all": len(d.Hosted(short, td.Query{})), "restricted": len(d.Restricted(short))} {
		if found != 0 {
			t.Errorf("%s for a caller who leaves: %d Things; part of them must not be taken for all", what, found)
		}
	}
	named := make(chan error, 1)
	go func() { _, err := d.Locate(t.Context(), name); named <- err }()

	gone, again := left()[0], left()[1]
	was := d.publish("Again", again)
	if tombstone := d.withdraw(gone); tombstone.Signed == nil || tombstone.Description != nil {
		t.Errorf("the withdrawal of a Thing that was not loaded: %+v", tombstone)
	}
	if err := d.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-named; err != nil {
		t.Errorf("a name: %v", err)
	}
	if n := d.Count(t.Context()); n != things-1 || d.IsLoading() || len(left()) > 0 {
		t.Errorf("%d Things are offered, loading %v, left %v; want %d", n, d.IsLoading(), left(), things-1)
	}
	if d.Get(again) != was || d.Get(gone).Description != nil {
		t.Error("the rest has replaced changes that were made before")
	}
	if d.Open(t.Context()) != nil || d.Load(t.Context()) != nil || d.Get(again) != was {
		t.Error("what is loaded is loaded again")
	}
}

// The rules have the callers of a Thing before it is in the index.
func TestOpenGrants(t *testing.T) {
	t.Parallel()
	const things = firstEntries + 20
	d, left := stored(t, things, func(f *fixture, i int) {
		if _, err := f.Publisher.publish(WithCallers(t.Context(), []string{"anyone"}), tool(fmt.Sprint("Tool ", i), fmt.Sprint("urn:x:", i)), nil, Registration{}); err != nil {
			t.Fatal(err)
		}
	})
	r := d.withRules()
	missing := func(id string) bool {
		return !slices.ContainsFunc(r.rules(), func(rule string) bool { return strings.Contains(rule, id) })
	}
	d.dir.onAdd = func(id string) {
		if missing(id) {
			t.Errorf("%s is published before its callers are in the rules: %q", id, r.rules())
		}
	}
	if err := d.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id := left()[0]; d.Get(id) == nil || missing(id) {
		t.Errorf("%s is not loaded, or its callers are not in the rules: %q", id, r.rules())
	}
	if err := d.Load(t.Context()); err != nil || len(left()) > 0 || len(r.rules()) != things {
		t.Errorf("%d rules, left %v, %v; want %d rules", len(r.rules()), left(), err, things)
	}
}

// A damaged entry is an error, also behind the first ones.
func TestOpenDamaged(t *testing.T) {
	t.Parallel()
	d, left := stored(t, firstEntries+1, publishTool)
	if err := d.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := left()[0]
	if err := d.disk.Put(t.Context(), ds.RawKey(d.storeKey(id).String()), []byte("{")); err != nil {
		t.Fatal(err)
	}
	if d.Get(id) != nil {
		t.Error("the damaged entry is published")
	}
	if err := d.Load(t.Context()); codeOf(err) != interact.StoreCorrupt {
		t.Errorf("got %v, want StoreCorrupt", err)
	}
}

// A newer record that the directory gets while a Thing is loaded, or before, does not end the node.
func TestOpenBehindTheDirectory(t *testing.T) {
	t.Parallel()
	d, _ := stored(t, 2, publishTool)
	d.dir.denyBy(func() error { return interact.Errorf(interact.RolledBack, "", "a newer record is known") })
	if err := d.Open(t.Context()); err != nil || !d.Offers("urn:x:0") {
		t.Errorf("got %v", err)
	}
}

// A load that fails ends all that wait for it.
func TestOpenEndsWaiters(t *testing.T) {
	t.Parallel()
	d, left := stored(t, firstEntries+1, publishTool)
	if err := d.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.disk.Put(t.Context(), ds.RawKey(d.storeKey(left()[0]).String()), []byte("{")); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- d.AwaitLoad(context.Background()) }()
	if err := d.Load(t.Context()); codeOf(err) != interact.StoreCorrupt {
		t.Errorf("got %v, want StoreCorrupt", err)
	}
	if err := <-waited; codeOf(err) != interact.StoreCorrupt {
		t.Errorf("who waited got %v, want StoreCorrupt", err)
	}
	if _, err := d.Publish(t.Context(), tool("New", left()[0]), nil, Registration{}); codeOf(err) != interact.StoreCorrupt {
		t.Errorf("a change of the damaged one: %v, want StoreCorrupt, because its callers and its registration are not known", err)
	}
}

// A load that is broken off is not complete.
func TestOpenBrokenOff(t *testing.T) {
	t.Parallel()
	d, left := stored(t, firstEntries+1, publishTool)
	if err := d.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Load(ended); !errors.Is(err, context.Canceled) || !d.IsLoading() {
		t.Errorf("got %v, loading %v", err, d.IsLoading())
	}
	if id := left()[0]; d.Get(id) == nil {
		t.Errorf("%s is not loaded any more when it is asked for", id)
	}
}
