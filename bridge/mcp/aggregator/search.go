package aggregator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/paging"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

const (
	// searchTimeout bounds a search, and enoughAfter the wait for more after the first match.
	searchTimeout = 2 * time.Second
	enoughAfter   = 100 * time.Millisecond
	// maxHits bounds the Things in a result, and toolsOfHit the tools of each.
	maxHits    = 20
	toolsOfHit = 5
	// fewTools is the number of tools up to which mesh_describe includes all schemas.
	fewTools = 25
)

// A hit is a Thing in a search result, with its best matching tools.
type hit struct {
	Thing       string  `json:"thing"`
	Title       string  `json:"title,omitempty"`
	Description string  `json:"description,omitempty"`
	Tools       []brief `json:"tools"`
	More        int     `json:"moreTools,omitempty"`
	// Resembles is the similar name of another, more trusted or longer known Thing.
	Resembles string `json:"resembles,omitempty"`
	// Organization is the organization of the owner, and how far that is proven.
	Organization *directory.Affiliation `json:"organization,omitempty"`
	// State and LastSeen are the reachability of the Thing.
	State    reachability.State `json:"state"`
	LastSeen time.Time          `json:"last_seen"`
}

type brief struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// search implements mesh_search.
func (s *mesh) search(ctx context.Context, m *protocol.Message) (*protocol.Message, error) {
	page, err := s.page(m)
	if err != nil {
		return nil, err
	}
	q := page.Query
	found := s.find(ctx, q)
	s.h.o.Mesh.Look(ctx, found...)
	ranked, next := paging.Cut(page, s.h.o.Mesh.Rank(ctx, q, found), func(one directory.Ranked) *td.Description { return one.Description })
	hits := make([]hit, 0, len(ranked))
	terms := textmatch.Content(q.Text)
	for _, d := range ranked {
		hits = append(hits, s.hit(ctx, d.Description, terms))
	}
	doc := map[string]any{"results": hits}
	if total, ok := q.Counter.Total(); ok && total >= len(hits) {
		doc["total"] = total
	}
	if next != "" {
		doc["nextCursor"] = next
	}
	return protocol.Respond(m.ID(), features.Document(doc)), nil
}

// page returns the requested page: the first of a query, or the one of a cursor.
func (s *mesh) page(m *protocol.Message) (*paging.Search, error) {
	if cursor := m.Text("arguments", "cursor"); cursor != "" {
		return s.h.pages.Resume(cursor)
	}
	query, err := argument(m, "query")
	if err != nil {
		return nil, err
	}
	limit := 10
	if raw, err := m.Param("arguments", "limit"); err == nil && raw != nil {
		_ = json.Unmarshal(raw, &limit) // other types mean the default
	}
	return s.h.pages.Begin(td.Query{Text: query, Limit: min(max(limit, 1), maxHits)}, nil), nil
}

// find searches the mesh. After the first match it waits only a short time for more.
func (s *mesh) find(ctx context.Context, q td.Query) (found []*td.Description) {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	enough := time.AfterFunc(searchTimeout, cancel)
	defer enough.Stop()
	for d, err := range s.h.o.Mesh.Find(ctx, q) {
		if err != nil {
			break
		}
		if found = append(found, d); len(found) == 1 {
			enough.Reset(enoughAfter)
		}
	}
	return found
}

func (s *mesh) hit(ctx context.Context, d *td.Description, terms []string) hit {
	out := hit{Thing: s.shortName(ctx, d), Title: d.Thing.Title, Description: interact.Clip(d.Thing.Description, 300), Tools: []brief{}}
	p := s.h.o.Mesh.Presence(d)
	out.Resembles, out.Organization = s.h.o.Mesh.Resembles(d.Record), s.h.o.Mesh.Affiliation(ctx, d)
	out.State, out.LastSeen = p.State, p.LastSeen.UTC().Truncate(time.Second)
	all := briefs(d.Thing, terms)
	out.More = max(0, len(all)-toolsOfHit) + features.Omitted(d.Thing)
	out.Tools = append(out.Tools, all[:min(len(all), toolsOfHit)]...)
	return out
}

// briefs returns the tools of a Thing, those with the most matching terms first.
func briefs(t *td.Thing, terms []string) []brief {
	type scored struct {
		brief
		score int
	}
	var all []scored
	for key, a := range t.Actions {
		if !features.IsTool(a) {
			continue
		}
		one := scored{brief: brief{key, interact.Clip(cmp.Or(a.Description, a.Title), 200)}}
		text := " " + strings.ToLower(key+" "+a.Title+" "+a.Description)
		for _, w := range terms {
			if strings.Contains(text, w) {
				one.score++
			}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b scored) int { return cmp.Or(b.score-a.score, strings.Compare(a.Name, b.Name)) })
	out := make([]brief, len(all))
	for i, one := range all {
		out[i] = one.brief
	}
	return out
}

// shortName returns the name of a Thing if it is unique, otherwise the exact reference.
func (s *mesh) shortName(ctx context.Context, d *td.Description) string {
	if same, err := s.h.o.Mesh.Get(directory.WithoutUse(ctx), d.Thing.Name()); err == nil && same.Ref() == d.Ref() {
		return d.Thing.Name()
	}
	return d.Ref()
}

// describe implements mesh_describe.
func (s *mesh) describe(ctx context.Context, m *protocol.Message) (*protocol.Message, error) {
	thing, err := argument(m, "thing")
	if err != nil {
		return nil, err
	}
	d, err := s.h.o.Mesh.Get(ctx, thing)
	if err != nil {
		return nil, err
	}
	f, only := features.Of(d), m.Text("arguments", "tool")
	var unreachable error
	if f.Omitted > 0 && (only == "" || f.Tool(only) == nil && f.ToolOf(only) == nil) {
		f, unreachable = s.h.allFeatures(ctx, d)
	}
	tools := []any{}
	for _, t := range f.Tools {
		switch {
		case only != "" && only != t.Name && only != t.Key:
		case only == "" && len(f.Tools) > fewTools:
			tools = append(tools, brief{t.Name, interact.Clip(cmp.Or(t.Description, t.Title), 200)})
		default:
			tools = append(tools, t)
		}
	}
	if only != "" && len(tools) == 0 && unreachable != nil {
		return nil, unreachable // the server may have it, but is unreachable
	}
	if only != "" && len(tools) == 0 {
		return nil, interact.Errorf(interact.NoAffordance, "omit tool to list all tools", "%s has no tool %q", thing,
			interact.Clip(only, features.MaxName))
	}
	doc := map[string]any{"thing": thing, "title": d.Thing.Title, "description": d.Thing.Description, "tools": tools}
	if only == "" {
		resources, templates := f.Own()
		doc["resources"] = append(append([]features.Resource{}, resources...), templates...) // never null
		doc["prompts"] = append([]*features.Prompt{}, f.Prompts...)
		if len(f.Tools) > fewTools {
			doc["note"] = "many tools: pass tool to get the schema of its input"
		}
		if unreachable != nil {
			doc["incomplete"] = fmt.Sprintf("%d more tools, prompts or resources are not in its description, and its server is unreachable: %s",
				f.Omitted, protocol.FromError(unreachable).Message)
		}
	}
	return protocol.Respond(m.ID(), features.Document(doc)), nil
}
