package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Limits of a page of GET /v1/agents.
const (
	defaultAgents   = 100
	maxAgents       = 1000
	maxAgentFields  = 32
	maxAgentsCursor = 4 << 10 // bytes
)

// An Index is the index of the node in the order of references.
type Index interface {
	// After returns up to limit matches of q after a place, and the number of all matches (directory.Directory.After). It sends no request.
	After(ctx context.Context, q td.Query, after directory.Place, limit int) (directory.Page, error)
}

// agentsRoutes returns the routes of the index.
func (g *Gateway) agentsRoutes() map[string]http.Handler {
	return map[string]http.Handler{"GET /v1/agents": g.protect(read, g.listAgents)}
}

// An agentsPage is an [api.AgentList] of items that may lack members.
type agentsPage struct {
	api.AgentList
	Items []json.RawMessage `json:"items"`
}

// listAgents returns one page of the index, as the caller sees it. It sends no request, neither for more agents nor for their reachability.
func (g *Gateway) listAgents(w http.ResponseWriter, r *http.Request) error {
	q, after, fields, err := parseAgents(r)
	if err != nil {
		return err
	}
	start, latest := time.Now(), g.latest() // before the list: a change during it is an event after latest
	limit := q.Limit
	p, err := g.o.Directory.After(r.Context(), q, after, limit+1)
	if err != nil {
		return err
	}
	list := api.AgentList{APIVersion: api.APIVersion, Kind: "AgentList", Total: &p.Total, Latest: latest}
	if list.Coverage.Asked, list.Coverage.Answered = 1, 1; len(p.Items) > limit {
		p.Items = p.Items[:limit]
		list.Next, list.Coverage.More = agentsCursor(p.Items[limit-1].Record()), true
	}
	list.Items = make([]api.Agent, 0, len(p.Items))
	for _, item := range p.Items {
		list.Items = append(list.Items, g.listed(r.Context(), item))
	}
	list.Warnings, list.Took = g.o.Status.ResultWarnings(), api.Milliseconds(time.Since(start))
	if fields == nil {
		return writeJSON(w, http.StatusOK, list)
	}
	items, err := keepFields(list.Items, fields)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, agentsPage{list, items})
}

// parseAgents reads the query of GET /v1/agents: the page begins after a place, and agents keep only the fields; nil keeps all.
func parseAgents(r *http.Request) (q td.Query, after directory.Place, fields []string, err error) {
	v, err := tdd.Params(r, "capability", "type", "action", "property", "event", "owner", "organization", "claimed", "host", "protocol", "id",
		"name", "q", "limit", "cursor", "fields")
	if err != nil {
		return q, after, nil, err
	}
	if q, err = parseQuery(v, maxAgents); err != nil {
		return q, after, nil, err
	}
	q.Limit = cmp.Or(q.Limit, defaultAgents)
	if after, err = parseAgentsCursor(v); err != nil {
		return q, after, nil, err
	}
	fields, err = parseFields(v)
	return q, after, fields, err
}

// agentsCursor returns the cursor of the page after a Thing. It names the Thing, so that it stays valid as long as the client keeps it.
func agentsCursor(r *td.Record) string {
	return base64.RawURLEncoding.EncodeToString([]byte(string(r.Owner) + "\n" + r.Thing))
}

func parseAgentsCursor(v url.Values) (after directory.Place, err error) {
	text := v.Get("cursor")
	if text == "" {
		return after, nil
	}
	invalid := interact.Errorf(interact.Usage, "use the member next of the page before, or leave cursor out", "the cursor is invalid")
	if len(text) > maxAgentsCursor {
		return after, invalid
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	owner, thing, ok := strings.Cut(string(raw), "\n")
	if err != nil || !ok || thing == "" || len(thing) > td.MaxID {
		return after, invalid
	}
	if after.Owner, err = did.Parse(owner); err != nil {
		return after, invalid
	}
	after.Thing = thing
	return after, nil
}

func parseFields(v url.Values) ([]string, error) {
	if !v.Has("fields") {
		return nil, nil
	}
	fields := strings.Split(v.Get("fields"), ",")
	if len(fields) > maxAgentFields || slices.Contains(fields, "") {
		return nil, interact.Errorf(interact.Usage, "fields=ref,name,state", "fields is %q; expected 1 to %d names of members",
			tdd.Clip(v.Get("fields")), maxAgentFields)
	}
	return fields, nil
}

// keepFields encodes agents with only the members in fields.
func keepFields(all []api.Agent, fields []string) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(all))
	for i := range all {
		raw, err := json.Marshal(&all[i])
		if err != nil {
			return nil, err
		}
		members, err := jcs.Members(raw)
		if err != nil {
			return nil, err
		}
		out[i] = jcs.Join(slices.DeleteFunc(members, func(m jcs.Member) bool { return !slices.Contains(fields, m.Name) }))
	}
	return out, nil
}

// latest returns a number after the last event of the node and before the next one (GET /v1/events).
func (g *Gateway) latest() uint64 {
	if g.o.Events == nil {
		return min(g.journal.Mark(), g.o.Directory.Mark())
	}
	return g.o.Events.Latest()
}

// A Sequence numbers the events of the node.
type Sequence interface {
	// Latest returns the number of the last event; 0 before the first.
	Latest() uint64
}

// listed returns an item of a list. Its description is decoded once for each TD.
func (g *Gateway) listed(ctx context.Context, item directory.Item) api.Agent {
	r := item.Record()
	return g.agentOf(ctx, r, g.facts.of(r, item.Peek))
}

// facts are what a list has of a TD. They are read-only.
type facts struct {
	thing                             *td.Thing // with only the members that the organization of a Thing depends on
	name, title, description          string
	capabilities, actions, properties []string
	kind, version, protocol           string
}

// factsOf returns the facts of a description.
func factsOf(d *td.Description) *facts {
	f := &facts{thing: &td.Thing{ID: d.ID, Title: d.Title, MemberOf: d.MemberOf, Metadata: d.Metadata, Visibility: d.Visibility},
		name: d.Name(), title: d.Title, description: d.Thing.Description, capabilities: make([]string, 0, len(d.Capabilities)), actions: names(d.Actions),
		properties: names(d.Properties), version: d.Thing.Version, protocol: protocolOf(d)}
	if len(d.Types) > 0 {
		f.kind = td.TypeKey(d.Types[0])
	}
	for _, c := range d.Capabilities {
		f.capabilities = append(f.capabilities, c.ID)
	}
	return f
}

// protocolOf returns how the agent of a description is served: mcp, a2a, a protocol of the bindings, or lmos if only its host reaches it.
func protocolOf(d *td.Description) string {
	for _, a := range d.Actions {
		switch {
		case slices.Contains(a.Types, bridge.MCPSession):
			return "mcp"
		case slices.Contains(a.Types, bridge.A2AOperation):
			return "a2a"
		}
	}
	best := len(scheme.All)
	for name := range d.Protocols() {
		if i := slices.IndexFunc(scheme.All, func(s scheme.Scheme) bool { return s.Name == name }); i >= 0 {
			best = min(best, i)
		}
	}
	if best < len(scheme.All) {
		return scheme.All[best].Protocol
	}
	return "lmos"
}

// size returns the approximate memory of f, in bytes.
func (f *facts) size() int {
	const fixed, text = 640, 16
	n := fixed + len(f.name) + len(f.title) + len(f.description) + len(f.version)
	for _, list := range [][]string{f.capabilities, f.actions, f.properties} {
		for _, s := range list {
			n += text + len(s)
		}
	}
	if m := f.thing.Metadata; m != nil {
		n += len(m.Raw)
	}
	return n
}

// maxFacts limits the memory of the facts of one generation, in bytes; there are two. 10,000 agents have about 8 MB.
const maxFacts = 12 << 20

// A factsCache has the facts of the TDs that were listed last, so that a list decodes no TD twice. It has two generations: a large list removes
// those that are not listed any more. It is safe for concurrent use; the zero value is empty.
type factsCache struct {
	mu          sync.RWMutex // owns what follows
	recent, old map[[32]byte]*facts
	bytes       int // of recent
}

// of returns the facts of the TD of a record, which describe decodes if they are not known.
func (c *factsCache) of(r *td.Record, describe func() *td.Description) *facts {
	c.mu.RLock()
	f, isRecent := c.recent[r.Hash], true
	if f == nil {
		f, isRecent = c.old[r.Hash], false
	}
	c.mu.RUnlock()
	if f != nil && isRecent {
		return f
	}
	if f == nil {
		f = factsOf(describe())
	}
	size := f.size()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recent[r.Hash] != nil { // meanwhile
		return f
	}
	if c.bytes+size > maxFacts {
		c.old, c.recent, c.bytes = c.recent, nil, 0
	}
	if c.recent == nil {
		c.recent = map[[32]byte]*facts{}
	}
	c.recent[r.Hash] = f
	c.bytes += size
	return f
}
