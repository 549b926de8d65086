package directory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

func TestGet(t *testing.T) {
	t.Parallel()
	one, two := didtest.Key(1).DID(), didtest.Key(2).DID()
	descs := []*td.Description{
		plain(t, 1, "urn:example:weather", "Weather Agent"),
		plain(t, 1, "urn:example:billing", "Accounts"),
		plain(t, 2, "urn:other:weather", "Rain"),
		plain(t, 2, "urn:example:same", "Same"),
		plain(t, 1, "urn:example:same", "Same"),
		plain(t, 2, "urn:lmos:"+string(two)+":clock", "Clock"),
		plain(t, 3, string(didtest.Key(3).DID()), "Agent with its own DID"),
		plain(t, 4, "urn:only", "The only one"),
		plain(t, 2, "urn:signs", "!!!"),
	}
	for _, c := range []struct {
		name, ref string
		want      string // id, or else
		code      interact.Code
		parts     []string
	}{
		{"id", "urn:example:weather", "urn:example:weather", 0, nil},
		{"id and owner", "urn:example:same@" + two.Multibase(), "urn:example:same", 0, nil},
		{"id and a prefix of the owner", "urn:example:weather@" + one.Multibase()[:9], "urn:example:weather", 0, nil},
		{"id and owner's DID", "urn:example:same@" + string(one), "urn:example:same", 0, nil},
		{"id that contains its owner", "urn:lmos:" + string(two) + ":clock", "urn:lmos:" + string(two) + ":clock", 0, nil},
		{"did of an agent", string(didtest.Key(3).DID()), string(didtest.Key(3).DID()), 0, nil},
		{"did of an owner of one thing", string(didtest.Key(4).DID()), "urn:only", 0, nil},
		{"title", "Weather Agent", "urn:example:weather", 0, nil},
		{"slug", "weather-agent", "urn:example:weather", 0, nil},
		{"last part of an id", "billing", "urn:example:billing", 0, nil},
		{"name and owner", "weather@" + two.Multibase()[:12], "urn:other:weather", 0, nil},
		{"title without letters", "!!!", "urn:signs", 0, nil},
		{"prefix of the owner's key", didtest.Key(4).DID().Multibase()[:16], "urn:only", 0, nil},
		{"prefix of the owner's key in its short form", didtest.Key(4).DID().Short(), "urn:only", 0, nil},
		{"id of two owners", "urn:example:same", "", interact.Ambiguous,
			[]string{"2 agents", "urn:example:same@" + one.Multibase(), "urn:example:same@" + two.Multibase()}},
		{"name of two Things", "weather", "", interact.Ambiguous, []string{"urn:example:weather@", "urn:other:weather@"}},
		{"did of an owner of several Things", string(one), "", interact.Ambiguous, []string{"3 agents"}},
		{"a typo", "wether-agent", "", interact.NotFound, []string{"{show [weather-agent]}"}},
		{"no similar name", "xylophone", "", interact.NotFound, []string{"no agent matches \"xylophone\"", "{find []}"}},
		{"other owner", "billing@" + two.Multibase(), "", interact.NotFound, nil},
		{"unknown id", "urn:example:nothing", "", interact.NotFound, nil},
		{"empty", "", "", interact.NotFound, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := filled(t, Options{}, descs...)
			got, err := d.Get(t.Context(), c.ref)
			if c.want == "" {
				wantCode(t, err, c.code, c.parts...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Record.Thing != c.want {
				t.Errorf("got %s, want %s", got.Record.Thing, c.want)
			}
		})
	}
}

func TestAmbiguousListsEight(t *testing.T) {
	t.Parallel()
	var descs []*td.Description
	for i := range 12 {
		descs = append(descs, plain(t, byte(i+1), "urn:same", "Same"))
	}
	_, err := filled(t, Options{}, descs...).Get(t.Context(), "same")
	wantCode(t, err, interact.Ambiguous, "12 agents")
	if n := strings.Count(fmt.Sprint(interact.AsError(err).Next), "urn:same@"); n != 8 {
		t.Errorf("got %d candidates, want 8", n)
	}
}

// A source of functions; a nil function finds nothing.
type source struct {
	get  func(ctx context.Context, owner did.DID, thing string) (*td.Signed, error)
	find func(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error]
}

func (s source) Get(ctx context.Context, owner did.DID, thing string) (*td.Signed, error) {
	if s.get == nil {
		return nil, did.ErrNotFound
	}
	return s.get(ctx, owner, thing)
}

func (s source) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error] {
	if s.find == nil {
		return func(func(*td.Signed, error) bool) {}
	}
	return s.find(ctx, q)
}

// sourceOf returns a source with the same results for each query.
func sourceOf(signed ...*td.Signed) source {
	return source{
		get: func(_ context.Context, owner did.DID, thing string) (*td.Signed, error) {
			for _, s := range signed {
				r, err := td.NewVerifier(did.Keys()).Record(s.Record, time.Now())
				if err == nil && r.Owner == owner && r.Thing == thing {
					return s, nil
				}
			}
			return nil, did.ErrNotFound
		},
		find: func(_ context.Context, q td.Query) iter.Seq2[*td.Signed, error] {
			return func(yield func(*td.Signed, error) bool) {
				q.Counter.CountAsked(1)
				q.Counter.CountAnswer()
				for _, s := range signed {
					if !yield(s, nil) {
						return
					}
				}
			}
		},
	}
}

// blockingSource returns a source that blocks until ctx ends.
func blockingSource() source {
	return source{
		get: func(ctx context.Context, _ did.DID, _ string) (*td.Signed, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		find: func(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error] {
			return func(yield func(*td.Signed, error) bool) {
				q.Counter.CountAsked(1)
				<-ctx.Done()
				yield(nil, ctx.Err())
			}
		},
	}
}

func TestGetQueriesSourcesForFullIDs(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	old, now := a.signed(t, 1), a.signed(t, 2)
	for _, ref := range []string{a.id, a.id + "@" + a.key.DID().Multibase(), a.id + "@" + string(a.key.DID()),
		a.id + "@" + a.key.DID().Multibase()[:10]} {
		d := openDirectory(t, Options{Sources: []Source{sourceOf(old), sourceOf(now), source{}}})
		got, err := d.Get(t.Context(), ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if got.Record.Seq != 2 {
			t.Errorf("%s: got seq %d, want the newest", ref, got.Record.Seq)
		}
		if _, known := d.Len(); known != 1 {
			t.Errorf("%s: it was not added", ref)
		}
	}
	d := openDirectory(t, Options{Sources: []Source{sourceOf(now)}})
	_, err := d.Get(t.Context(), "weather-agent")
	wantCode(t, err, interact.NotFound)
}

func TestGetFromAFullIndex(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	d := filled(t, Options{Max: 1, Sources: []Source{sourceOf(a.signed(t, 1))}}, plain(t, 5, "urn:first", ""))
	for _, ref := range []string{a.id, a.id + "@" + a.key.DID().Multibase()} {
		got, err := d.Get(t.Context(), ref)
		if err != nil || got.ID != a.id {
			t.Errorf("got %v, %v", got, err)
		}
	}
}

func TestGetVerifiesResults(t *testing.T) {
	t.Parallel()
	a, other := weather(t, 1), weather(t, 2)
	tampered := a.signed(t, 1)
	tampered.Record[len(tampered.Record)-1] ^= 1
	lies := source{get: func(context.Context, did.DID, string) (*td.Signed, error) { return other.signed(t, 5), nil }}
	broken := source{get: func(context.Context, did.DID, string) (*td.Signed, error) { return tampered, nil }}
	down := source{get: func(context.Context, did.DID, string) (*td.Signed, error) { return nil, errors.New("no route") }}
	d := openDirectory(t, Options{Sources: []Source{lies, broken, down}})
	_, err := d.Get(t.Context(), a.id+"@"+a.key.DID().Multibase())
	wantCode(t, err, interact.NotFound, "no route")
	if n := d.Stats().Invalid; n != 1 {
		t.Errorf("got %d invalid, want 1", n)
	}
}

func TestGetAddsATombstone(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	d := openDirectory(t, Options{Sources: []Source{sourceOf(a.signed(t, 1)), sourceOf(a.tombstone(t, 2))}})
	_, err := d.Get(t.Context(), a.id+"@"+a.key.DID().Multibase())
	wantCode(t, err, interact.Withdrawn)
}

// A tombstone of another owner with the same id has no effect.
func TestTombstoneOfAnotherOwner(t *testing.T) {
	t.Parallel()
	a, impostor := weather(t, 1), weather(t, 2)
	d := openDirectory(t, Options{Sources: []Source{sourceOf(a.signed(t, 1))}})
	if _, err := d.put(described(t, impostor.tombstone(t, 1)), received); err != nil {
		t.Fatal(err)
	}
	got, err := d.Get(t.Context(), a.id)
	if err != nil || got.Record.Owner != a.key.DID() {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestGetEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := openDirectory(t, Options{Sources: []Source{blockingSource()}})
		for _, ref := range []string{"urn:x", "urn:x@" + didtest.Key(1).DID().Multibase()} {
			start := time.Now()
			_, err := d.Get(t.Context(), ref)
			wantCode(t, err, interact.NotFound)
			if took := time.Since(start); took != 2*time.Second {
				t.Errorf("took %v, want the timeout", took)
			}
			if errors.Unwrap(err) == nil {
				t.Errorf("%v does not report an incomplete result", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := d.Get(ctx, ref); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the caller's deadline", err)
			}
			cancel()
		}
	})
}

func TestLocate(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	bound := 0
	d := openDirectory(t, Options{Bind: func(desc *td.Description) interact.Thing {
		bound++
		return interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) {
			return &interact.Message{Name: fmt.Sprint(desc.Record.Seq)}, nil
		})
	}})
	for seq := uint64(1); seq <= 2; seq++ {
		if _, err := d.Add(described(t, a.signed(t, seq))); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			thing, err := d.Locate(t.Context(), "weather")
			if err != nil {
				t.Fatal(err)
			}
			m, err := interact.Call(t.Context(), thing, &interact.Message{})
			if err != nil || m.Name != fmt.Sprint(seq) {
				t.Errorf("got %v, %v", m, err)
			}
		}
	}
	if bound != 2 {
		t.Errorf("bound %d times, want once per description", bound)
	}
	_, err := d.Locate(t.Context(), "nothing")
	wantCode(t, err, interact.NotFound)
}

func TestLocateWithoutABinding(t *testing.T) {
	t.Parallel()
	for _, bind := range []func(*td.Description) interact.Thing{nil, func(*td.Description) interact.Thing { return nil }} {
		d := filled(t, Options{Bind: bind}, plain(t, 1, "urn:1", "One"))
		_, err := d.Locate(t.Context(), "one")
		wantCode(t, err, interact.Unreachable, "urn:1")
	}
}

func TestSimilarName(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, plain(t, 1, "urn:x:1", "Weather Agent"), plain(t, 1, "urn:x:2", "Billing"),
		plain(t, 1, "urn:x:3", "Feather"))
	for _, c := range []struct{ name, ref, want string }{
		{"letter missing", "wether", "weather-agent"},
		{"letters swapped", "billign", "billing"},
		{"additional letter", "feathers", "feather"},
		{"other case", "BILING", "billing"},
		{"not similar", "wxyzher", ""},
		{"too short", "ab", ""},
		{"too long", strings.Repeat("weather", 20), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := d.index.SimilarName(c.ref, nil); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "a", 0}, {"a", "b", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3}, {"abc", "", 3},
		{"abcdef", "uvwxyz", 4},
	} {
		if got := textmatch.Distance([]rune(c.a), []rune(c.b), 3); got != c.want {
			t.Errorf("%q to %q: got %d, want %d", c.a, c.b, got, c.want)
		}
		if got := textmatch.Distance([]rune(c.b), []rune(c.a), 3); got != c.want {
			t.Errorf("%q to %q: got %d, want %d", c.b, c.a, got, c.want)
		}
	}
}
