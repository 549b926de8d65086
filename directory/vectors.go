package directory

import (
	"context"
	"math"
	"slices"

	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/td"
)

// Limits of semantic matches.
const (
	maxSemantic           = 32  // Things without a word of the query
	minRelativeSimilarity = 0.9 // their least similarity, relative to the best one
)

// queueVectorLocked queues a live Thing for its vector, unless another with the same TD has one.
func (d *Directory) queueVectorLocked(e *entry) {
	if d.opts.Embedder == nil {
		return
	}
	if twin := d.hashes[e.view.record.Hash]; twin != nil && twin.view.vector.Load() != nil {
		e.view.vector.Store(twin.view.vector.Load())
		d.markVectorLocked(e.Key)
	}
	if e.view.vector.Load() == nil {
		d.embeddings.Enqueue(e.Key)
	}
}

// withoutVector returns a live Thing without a vector.
func (d *Directory) withoutVector(key [32]byte) (embedding.Thing, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[key]
	if e == nil || e.view == nil || e.view.vector.Load() != nil {
		return embedding.Thing{}, false
	}
	v := e.view
	return embedding.Thing{Describe: v.peek, Store: func(made *embedding.Vector) {
		v.vector.Store(made)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.markVectorLocked(key)
	}}, true
}

// markVectorLocked marks the vector of a Thing to be written.
func (d *Directory) markVectorLocked(key [32]byte) {
	if d.embeddings.Stores() {
		d.store.Mark(persist.Vectors, key)
	}
}

// savedVector returns the stored form of the vector of a Thing; nil if there is none.
func (d *Directory) savedVector(key [32]byte) any {
	d.mu.RLock()
	e := d.entries[key]
	if e == nil || e.view == nil || e.view.vector.Load() == nil {
		d.mu.RUnlock()
		return nil
	}
	v := e.view
	d.mu.RUnlock()
	if saved := d.embeddings.Save(v.vector.Load(), v.peek()); saved != nil {
		return saved
	}
	return nil
}

// loadVector returns the stored vector of a description, or nil if there is no usable one.
func (d *Directory) loadVector(ctx context.Context, key [32]byte, desc *td.Description) *embedding.Vector {
	if !d.embeddings.Stores() {
		return nil
	}
	var s embedding.Saved
	if err := d.store.Get(ctx, persist.Vectors, key, &s); err != nil {
		return nil // it is computed again
	}
	return d.embeddings.Restore(&s, desc)
}

// vectorOf returns the vector of a TD, if there is one.
func (d *Directory) vectorOf(hash [32]byte) *embedding.Vector {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.hashes[hash]; e != nil {
		return e.view.vector.Load()
	}
	return nil
}

// byEmbedding scores candidates by semantic similarity, as far as they have vectors, and adds the most similar Things without words of the
// query.
func (d *Directory) byEmbedding(ctx context.Context, by *reader, q *td.Query, r *ranker, fit []candidate, total int) ([]candidate, int) {
	known := map[*view]bool{}
	top := 0.0
	for i := range fit {
		known[fit[i].view] = true
		if v := fit[i].view.vector.Load(); v != nil {
			fit[i].score = r.queryVector.Cosine(v)
			top = max(top, fit[i].score)
		}
	}
	near, cut := d.nearest(ctx, by, q, r)
	if cut {
		total = math.MaxInt
	}
	if len(near) > 0 {
		top = max(top, near[0].score)
	}
	near = slices.DeleteFunc(near, func(c candidate) bool { return known[c.view] || c.score < minRelativeSimilarity*top })
	if total >= 0 && total < math.MaxInt {
		total += len(near)
	}
	return append(fit, near...), total
}

// nearest returns the most similar Things that match the rest of q, and whether the search was truncated.
func (d *Directory) nearest(ctx context.Context, by *reader, q *td.Query, r *ranker) (all []candidate, cut bool) {
	rest := *q
	rest.Text = ""
	d.mu.RLock()
	c := d.index.Choose(&rest)
	s := d.sightLocked(by)
	exact := c.Exact && s.cheap
	var views []*view
	for e := range d.liveEntriesLocked(c.All(), d.dueLocked(r.now)) {
		if !exact || s.everything || s.has(e.at.Slot) {
			views = append(views, e.view)
		}
	}
	d.mu.RUnlock()
	for i, v := range views {
		if cut = i%1024 == 1023 && ctx.Err() != nil; cut {
			break
		}
		if vec := v.vector.Load(); vec != nil {
			all = append(all, candidate{v, r.queryVector.Cosine(vec)})
		}
	}
	slices.SortFunc(all, compareCandidates)
	if exact {
		return all[:min(len(all), maxSemantic)], cut
	}
	all, early := filter(ctx, by.matches(&rest, c.Exact), all, maxSemantic, candidate.peek)
	return all, cut || early
}
