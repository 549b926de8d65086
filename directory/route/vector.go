package route

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/lmosd/lmosd/interact"
)

// clipped returns an untrusted text, shortened for display.
func clipped(s string) string { return interact.Excerpt(s, 300) }

// byVector decides by vector similarity.
func (r *Router) byVector(ctx context.Context, f *candidateSet) (*Decision, error) {
	agents := f.best(maxAgents)
	if len(agents) == 0 {
		return f.decision(nil, Vector, f.noAgent()), nil
	}
	err := r.measure(ctx, agents, f.about)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return f.byWords("the embedding failed (" + err.Error() + "), lexical match used"), nil
	}
	for _, a := range f.agents[len(agents):] {
		for i := range a.points {
			a.points[i].score = 0 // of another scale
		}
	}
	f.rank()
	best, reason := choose(hits(agents), r.o.Thresholds)
	return f.decision(best, Vector, reason), nil
}

// measure sets the score of each point to its vector similarity to the task, 0 to 1.
func (r *Router) measure(ctx context.Context, agents []*agent, about string) error {
	texts := []string{about}
	for _, a := range agents {
		for _, p := range a.points {
			texts = append(texts, p.text)
		}
	}
	vectors, err := r.vectors.of(ctx, r.o.Embedder, texts)
	if err != nil {
		return err
	}
	at := 1
	for _, a := range agents {
		for i := range a.points {
			a.points[i].score = similarity(vectors[0], vectors[at])
			at++
		}
	}
	return nil
}

// similarity returns the cosine of vectors of length 1, or 0 if it is negative.
func similarity(a, b []float32) float64 {
	if len(a) != len(b) {
		return 0
	}
	var sum float64
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return min(max(sum, 0), 1)
}

// A hit is one of the best points, with its agent.
type hit struct {
	agent *agent
	score float64
}

// hits returns the best points, as a search in a vector store does.
func hits(agents []*agent) []hit {
	var all []hit
	for _, a := range agents {
		for _, p := range a.points {
			all = append(all, hit{a, p.score})
		}
	}
	slices.SortStableFunc(all, func(a, b hit) int { return cmp.Compare(b.score, a.score) })
	return all[:min(len(all), maxHits)]
}

// choose is the SingleAgentEmbeddingRanker of lmos-classifier: one agent must have the highest score, above the thresholds, and clearly more
// than the second one. With a single hit its agent is selected.
func choose(all []hit, t Thresholds) (*agent, string) {
	switch len(all) {
	case 0:
		return nil, "no example is similar"
	case 1:
		return all[0].agent, fmt.Sprintf("%q is the only example", clipped(all[0].agent.top().text))
	}
	totals, counts := map[*agent]float64{}, map[*agent]int{}
	var order []*agent // by first hit, for a stable order
	for _, h := range all {
		if counts[h.agent] == 0 {
			order = append(order, h.agent)
		}
		totals[h.agent] += h.score
		counts[h.agent]++
	}
	slices.SortStableFunc(order, func(a, b *agent) int { return cmp.Compare(totals[b], totals[a]) })
	first := order[0]
	total, mean := totals[first], totals[first]/float64(counts[first])
	name := first.desc.Name()
	if total < t.Total || mean < t.Mean {
		return nil, fmt.Sprintf("%s is nearest with %d examples, total %.2f of at least %.2f, mean %.2f of at least %.2f", name, counts[first],
			total, t.Total, mean, t.Mean)
	}
	if len(order) == 1 {
		return first, fmt.Sprintf("all %d nearest examples are of %s: total %.2f, mean %.2f", counts[first], name, total, mean)
	}
	second := order[1]
	distance := total - totals[second]
	relative := distance / float64(counts[first])
	if distance < t.Distance || relative < t.RelDistance {
		return nil, fmt.Sprintf("%s and %s match similarly well: distance %.2f, required %.2f (per hit %.2f of %.2f)", name, second.desc.Name(),
			distance, t.Distance, relative, t.RelDistance)
	}
	return first, fmt.Sprintf("%s is nearest with %d examples: total %.2f, mean %.2f, %.2f ahead of %s", name, counts[first], total, mean, distance,
		second.desc.Name())
}

// maxVectors is the number of vectors in each of two generations; one of 1024 dimensions takes 4 kB.
const maxVectors = 2048

// vectors caches the vectors of texts. When one generation is full it becomes the old one, and the previous old one is dropped: vectors in
// use stay. It is safe for concurrent use.
type vectors struct {
	mu          sync.Mutex
	recent, old map[[32]byte][]float32 // owned by mu
}

// of returns the vectors of texts, and requests missing ones from e.
func (v *vectors) of(ctx context.Context, e Embedder, texts []string) ([][]float32, error) {
	all := make([][]float32, len(texts))
	var missing []string
	var at []int
	for i, text := range texts {
		if all[i] = v.get(text); all[i] == nil {
			missing, at = append(missing, text), append(at, i)
		}
	}
	if len(missing) == 0 {
		return all, nil
	}
	made, err := e.Embed(ctx, missing)
	if err != nil {
		return nil, err
	}
	for i, vector := range made {
		all[at[i]] = vector
		v.put(missing[i], vector)
	}
	return all, nil
}

func (v *vectors) get(text string) []float32 {
	key := sha256.Sum256([]byte(text))
	v.mu.Lock()
	defer v.mu.Unlock()
	vector, ok := v.recent[key]
	if !ok {
		if vector = v.old[key]; vector != nil {
			v.putLocked(key, vector)
		}
	}
	return vector
}

func (v *vectors) put(text string, vector []float32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.putLocked(sha256.Sum256([]byte(text)), vector)
}

func (v *vectors) putLocked(key [32]byte, vector []float32) {
	if v.recent == nil || len(v.recent) >= maxVectors {
		v.old, v.recent = v.recent, map[[32]byte][]float32{}
	}
	v.recent[key] = vector
}
