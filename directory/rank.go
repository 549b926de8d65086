package directory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// A Signal is a ranking signal.
type Signal string

// The signals. Their maximum amounts are the shares below; the amounts of a Thing add up to its score.
const (
	SignalWord      Signal = "word"      // a word of the query matches one of the Thing
	SignalMeaning   Signal = "meaning"   // semantic similarity, by Options.Embedder
	SignalQuery     Signal = "query"     // it matches a query without words
	SignalTrust     Signal = "trust"     // Options.Trust of its owner
	SignalReach     Signal = "reach"     // reachability
	SignalLatency   Signal = "latency"   // latency of its nearest host
	SignalFreshness Signal = "freshness" // remaining lease
)

// Maximum amounts of the signals: the text match dominates, the others order Things that match about equally.
const (
	shareFit       = 0.80
	shareTrust     = 0.07
	shareReach     = 0.07
	shareLatency   = 0.03
	shareFreshness = 0.03
)

// A Factor is a part of a score with its origin.
type Factor struct {
	Signal Signal
	Amount float64
	Asked  string   // SignalWord: the query word
	Found  string   // SignalWord: the word of the Thing; SignalTrust: the reason; others: empty
	Field  td.Field // SignalWord: the field with the highest weight that has it
}

// Ranked is a description with its score and the factors of the score.
type Ranked struct {
	*td.Description
	Score   float64  // 0 to 1
	Factors []Factor // largest first; they add up to Score
	// Fallback is the reason for a lexical match in spite of an Options.Embedder; otherwise it is empty.
	Fallback string
}

// Rank orders descriptions by relevance to q, best first, with the factors. Most of the score is for the words of q.Text (rare words and
// words in important fields count more), or for semantic similarity if there is an Options.Embedder, which has a time limit of 1 s; the
// rest is for trust, reachability, latency and freshness. Without a text all match equally. Scores that are equal to four digits are
// ordered by owner, then id. The descriptions need not be in the directory.
func (d *Directory) Rank(ctx context.Context, q td.Query, descs []*td.Description) []Ranked {
	all := make([]Ranked, len(descs))
	r := d.ranker(ctx, &q)
	for i, desc := range descs {
		all[i] = r.explain(desc)
	}
	slices.SortStableFunc(all, func(a, b Ranked) int {
		return cmp.Or(index.Grade(b.Score)-index.Grade(a.Score), compareOwners(a.Record, b.Record))
	})
	return all
}

func compareOwners(a, b *td.Record) int {
	return cmp.Or(strings.Compare(string(a.Owner), string(b.Owner)), strings.Compare(a.Thing, b.Thing))
}

// A ranker ranks for one query.
type ranker struct {
	d           *Directory
	now         time.Time
	branches    [][]index.SearchWord // of each alternative; an empty one matches fully
	queryVector *embedding.Vector    // nil: lexical match
	fallback    string
}

// signalRanker returns a ranker without branches.
func (d *Directory) signalRanker(ctx context.Context, q *td.Query) *ranker {
	r := &ranker{d: d, now: time.Now()}
	if q.Text != "" && len(q.Or) == 0 {
		r.queryVector, r.fallback = d.embeddings.Query(ctx, q.Text)
	}
	return r
}

func (d *Directory) ranker(ctx context.Context, q *td.Query) *ranker {
	r := d.signalRanker(ctx, q)
	d.mu.RLock()
	defer d.mu.RUnlock()
	for one := range q.Branches() {
		r.branches = append(r.branches, d.index.Lookup(textmatch.Content(one.Text)))
	}
	return r
}

// explain scores one description.
func (r *ranker) explain(desc *td.Description) Ranked {
	out := Ranked{Description: desc, Fallback: r.fallback, Factors: r.signals(desc.Record)}
	if fit, ok := r.similarity(desc); ok {
		out.Factors = append(out.Factors, Factor{Signal: SignalMeaning, Amount: shareFit * fit})
	} else {
		if r.queryVector != nil {
			out.Fallback = "its vector is not computed yet"
		}
		out.Factors = append(out.Factors, r.words(desc)...)
	}
	for _, f := range out.Factors {
		out.Score += f.Amount
	}
	slices.SortStableFunc(out.Factors, func(a, b Factor) int { return cmp.Compare(b.Amount, a.Amount) })
	return out
}

// similarity returns the semantic similarity of the query and a Thing.
func (r *ranker) similarity(desc *td.Description) (fit float64, ok bool) {
	if r.queryVector == nil {
		return 0, false
	}
	v := r.d.vectorOf(desc.Record.Hash)
	if v == nil {
		return 0, false
	}
	return r.queryVector.Cosine(v), true
}

// words returns the word factors of the alternative that matches best.
func (r *ranker) words(desc *td.Description) (best []Factor) {
	most := -1.0
	for _, words := range r.branches {
		factors, sum := []Factor{{Signal: SignalQuery, Amount: shareFit}}, shareFit
		if len(words) > 0 {
			factors, sum = nil, 0
			for _, h := range index.Compare(words, desc.Thing) {
				factors = append(factors, Factor{SignalWord, shareFit * h.Score, h.Asked, h.Found, h.Field})
				sum += shareFit * h.Score
			}
		}
		if sum > most {
			best, most = factors, sum
		}
	}
	return best
}

// signals returns the factors that do not depend on the query.
func (r *ranker) signals(rec *td.Record) []Factor {
	o := &r.d.opts
	trust, why := 1.0, ""
	if o.Trust != nil {
		trust, why = TrustIn(rec, o.Trust)
		trust = min(max(trust, 0), 1)
	}
	reach := 0.0
	if r.d.IsReachable(rec, r.now) {
		reach = 1
	}
	return []Factor{
		{Signal: SignalTrust, Amount: shareTrust * trust, Found: why},
		{Signal: SignalReach, Amount: shareReach * reach},
		{Signal: SignalLatency, Amount: shareLatency * r.nearness(rec)},
		{Signal: SignalFreshness, Amount: shareFreshness * freshness(rec, r.now)},
	}
}

// halfLatency is the latency that gets half of shareLatency.
const halfLatency = 100 * time.Millisecond

// nearness returns 1 for local Things and less for distant ones; a half if unknown.
func (r *ranker) nearness(rec *td.Record) float64 {
	best := 0.0
	for _, h := range rec.Hosts {
		switch latency := r.d.latency(h.Node); {
		case h.Node == r.d.opts.Self:
			return 1
		case latency > 0:
			best = max(best, float64(halfLatency)/float64(halfLatency+latency))
		}
	}
	if best == 0 {
		return 0.5
	}
	return best
}

func (d *Directory) latency(node did.DID) time.Duration {
	if d.opts.Latency == nil {
		return 0
	}
	return d.opts.Latency(node)
}

// freshness returns the remaining lease of a record in tenths, so that a slightly later refresh does not rank higher.
func freshness(rec *td.Record, now time.Time) float64 {
	life, left := rec.Expires.Sub(rec.Issued), rec.Expires.Sub(now)
	if life <= 0 {
		return 0
	}
	return min(max(float64(10*left/life)/10, 0), 1)
}

// A candidate is a view with its score.
type candidate struct {
	view  *view
	score float64
}

func (c candidate) peek() *td.Description { return c.view.peek() }

func compareCandidates(a, b candidate) int {
	return cmp.Or(index.Grade(b.score)-index.Grade(a.score), compareOwners(a.view.record, b.view.record))
}

// pool is the number of Things that are ranked by all signals for a number of results. The word scores of the others are too low.
func pool(limit int) int { return 4*min(limit, 1<<20) + 64 }

// poolOf returns the pool of a query with its earlier pages.
func poolOf(q *td.Query) int { return pool(wanted(q)) }

// ranked is lookup for a query with words.
func (d *Directory) ranked(ctx context.Context, by *reader, q *td.Query) findings {
	r := d.signalRanker(ctx, q)
	fit, total, ok := d.byWords(ctx, by, q, r.now)
	if !ok {
		return d.plain(ctx, by, q)
	}
	if r.queryVector != nil {
		fit, total = d.byEmbedding(ctx, by, q, r, fit, total)
	}
	for i := range fit {
		c := &fit[i]
		c.score *= shareFit
		for _, f := range r.signals(c.view.record) {
			c.score += f.Amount
		}
	}
	return best(q, fit, total)
}

// rankedForOthers is ranked for a query of another node: by words alone. Trust and reachability are specific to this node, and
// Options.Embedder is not used for queries of others.
func (d *Directory) rankedForOthers(by *reader, q *td.Query, within ...*index.List) findings {
	fit, total, ok := d.byWords(context.Background(), by, q, time.Now(), within...)
	if !ok {
		return d.plain(context.Background(), by, q, within...)
	}
	return best(q, fit, total)
}

// best returns the best candidates for q, best first, and the total.
func best(q *td.Query, fit []candidate, total int) findings {
	slices.SortFunc(fit, compareCandidates)
	f := findings{total: total}
	if total == math.MaxInt {
		f.total, f.cut = -1, true
	}
	for _, c := range fit[:min(wanted(q), len(fit))] {
		f.views = append(f.views, c.view)
	}
	return f
}

// byWords returns the Things with the best word match, and the total; ok is false if the words match nothing.
func (d *Directory) byWords(ctx context.Context, by *reader, q *td.Query, now time.Time, within ...*index.List) (
	fit []candidate, total int, ok bool) {
	d.mu.RLock()
	c := d.index.Choose(q, within...)
	if !c.Ranked() {
		d.mu.RUnlock()
		return nil, 0, false
	}
	s := d.sightLocked(by)
	most, exact := poolOf(q), c.Exact && s.cheap
	if !exact {
		most = math.MaxInt
	}
	var keep func(uint32) bool
	if exact {
		keep = s.filter()
	}
	if due := d.dueLocked(now); !due.IsZero() {
		visible := keep
		keep = func(slot uint32) bool {
			return alive(d.slots[slot].view.record, due) && (visible == nil || visible(slot))
		}
	}
	top, total := c.Top(most, keep)
	for _, one := range top {
		fit = append(fit, candidate{d.slots[one.Slot].view, one.Score})
	}
	d.mu.RUnlock()
	if !exact {
		slices.SortFunc(fit, compareCandidates)
		var cut bool
		fit, cut = filter(ctx, by.matches(q, c.Exact), fit, poolOf(q), candidate.peek)
		switch total = len(fit); {
		case cut:
			total = math.MaxInt
		case total == poolOf(q):
			total = -1 // the total is unknown
		}
	}
	return fit, total, true
}
