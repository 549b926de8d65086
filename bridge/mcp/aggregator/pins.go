package aggregator

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

const (
	// maxPins bounds the pins.
	maxPins = 256
	// findTimeout bounds the search for a pinned Thing, and missFor is the time until an unsuccessful search is repeated.
	findTimeout = time.Second
	missFor     = 10 * time.Second
	// partlyFor is the time until an incomplete tool list is requested again.
	partlyFor = 2 * time.Second
)

// A pin is one configured pin. Once its Thing is found, it refers to exactly this Thing: another one with the same name cannot replace
// it.
type pin struct {
	ref   string // the configured reference
	name  string // of one feature; empty for all
	alias string

	described *features.Features // features of the TD
	partly    bool               // the tool list is incomplete: the TD omits some and the server did not respond

	exact    string // the exact reference of the Thing, once found; kept if the Thing disappears
	features *features.Features
	missed   time.Time // time of the last unsuccessful search
}

// pinsOf parses the configured pins. Names of affordances contain no slash; ids may.
func pinsOf(all []string) []*pin {
	var out []*pin
	for _, text := range all[:min(len(all), maxPins)] {
		p := &pin{ref: strings.TrimSpace(text)}
		if i := strings.LastIndexByte(p.ref, '/'); i > 0 && !strings.HasSuffix(p.ref[:i], "/") {
			p.ref, p.name = p.ref[:i], p.ref[i+1:]
		}
		p.alias = features.AliasOfPin(p.ref)
		out = append(out, p)
	}
	return out
}

// find looks for the Thing of a pin. An unreachable Thing keeps its last features; a removed Thing loses them.
func (p *pin) find(ctx context.Context, h *Handler) {
	if p.features == nil && time.Since(p.missed) < missFor {
		return
	}
	limited, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	ref := cmp.Or(p.exact, p.ref)
	d, err := h.o.Mesh.Get(limited, ref)
	if err != nil {
		switch interact.AsError(err).Code {
		case interact.NotFound, interact.Withdrawn, interact.Expired:
			p.features = nil
		}
		if p.features == nil {
			p.missed = time.Now()
		}
		return
	}
	p.exact = d.Ref()
	if p.described = p.described.Renewed(d); p.described.Omitted == 0 {
		p.features, p.partly = p.described, false
		return
	}
	f, err := h.allFeatures(ctx, d)
	if p.partly = err != nil; err == nil || p.features == nil || p.features.Desc.Record.Hash != d.Record.Hash {
		p.features = f // otherwise the previous list is more complete
	}
}

// matches reports whether the pin includes a feature with one of the names.
func (p *pin) matches(names ...string) bool { return p.name == "" || slices.Contains(names, p.name) }

// An item is an element of a list, in JSON.
type item struct {
	name string
	raw  json.RawMessage
}

// MarshalJSON implements [json.Marshaler].
func (i item) MarshalJSON() ([]byte, error) { return i.raw, nil }

func nameOf(i item) string { return i.name }

// A target is the feature behind a pinned name.
type target struct{ ref, name string }

// A view is the content of /mcp. It is immutable.
type view struct {
	tools, prompts, resources, templates []item
	byTool, byPrompt                     map[string]target
	byAlias                              map[string]string // references of Things by the alias in their URIs
	params                               map[string][]protocol.Param
	partly                               []string // aliases of Things with incomplete tool lists
	pins                                 []*pin   // with features, as they were
}

// pinned creates the views. It is safe for concurrent use.
type pinned struct {
	h     *Handler
	fixed []item // the tools of the mesh itself

	shown atomic.Pointer[view] // the latest view

	mu   sync.Mutex // held while a view is created, for up to findTimeout
	pins []*pin
	seq  uint64
	made time.Time
	now  *view
}

func newPinned(h *Handler, fixed []item) *pinned {
	return &pinned{h: h, fixed: fixed, pins: pinsOf(h.o.Pins)}
}

// view returns the current view of the Things that the caller of ctx may see.
func (s *pinned) view(ctx context.Context) *view {
	whole := s.whole(did.AsProcess(ctx))
	var visible []*pin
	for _, p := range whole.pins {
		if s.h.o.Mesh.Sees(ctx, p.features.Desc) {
			visible = append(visible, p)
		}
	}
	if len(visible) == len(whole.pins) {
		return whole
	}
	return newView(s.fixed, visible)
}

// whole returns the current view of all pins. It creates a new one if something changed; concurrent callers get the previous one.
func (s *pinned) whole(ctx context.Context) *view {
	if !s.mu.TryLock() {
		if v := s.shown.Load(); v != nil {
			return v
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	seq := s.h.o.Mesh.Latest()
	if s.now != nil && s.seq == seq && (time.Since(s.made) < partlyFor || time.Since(s.made) < missFor && len(s.now.partly) == 0) {
		return s.now
	}
	was, partly := make([]*features.Features, len(s.pins)), make([]bool, len(s.pins))
	var work sync.WaitGroup
	for i, p := range s.pins {
		partly[i] = p.partly
		if was[i] = p.features; p.features == nil || p.features.Omitted > 0 { // it may require a network request
			work.Go(func() { p.find(ctx, s.h) })
		} else {
			p.find(ctx, s.h)
		}
	}
	work.Wait()
	if ctx.Err() == nil {
		s.seq, s.made = seq, time.Now()
	}
	if s.now == nil || slices.ContainsFunc(s.pins, func(p *pin) bool { return !slices.Contains(was, p.features) }) || lost(was, partly, s.pins) {
		s.now = newView(s.fixed, s.pins)
		s.shown.Store(s.now)
	}
	return s.now
}

// lost reports whether a pinned Thing disappeared, or the completeness of a list changed.
func lost(was []*features.Features, partly []bool, pins []*pin) bool {
	for i, p := range pins {
		if was[i] != nil && p.features == nil || partly[i] != p.partly {
			return true
		}
	}
	return false
}

func newView(fixed []item, pins []*pin) *view {
	v := &view{byTool: map[string]target{}, byPrompt: map[string]target{}, byAlias: map[string]string{}, params: map[string][]protocol.Param{},
		tools: slices.Clone(fixed)}
	seen := map[string]bool{}
	for _, p := range pins {
		if p.features != nil {
			was := *p
			v.pins = append(v.pins, &was)
			if _, taken := v.byAlias[p.features.Alias]; !taken {
				v.byAlias[p.features.Alias] = p.exact
			}
			v.add(p, seen)
			if p.partly {
				v.partly = append(v.partly, p.alias)
			}
		}
	}
	for _, list := range [][]item{v.tools, v.prompts, v.resources, v.templates} {
		slices.SortFunc(list, func(a, b item) int { return strings.Compare(a.name, b.name) })
	}
	return v
}

// add adds the features of a pin. Duplicates are listed once.
func (v *view) add(p *pin, seen map[string]bool) {
	f := p.features
	headers := f.Params()
	for _, t := range f.Tools {
		name := t.Under(p.alias)
		if _, there := v.byTool[name]; there || !p.matches(t.Key, t.Name) {
			continue
		}
		v.byTool[name] = target{p.exact, t.Name}
		if params := headers[t.Name]; params != nil {
			v.params[name] = params
		}
		c := *t
		c.Name, c.Meta = name, map[string]any{metaOrigin: map[string]string{"thing": p.exact, "name": t.Name}}
		v.tools = append(v.tools, item{name, protocol.Encode(c)})
	}
	for _, one := range f.Prompts {
		name := one.Under(p.alias)
		if _, there := v.byPrompt[name]; there || !p.matches(one.Key, one.Name) {
			continue
		}
		v.byPrompt[name] = target{p.exact, one.Name}
		c := *one
		c.Name = name
		v.prompts = append(v.prompts, item{name, protocol.Encode(c)})
	}
	for list, all := range map[*[]item][]*features.Resource{&v.resources: f.Resources, &v.templates: f.Templates} {
		for _, r := range all {
			if uri := r.URI + r.Template; !seen[uri] && p.matches(r.Key, r.Name) {
				seen[uri] = true
				*list = append(*list, item{uri, protocol.Encode(r)})
			}
		}
	}
}

// metaOrigin is the member of _meta with the Thing and name of a tool.
const metaOrigin = "dev.lmosd/origin"

// thingOf splits a resource URI of the mesh into the Thing and the URI at the Thing.
func (v *view) thingOf(uri string) (ref, inner string, ok bool) {
	alias, inner := features.Split(uri)
	ref, ok = v.byAlias[alias]
	return ref, inner, ok
}
