package directory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/td"
)

// shops returns agents of a warehouse.
func shops(t testing.TB) []*td.Description {
	stock := plain(t, 1, "urn:stock", "Stock Keeper", "urn:example:stock-level")
	stock.Capabilities[0].Examples = []string{"How many red shoes are left?"}
	stock.Actions = map[string]*td.Action{"checkLevels": {Affordance: td.Affordance{Description: "Counts pallets"}}}
	orders := plain(t, 2, "urn:orders", "Order Desk", "urn:example:order")
	orders.Description = "Takes orders and can check whether there is stock"
	weather := plain(t, 3, "urn:weather", "Weather", "urn:example:forecast")
	weather.Description = "Forecasts of rain, snow and water levels"
	return []*td.Description{weather, orders, stock}
}

// The Things that match most words come first, also with typos. A Thing without any of the words is not found.
func TestFindLocalRanks(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, shops(t)...)
	for question, want := range map[string]string{
		"who can check stock levels":  "urn:stock urn:orders urn:weather",
		"who can chekc stok levls":    "urn:stock urn:orders urn:weather",
		"Wer kann mir forecast sagen": "urn:weather",
		"orders":                      "urn:orders",
		"red shoes":                   "urn:stock", // an example
		"count the palets":            "urn:stock", // description of an action
		"tax":                         "",
	} {
		if got := ids(d.FindLocal(t.Context(), td.Query{Text: question})); got != want {
			t.Errorf("%q: got %q, want %q", question, got, want)
		}
	}
	if got := ids(d.FindLocal(t.Context(), td.Query{Text: "check stock levels", Limit: 1})); got != "urn:stock" {
		t.Errorf("the first: got %q", got)
	}
	or := td.Query{Text: "rain", Or: []td.Query{{ID: "urn:stock"}, {Text: "desk", Version: "^1"}}, Not: []td.Query{{Text: "snow"}}}
	if got := ids(d.FindLocal(t.Context(), or)); got != "urn:stock" {
		t.Errorf("alternatives: got %q", got)
	}
	or.Not = nil
	if got := ids(d.FindLocal(t.Context(), or)); got != "urn:stock urn:weather" {
		t.Errorf("alternatives: got %q", got)
	}
}

// Rank has the order of FindLocal, and its factors add up to the score.
func TestRank(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, shops(t)...)
	for _, question := range []string{"who can check stock levels", "rain orders", "stock"} {
		q := td.Query{Text: question}
		all := d.Rank(t.Context(), q, shops(t))
		var order []string
		for _, r := range all {
			sum, fits := 0.0, false
			for i, f := range r.Factors {
				sum += f.Amount
				fits = fits || f.Signal == SignalWord
				if i > 0 && f.Amount > r.Factors[i-1].Amount {
					t.Errorf("%s: the factors are not in order", r.ID)
				}
			}
			if math.Abs(sum-r.Score) > 1e-9 || r.Score < 0 || r.Score > 1 {
				t.Errorf("%s: the factors give %v, the score is %v", r.ID, sum, r.Score)
			}
			if fits {
				order = append(order, r.ID)
			}
		}
		if got, want := strings.Join(order, " "), ids(d.FindLocal(t.Context(), q)); got != want {
			t.Errorf("%q: got %q, FindLocal gives %q", question, got, want)
		}
	}
	first := d.Rank(t.Context(), td.Query{Text: "chekc stock"}, shops(t))[0]
	got := ""
	for _, f := range first.Factors[:2] {
		got += fmt.Sprintf("%s: %s is %s of its %s; ", f.Signal, f.Asked, f.Found, f.Field)
	}
	if want := "word: stock is stock of its title; word: chekc is check of its action; "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	all := d.Rank(t.Context(), td.Query{Type: "agent"}, shops(t))
	if all[0].Factors[0] != (Factor{Signal: SignalQuery, Amount: shareFit}) {
		t.Errorf("without words: got %+v", all[0].Factors)
	}
}

// Equal matches are ordered by trust, reachability, latency and freshness, and then by owner and id.
func TestRankSignals(t *testing.T) {
	t.Parallel()
	self, near, far, dead := didtest.Key(10).DID(), didtest.Key(11).DID(), didtest.Key(12).DID(), didtest.Key(13).DID()
	on := func(n byte, id string, life time.Duration, host did.DID) *td.Description {
		return with(plain(t, n, id, "Twin"), func(r *td.Record) {
			r.Expires = r.Expires.Add(life)
			r.Hosts = []td.Host{{Node: host}}
		})
	}
	for _, c := range []struct {
		name          string
		better, worse *td.Description
	}{
		{"here", on(1, "b", 0, self), on(1, "a", 0, near)},
		{"near", on(1, "b", 0, near), on(1, "a", 0, far)},
		{"unknown latency", on(1, "b", 0, didtest.Key(14).DID()), on(1, "a", 0, far)},
		{"reachable", on(1, "b", 0, far), on(1, "a", 0, dead)},
		{"trusted", on(2, "b", 0, near), on(1, "a", 0, near)},
		{"by id", on(1, "a", 0, near), on(1, "b", 0, near)},
		{"fresh", with(on(1, "b", 0, near), func(*td.Record) {}),
			with(on(1, "a", 0, near), func(r *td.Record) { r.Issued = r.Issued.Add(-9 * time.Hour) })},
	} {
		d := filled(t, Options{Self: self,
			Trust: func(owner did.DID) (float64, string) {
				return map[did.DID]float64{didtest.Key(1).DID(): 0.5, didtest.Key(2).DID(): 7}[owner], "a friend"
			},
			Latency: func(node did.DID) time.Duration { return map[did.DID]time.Duration{near: 5e6, far: 3e8}[node] },
		}, c.better, c.worse)
		d.SetReachable(dead, false)
		if got, want := ids(d.FindLocal(t.Context(), td.Query{Text: "twin"})), c.better.ID+" "+c.worse.ID; got != want {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
		if all := d.Rank(t.Context(), td.Query{Text: "twin"}, []*td.Description{c.worse, c.better}); all[0].Description != c.better {
			t.Errorf("%s: Rank gives %s first", c.name, all[0].ID)
		} else if i := slices.IndexFunc(all[0].Factors, func(f Factor) bool { return f.Signal == SignalTrust }); all[0].Factors[i].Found != "a friend" {
			t.Errorf("%s: no reason for the trust in the owner: %+v", c.name, all[0].Factors[i])
		}
	}
}

// Of many matches with equal words the best come first, and the result reports that there are more.
func TestRankedIsTruncated(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{})
	for i := range 500 {
		desc := plain(t, byte(i%5), fmt.Sprintf("urn:%03d", i), "Agent")
		desc.Description = "weather"
		if i == 321 {
			desc.Capabilities = []td.Capability{{ID: "weather", Version: "2.0.0"}}
		}
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []td.Query{{Text: "weather", Limit: 3}, {Text: "weather", Version: "^2"}} {
		q.Counter = &td.CoverageCounter{}
		got := strings.Fields(ids(d.FindLocal(t.Context(), q)))
		if got[0] != "urn:321" || len(got) != map[int]int{3: 3, 0: 1}[q.Limit] || q.Counter.Coverage().More != (q.Limit == 3) || !q.Counter.Coverage().Complete() {
			t.Errorf("got %v, %+v", got, q.Counter.Coverage())
		}
	}
}

// Other nodes get the best matches by words alone, without the signals of this node, and truncated if there are more.
func TestHostedReturnsTheBest(t *testing.T) {
	t.Parallel()
	o := &topicEmbedder{}
	d := filled(t, Options{Embedder: o, Trust: func(owner did.DID) (float64, string) {
		return map[did.DID]float64{didtest.Key(1).DID(): 1}[owner], ""
	}})
	for i := range 50 {
		desc := plain(t, byte(1+i%2), fmt.Sprintf("urn:%02d", i), "Agent")
		if desc.Description = "weather"; i == 33 || i == 34 {
			desc.Title = "Weather"
		}
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		q    td.Query
		want string
		cut  bool
	}{
		{td.Query{Text: "weather", Limit: 2}, "urn:33 urn:34", true},
		{td.Query{Text: "title", Or: []td.Query{{Text: "weather", Owner: didtest.Key(2).DID()}}, Limit: 1}, "urn:33", true},
		{td.Query{Text: "weather", ID: "urn:07"}, "urn:07", false},
		{td.Query{ID: "urn:07"}, "urn:07", false},
	} {
		c.q.Counter = &td.CoverageCounter{}
		got := map[string]bool{}
		for _, s := range d.Known(t.Context(), c.q) {
			got[string(s.Record)] = true // plain descriptions: the id
		}
		if s := strings.Join(slices.Sorted(maps.Keys(got)), " "); s != c.want || c.q.Counter.Coverage().Truncated != c.cut {
			t.Errorf("%+v: got %s, cut %v", c.q, s, c.q.Counter.Coverage().Truncated)
		}
	}
	if len(o.calls) > 0 {
		t.Errorf("the embedder was used for others: %q", o.calls)
	}
}

// An oracle is an embedder with a direction for each of a few words.
type topicEmbedder struct {
	mu    sync.Mutex
	calls []string
	fails error
	slow  time.Duration
}

func (o *topicEmbedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, texts...)
	if o.slow > 0 {
		o.mu.Unlock()
		defer o.mu.Lock()
		if !sleep(ctx, o.slow) {
			return nil, ctx.Err()
		}
	}
	if o.fails != nil {
		return nil, o.fails
	}
	var all [][]float32
	for _, text := range texts {
		v := []float32{0.01, 0, 0}
		for i, about := range []string{"stock inventory left", "order bill buy", "weather rain sky"} {
			for word := range strings.FieldsSeq(about) {
				v[i] += float32(strings.Count(strings.ToLower(text), word))
			}
		}
		all = append(all, v)
	}
	return all, nil
}

// requests returns the number of requests with a text.
func (o *topicEmbedder) requests(text string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, call := range o.calls {
		if call == text {
			n++
		}
	}
	return n
}

// With an embedder Things are found by semantic similarity; after a failure by words, with the reason.
func TestSemanticMatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &topicEmbedder{}
		d := filled(t, Options{Embedder: o}, shops(t)...)
		q := td.Query{Text: "inventory"}
		if got := ids(d.FindLocal(t.Context(), q)); got != "" {
			t.Errorf("before the vectors are computed: got %q", got)
		}
		run(t, d)
		synctest.Wait()
		if got := ids(d.FindLocal(t.Context(), q)); got != "urn:stock" {
			t.Errorf("by similarity: got %q", got)
		}
		best := d.Rank(t.Context(), q, shops(t))[0]
		if f := best.Factors[0]; best.ID != "urn:stock" || f.Signal != SignalMeaning || f.Amount < 0.79 || best.Fallback != "" {
			t.Errorf("got %s, %+v", best.ID, best)
		}
		if n := o.requests("inventory"); n != 1 {
			t.Errorf("the query was embedded %d times", n)
		}
		if got := ids(d.FindLocal(t.Context(), td.Query{Text: "inventory", Owner: didtest.Key(3).DID()})); got != "urn:weather" {
			t.Errorf("the nearest of an owner: got %q", got)
		}
		// A refresh needs no new vector, nor does the same TD of another owner.
		before := len(o.calls)
		again := with(shops(t)[2], func(r *td.Record) { r.Seq, r.Expires = 2, r.Expires.Add(time.Minute) })
		if _, err := d.put(again, received); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if d.vectorOf(again.Record.Hash) == nil || len(o.calls) != before {
			t.Error("a refresh was embedded")
		}

		o.fails = errors.New("out of service")
		sky := td.Query{Text: "snow levels"}
		if got := ids(d.FindLocal(t.Context(), sky)); got != "urn:weather urn:stock" {
			t.Errorf("by words: got %q", got)
		}
		r := d.Rank(t.Context(), sky, shops(t))[0]
		if r.Factors[0].Signal != SignalWord || !strings.Contains(r.Fallback, "out of service") || o.requests("snow levels") != 1 {
			t.Errorf("got %+v, asked %d times", r, o.requests("snow levels"))
		}
		time.Sleep(embedding.RetryAfter)
		o.fails, o.slow = nil, time.Minute
		start := time.Now()
		if got := ids(d.FindLocal(t.Context(), sky)); got != "urn:weather urn:stock" || time.Since(start) != embedding.QueryTimeout {
			t.Errorf("a slow endpoint: got %q after %v", got, time.Since(start))
		}
		time.Sleep(embedding.RetryAfter)
		o.slow = 0
		fresh := plain(t, 5, "urn:late", "Inventory of snow")
		o.fails = errors.New("not now")
		if _, err := d.put(fresh, received); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		o.fails = nil
		r = d.Rank(t.Context(), td.Query{Text: "inventory"}, []*td.Description{fresh})[0]
		if r.Fallback != "its vector is not computed yet" {
			t.Errorf("without a vector: got %+v", r)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d.vectorOf(fresh.Record.Hash) == nil {
			t.Error("a failed request was not repeated")
		}
	})
}
