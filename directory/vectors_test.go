package directory

import (
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/td"
)

// A named oracle has a model name.
type namedEmbedder struct {
	topicEmbedder
	model string
}

func (n *namedEmbedder) Model() string { return n.model }

// After a restart stored vectors of the same model and text are used. Vectors are deleted with their Things.
func TestVectorsAreStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		a, b := weather(t, 1), numbered(t, 2, 2)
		first := a.signed(t, 1)
		refreshed, err := td.Renew(described(t, first), a.key, td.Lease{Seq: 2, Now: time.Now(), Lifetime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		put := func(d *Directory, s *td.Signed) {
			t.Helper()
			if _, err := d.put(described(t, s), received); err != nil {
				t.Fatal(err)
			}
		}
		asks := func(e embedding.Embedder, o *topicEmbedder, change func(d *Directory)) int {
			t.Helper()
			before := len(o.calls)
			d := openDirectory(t, Options{Store: store, Embedder: e})
			stop := run(t, d)
			change(d)
			time.Sleep(2 * persist.SaveEvery)
			synctest.Wait()
			stop()
			for desc := range d.FindLocal(t.Context(), td.Query{}) {
				if d.vectorOf(desc.Record.Hash) == nil {
					t.Errorf("%s has no vector", desc.ID)
				}
			}
			return len(o.calls) - before
		}
		one, other, silent := &namedEmbedder{model: "one"}, &namedEmbedder{model: "other"}, &topicEmbedder{}
		changed := a
		changed.title = "Weather and tides"
		for _, step := range []struct {
			name   string
			e      embedding.Embedder
			o      *topicEmbedder
			change func(d *Directory)
			want   int
		}{
			{"at first all are requested", one, &one.topicEmbedder, func(d *Directory) { put(d, first); put(d, b.signed(t, 1)) }, 2},
			{"after a restart none", one, &one.topicEmbedder, func(*Directory) {}, 0},
			{"none for a refresh", one, &one.topicEmbedder, func(d *Directory) { put(d, refreshed) }, 0},
			{"a changed TD", one, &one.topicEmbedder, func(d *Directory) { put(d, changed.signed(t, 3)) }, 1},
			{"all of another model", other, &other.topicEmbedder, func(*Directory) {}, 2},
			{"all of the first model again", one, &one.topicEmbedder, func(*Directory) {}, 2},
			{"all of a model without a name", silent, silent, func(*Directory) {}, 2},
			{"none are replaced", one, &one.topicEmbedder, func(d *Directory) { put(d, b.tombstone(t, 4)) }, 0},
		} {
			if got := asks(step.e, step.o, step.change); got != step.want {
				t.Errorf("%s: %d texts were requested, want %d", step.name, got, step.want)
			}
		}
		keys := stored(t, store, persist.Vectors)
		if len(keys) != 1 {
			t.Fatalf("%d vectors in the store, want that of the living Thing", len(keys))
		}
		for _, raw := range []string{"\xa0", "no CBOR"} { // an empty map
			if err := store.Put(t.Context(), ds.RawKey(keys[0]), []byte(raw)); err != nil {
				t.Fatal(err)
			}
			if got := asks(one, &one.topicEmbedder, func(*Directory) {}); got != 1 {
				t.Errorf("%q in the store: %d texts were requested, want 1", raw, got)
			}
		}
	})
}
