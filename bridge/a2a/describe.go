package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
)

// describeThing returns a card for a description, with a skill for each action. No member is empty, so that all verifiers compute the
// same payload (see card.canonical).
func describeThing(t *td.Thing) *card.Card {
	yes, no := true, false
	title := cmp.Or(strings.TrimSpace(t.Title), t.Name(), "thing")
	c := &card.Card{Name: title, Description: cmp.Or(strings.TrimSpace(t.Description), title), Version: cmp.Or(t.Version, "1.0.0"),
		Capabilities: card.Capabilities{Streaming: &yes, Push: &yes, ExtendedCard: &no}}
	c.InputModes, c.OutputModes = executor.Modes(t)
	c.Provider = providerOf(t)
	for _, name := range executor.Actions(t) {
		a := t.Actions[name]
		c.Skills = append(c.Skills, card.Skill{ID: name, Name: cmp.Or(a.Title, name), Tags: tags(t, a),
			Description: cmp.Or(strings.TrimSpace(a.Description), a.Title, name), Examples: examples(t, name),
			InputModes: executor.InputModes(a)})
	}
	c.Capabilities.Extensions = schemas(t, maxSchemas)
	if len(c.Skills) == 0 {
		c.Skills = []card.Skill{{ID: "none", Name: "none", Description: title + " has no actions for A2A clients.",
			Tags: []string{"none"}}}
	}
	return c
}

// schemasExtension is the URI of the A2A extension with the schemas of skills (docs/interop.md, "Schemas of skills"): its params are
// {"skills": {"id": {"inputSchema": "…", "outputSchema": "…"}}}, JSON Schemas as strings. Strings survive conversion to proto unchanged,
// where objects lose empty members and numbers lose digits.
const schemasExtension = "https://lmosd.dev/a2a/extensions/skill-schemas/v1"

// maxSchemas is the size limit of the schemas in a card, in bytes. The extended card has all of them.
const maxSchemas = 64 << 10

// schemas returns the extension with the schemas of the skills of t, of at most room bytes; nil if there are none.
func schemas(t *td.Thing, room int) []card.Extension {
	kept, skills := executor.Schemas(t), map[string]map[string]string{}
	for _, name := range executor.Actions(t) {
		a, of := t.Actions[name], map[string]string{}
		for member, text := range map[string]string{"inputSchema": schemaText(kept[name].Input, a.Input),
			"outputSchema": schemaText(kept[name].Output, a.Output)} {
			if text != "" {
				of[member] = text
				room -= len(text)
			}
		}
		if room < 0 {
			break
		}
		if len(of) > 0 {
			skills[name] = of
		}
	}
	if len(skills) == 0 {
		return nil
	}
	return []card.Extension{{URI: schemasExtension, Description: "JSON Schemas of the input and output of skills, as strings.",
		Params: protocol.Encode(map[string]any{"skills": skills})}}
}

// schemaText returns a schema as JSON text: the verbatim one, or else that of the description; empty if it accepts everything.
func schemaText(kept json.RawMessage, s *td.Schema) string {
	if len(kept) > 0 {
		return string(kept)
	}
	if m, _ := s.Value().(map[string]any); len(m) > 0 {
		return string(protocol.Encode(m))
	}
	return ""
}

func providerOf(t *td.Thing) *card.Provider {
	if t.Metadata == nil || t.Metadata.VendorName == "" || t.Metadata.VendorURL == "" {
		return nil
	}
	return &card.Provider{Organization: t.Metadata.VendorName, URL: t.Metadata.VendorURL}
}

// tags returns the types of an action and the capabilities of its Thing, or else the name of the Thing.
func tags(t *td.Thing, a *td.Action) []string {
	const most = 16
	all := slices.Clone(a.Types)
	for _, c := range t.Capabilities {
		if c.ID != "" && len(all) < most {
			all = append(all, c.ID)
		}
	}
	if len(all) == 0 {
		all = []string{cmp.Or(t.Name(), "thing")}
	}
	return all[:min(len(all), most)]
}

// examples returns those of the capability with the name of the action.
func examples(t *td.Thing, action string) []string {
	for _, c := range t.Capabilities {
		if strings.EqualFold(c.Name, action) || strings.EqualFold(c.ID, action) {
			return c.Examples
		}
	}
	return nil
}

// relayedCard returns the card of an imported agent, from its description: its own public members, and push notifications of this node.
func relayedCard(t *td.Thing) *card.Card {
	c := describeThing(t)
	var doc struct {
		Card *card.Card `json:"a2a:card"`
	}
	if json.Unmarshal(t.Raw, &doc) == nil && doc.Card != nil {
		own := *doc.Card
		own.Name, own.Description = c.Name, c.Description
		own.Capabilities.Push = c.Capabilities.Push
		if own.Capabilities.Streaming == nil {
			own.Capabilities.Streaming = new(bool)
		}
		if len(own.Skills) == 0 {
			own.Skills = c.Skills
		}
		if len(own.InputModes) == 0 {
			own.InputModes = c.InputModes
		}
		if len(own.OutputModes) == 0 {
			own.OutputModes = c.OutputModes
		}
		own.Version = cmp.Or(own.Version, c.Version)
		for i, s := range own.Skills {
			if own.Skills[i].Description = cmp.Or(s.Description, s.Name, s.ID); len(s.Tags) == 0 {
				own.Skills[i].Tags = []string{cmp.Or(t.Name(), "agent")}
			}
		}
		return &own
	}
	return c
}

const (
	maxFound    = 20
	findTimeout = 3 * time.Second
)

// directoryAgent returns the agent of the node itself, which searches the mesh.
func directoryAgent(m bridge.Mesh) executor.Agent {
	sync := true
	schema := td.ParseSchema(map[string]any{"type": "object", "required": []any{"query"},
		"properties": map[string]any{"query": map[string]any{"type": "string", "description": "capability or words to search for"}}})
	t := &td.Thing{ID: string(m.Signer().DID()), Title: "Mesh directory",
		Description: "Finds agents of the mesh by their capabilities.",
		Actions: map[string]*td.Action{"find": {Input: schema, Safe: true, Idempotent: true, Synchronous: &sync,
			Affordance: td.Affordance{Title: "Find agents", Types: []string{"directory"},
				Description: "Finds agents by capability or words, and returns the paths of their cards."}}}}
	find := func(ctx context.Context, call *interact.Message) (*interact.Message, error) {
		return findAgents(ctx, m, call)
	}
	return executor.Agent{Ref: string(m.Signer().DID()), Desc: t, Thing: interact.Unary(find)}
}

// A hit is a search result.
type hit struct {
	Name        string  `json:"name"`
	Ref         string  `json:"ref"`
	Description string  `json:"description,omitempty"`
	Card        string  `json:"card"` // path at the node
	Score       float64 `json:"score"`
	// Resembles is the name of a more trusted or older Thing that this name imitates.
	Resembles string `json:"resembles,omitempty"`
	// Organization is the organization of the owner, and how far that is proven.
	Organization *directory.Affiliation `json:"organization,omitempty"`
	// State is the reachability, and LastSeen the time of the last contact.
	State    reachability.State `json:"state"`
	LastSeen time.Time          `json:"last_seen"`
}

func findAgents(ctx context.Context, m bridge.Mesh, call *interact.Message) (*interact.Message, error) {
	var in struct {
		Query string `json:"query"`
	}
	if call.Type != interact.InvokeAction || json.Unmarshal(call.Data, &in) != nil || strings.TrimSpace(in.Query) == "" {
		return nil, interact.Errorf(interact.Invalid, `for example {"query": "weather"}`, "the query is missing")
	}
	q, err := querytext.Parse(in.Query, td.Query{})
	if err != nil {
		return nil, interact.Errorf(interact.Invalid, "for example weather, or capability:urn:example:weather",
			"invalid query: %v", err)
	}
	q.Limit = maxFound
	ctx, cancel := context.WithTimeout(did.WithPrincipal(ctx, call.From), findTimeout)
	defer cancel()
	var found []*td.Description
	for d, err := range m.Find(ctx, q) {
		if err != nil {
			break // return the results so far
		}
		found = append(found, d)
	}
	m.Look(ctx, found...)
	hits := []hit{}
	for _, r := range m.Rank(ctx, q, found) {
		p := m.Presence(r.Description)
		hits = append(hits, hit{Name: r.Thing.Title, Ref: r.Ref(), Description: r.Thing.Description, Score: r.Score,
			Card:      "/a2a/" + url.PathEscape(r.Ref()) + "/.well-known/agent-card.json",
			Resembles: m.Resembles(r.Record), Organization: m.Affiliation(ctx, r.Description), State: p.State, LastSeen: p.LastSeen.UTC().Truncate(time.Second)})
	}
	return call.ReplyStatus(interact.StatusCompleted, interact.JSON, protocol.Encode(map[string]any{"agents": hits})), nil
}
