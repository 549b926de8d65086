package gateway

import (
	"context"
	"encoding/hex"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/paging"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
)

// Limits of a search.
const (
	findTime     = 2 * time.Second // default
	maxFindTime  = time.Minute
	maxFind      = 1000 // Things in a response
	maxTerms     = 16   // capabilities in a query
	maxNamesakes = 8    // other Things of a name in a response
)

// find returns the Things found in time, best first, with the coverage. Clients that accept events also receive the changes.
func (g *Gateway) find(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Query().Has("page") {
		return g.nextPage(w, r)
	}
	f, err := parseFind(r)
	if err != nil {
		return err
	}
	if wantsEvents(r) {
		return g.watchFind(w, r, f)
	}
	list, err := g.search(r, f, nil)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, list)
}

// nextPage returns the page after an earlier response.
func (g *Gateway) nextPage(w http.ResponseWriter, r *http.Request) error {
	v, err := tdd.Params(r, "page", "timeout")
	if err != nil {
		return err
	}
	s, err := g.pages.Resume(v.Get("page"))
	if err != nil {
		return err
	}
	f, _ := s.With.(findRequest) // of search
	if f.timeout, err = duration(v, "timeout", maxFindTime, f.timeout); err != nil {
		return err
	}
	list, err := g.search(r, f, s)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, list)
}

// search queries the directory and the mesh for one page within the timeout of f; a nil page is the first.
func (g *Gateway) search(r *http.Request, f findRequest, page *paging.Search) (*api.AgentList, error) {
	start := time.Now()
	if f.selects() { // among all Things
		f.limit, f.query.Limit = f.query.Max(), maxFind
	}
	if page == nil {
		page = g.pages.Begin(f.query, f)
	}
	f.query = page.Query
	ctx, cancel := context.WithTimeout(r.Context(), f.timeout)
	defer cancel()
	var found []*td.Description
	for d, err := range g.o.Directory.Find(ctx, f.query) {
		switch {
		case err == nil:
			found = append(found, d)
		case r.Context().Err() == nil && interact.AsError(err).Code == interact.Timeout:
			f.query.Counter.SetTruncated() // the deadline of the search
		default:
			return nil, err
		}
	}
	list := &api.AgentList{APIVersion: api.APIVersion, Kind: "AgentList"}
	if f.trust != "" {
		list.Items, list.LeftOut = g.choose(r.Context(), f, found)
	} else {
		list.Items, list.Next = g.rankPage(r.Context(), f, found, page)
	}
	list.Coverage, list.Took, list.Warnings = f.query.Counter.Coverage(), api.Milliseconds(time.Since(start)), g.o.Status.ResultWarnings()
	for i := range list.Items {
		if list.Items[i].State == api.StateRefused {
			list.Coverage.Refused++
		}
	}
	// A selection removes Things that were counted.
	if total, ok := f.query.Counter.Total(); ok && total >= len(list.Items) && !f.selects() {
		list.Total = &total
	}
	g.metrics.found(time.Since(start), len(list.Items), list.Coverage)
	return list, nil
}

// rankPage returns the Things of a page, ranked if the query has criteria, and the cursor of the next page.
func (g *Gateway) rankPage(ctx context.Context, f findRequest, found []*td.Description, page *paging.Search) (items []api.Agent, next string) {
	items = make([]api.Agent, 0, len(found))
	g.o.Presence.Look(ctx, found...)
	g.o.Directory.VerifyMembers(ctx, found...)
	if !f.explain && !f.query.HasCriteria() && len(f.query.Or) == 0 {
		found, next = paging.Cut(page, found, func(d *td.Description) *td.Description { return d })
		for _, d := range found {
			items = append(items, g.agent(ctx, d))
		}
		return items, next
	}
	all := g.o.Directory.Rank(ctx, f.query, found)
	if f.strategy != "" {
		all = f.applyStrategy(all)
	} else {
		all, next = paging.Cut(page, all, func(one directory.Ranked) *td.Description { return one.Description })
	}
	for _, one := range all {
		a := g.agent(ctx, one.Description)
		if a.Score = math.Round(one.Score*1000) / 1000; f.explain {
			a.ScoreFactors = scoreFactors(one)
		}
		items = append(items, a)
	}
	return items, next
}

// applyStrategy keeps the Things that provide the capability itself, not one below it, and orders them by version as the strategy prescribes
// (LMOS platform, CapabilityResolver); Things of equal version keep their order.
func (f *findRequest) applyStrategy(all []directory.Ranked) []directory.Ranked {
	versions := map[*td.Description]string{}
	all = slices.DeleteFunc(all, func(one directory.Ranked) bool {
		by, ok := f.provided(one.Description)
		versions[one.Description] = by.Version
		return !ok
	})
	slices.SortStableFunc(all, func(a, b directory.Ranked) int {
		return f.strategy.Compare(versions[a.Description], versions[b.Description])
	})
	if len(all) > f.limit {
		f.query.Counter.SetMore()
		all = all[:f.limit]
	}
	return all
}

// provided returns the capability of the query as a Thing provides it, in the version that the strategy prefers.
func (f *findRequest) provided(d *td.Description) (td.Capability, bool) {
	return td.Requirement{ID: f.query.Capability[0], Name: f.query.Capability[0], Version: f.query.Version}.Match(d.Thing, f.strategy)
}

// scoreFactors returns the parts of a score.
func scoreFactors(one directory.Ranked) []api.ScoreFactor {
	factors := make([]api.ScoreFactor, 0, len(one.Factors)+1)
	for _, f := range one.Factors {
		w := api.ScoreFactor{Signal: string(f.Signal), Amount: math.Round(f.Amount*1000) / 1000, Asked: f.Asked, Found: f.Found}
		if f.Signal == directory.SignalWord {
			w.Field = f.Field.String()
		}
		factors = append(factors, w)
	}
	if one.Fallback != "" {
		factors = append(factors, api.ScoreFactor{Signal: "fallback", Found: one.Fallback})
	}
	return factors
}

// agent returns d for a list.
func (g *Gateway) agent(ctx context.Context, d *td.Description) api.Agent {
	return g.agentOf(ctx, d.Record, factsOf(d))
}

// agentOf returns the Thing of a record with the facts of its TD.
func (g *Gateway) agentOf(ctx context.Context, r *td.Record, f *facts) api.Agent {
	d := &td.Description{Thing: f.thing, Record: r}
	a := api.Agent{
		ID: d.ID, Ref: d.Ref(), Name: f.name, Title: f.title, Description: f.description, Type: f.kind, Version: f.version, Owner: r.Owner, Grant: grantOfThing(r),
		Hosts: make([]did.DID, 0, len(r.Hosts)), Protocol: f.protocol, Capabilities: f.capabilities, Actions: f.actions, Properties: f.properties,
		Local: g.o.Presence.Hosted(d), Seen: r.Issued.UTC(), Expires: r.Expires.UTC(),
	}
	if e, ok := g.o.Status.Equivocation(r); ok {
		a.Equivocation = equivocation(e)
	}
	p := g.o.Presence.Presence(d)
	a.Resembles = g.o.Directory.Resembles(r)
	a.Organization = claimOf(g.o.Directory.Affiliation(ctx, d))
	a.State, a.LastSeen = api.State(p.State), p.LastSeen.UTC()
	for _, h := range r.Hosts {
		a.Hosts = append(a.Hosts, h.Node)
	}
	return a
}

// claimOf returns an affiliation as the API has it; nil for none.
func claimOf(a *directory.Affiliation) *api.OrganizationClaim {
	if a == nil {
		return nil
	}
	return &api.OrganizationClaim{Name: a.Name, DID: a.DID, State: string(a.State)}
}

func equivocation(e directory.Equivocation) *api.Equivocation {
	return &api.Equivocation{ID: e.Thing, Owner: e.Owner, Seq: e.Seq, Seen: e.Seen.UTC()}
}

// names returns the sorted names of affordances, never nil.
func names[T any](m map[string]T) []string {
	return append(make([]string, 0, len(m)), slices.Sorted(maps.Keys(m))...)
}

func (g *Gateway) getAgent(w http.ResponseWriter, r *http.Request) error {
	ref := r.PathValue("ref")
	d, err := g.o.Directory.Get(r.Context(), ref)
	if err != nil {
		return err
	}
	g.o.Presence.Look(r.Context(), d)
	g.o.Directory.VerifyMembers(r.Context(), d)
	record := d.Signed.Record
	if whole, err := d.Signed.WithInlineTD(); err == nil { // the directory stores records without the TD
		record = whole.Record
	}
	detail := api.AgentDetail{APIVersion: api.APIVersion, Kind: "Agent", Agent: g.agent(r.Context(), d), MovedFrom: movedFrom(ref, d),
		Namesakes: g.o.Directory.Namesakes(r.Context(), ref, d, maxNamesakes), TD: d.Raw, Record: record, Warnings: g.o.Status.ResultWarnings(),
		Signature: api.Signature{
			// A Description exists only after its record and proof were verified.
			Verified: true,
			Method:   d.ProofMethod, Suite: "eddsa-jcs-2022", Created: d.ProofCreated.UTC(),
			Seq: d.Record.Seq, Hash: hex.EncodeToString(d.Record.Hash[:]), Size: len(d.Raw),
		}}
	if e, ok := g.o.Status.Equivocation(d.Record); ok {
		detail.Agent.Equivocation = equivocation(e)
		detail.Agent.Equivocation.Records = e.Records[:]
	}
	return writeJSON(w, http.StatusOK, detail)
}

// movedFrom returns ref if it names another owner than that of the Thing it resolved to.
func movedFrom(ref string, d *td.Description) string {
	if td.ParseRef(ref).Owns(d.Record.Owner) {
		return ""
	}
	return ref
}

// A findRequest is a parsed GET /v1/find.
type findRequest struct {
	query   td.Query
	timeout time.Duration
	explain bool

	strategy td.Strategy // empty: ranked
	trust    api.Trust   // of Things in the order of a call; empty: another order
	limit    int         // of the response, if the request selects among more Things
}

// selects reports whether the request selects among all matching Things.
func (f *findRequest) selects() bool { return f.strategy != "" || f.trust != "" }

// parseFind reads the query of GET /v1/find.
func parseFind(r *http.Request) (f findRequest, err error) {
	v, err := tdd.Params(r, "capability", "version", "type", "action", "property", "event", "owner", "organization", "claimed", "host", "protocol",
		"id", "name", "q", "limit", "timeout", "explain", "strategy", "order", "trust")
	if err != nil {
		return f, err
	}
	if f.query, err = parseQuery(v, maxFind); err != nil {
		return f, err
	}
	if f.explain, err = tdd.Flag(v, "explain", false); err != nil {
		return f, err
	}
	if f.strategy, err = strategyOf(v.Get("strategy"), f.query); err != nil {
		return f, err
	}
	if f.trust, err = trustOf(v, f); err != nil {
		return f, err
	}
	f.timeout, err = duration(v, "timeout", maxFindTime, findTime)
	return f, err
}

// parseQuery reads the parameters of a query. Parameter q is free text ([querytext.Parse]); the others apply to all of its alternatives. The limit is
// 0 if it is absent.
func parseQuery(v url.Values, maxLimit int) (q td.Query, err error) {
	common := td.Query{Capability: v["capability"], Version: v.Get("version"), ID: v.Get("id"), Name: v.Get("name"), Action: v.Get("action"),
		Property: v.Get("property"), Event: v.Get("event"), Type: v.Get("type"), Organization: v.Get("organization"), Protocol: v.Get("protocol")}
	if err := checkTerms(common); err != nil {
		return q, err
	}
	if common.Owner, err = parseDID(v, "owner"); err != nil {
		return q, err
	}
	if common.Host, err = parseDID(v, "host"); err != nil {
		return q, err
	}
	if common.Limit, err = tdd.Integer(v, "limit", 1, maxLimit, 0); err != nil {
		return q, err
	}
	if q, err = querytext.Parse(v.Get("q"), common); err != nil {
		return q, interact.Errorf(interact.Usage, "for example q=weather type:agent OR capability:urn:example:weather", "q: %v", err)
	}
	claimed, err := tdd.Flag(v, "claimed", false)
	if err != nil {
		return q, err
	}
	for part := range q.Parts() {
		part.Claimed = claimed
	}
	return q, nil
}

// strategyOf reads the strategy that orders the versions of a capability.
func strategyOf(name string, q td.Query) (td.Strategy, error) {
	s := td.Strategy(strings.ToUpper(name))
	switch {
	case s != "" && s != td.Highest && s != td.MostSimilar:
		return "", interact.Errorf(interact.Usage, "strategy=HIGHEST or strategy=MOST_SIMILAR", "unknown strategy %q", tdd.Clip(name))
	case s != "" && (len(q.Capability) != 1 || len(q.Or) > 0):
		return "", interact.Errorf(interact.Usage, "for example capability=urn:example:weather&version=^1&strategy=HIGHEST",
			"a strategy requires exactly one capability")
	}
	return s, nil
}

func checkTerms(q td.Query) error {
	if len(q.Capability) > maxTerms {
		return interact.Errorf(interact.Usage, "use fewer", "the query has %d capabilities, the limit is %d",
			len(q.Capability), maxTerms)
	}
	for _, c := range q.Capability {
		if _, ok := td.Normal(c); !ok {
			return interact.Errorf(interact.Usage, "for example urn:example:weather:forecast",
				"the capability %q is empty or has more than %d bytes", tdd.Clip(c), td.MaxCapability)
		}
	}
	if _, err := td.ParseRange(q.Version); q.Version != "" && err != nil {
		return interact.Errorf(interact.Usage, "version=^1.2", "version: %v", err)
	}
	for name, value := range map[string]string{"id": q.ID, "name": q.Name, "action": q.Action, "property": q.Property, "event": q.Event,
		"type": q.Type, "organization": q.Organization, "protocol": q.Protocol} {
		if len(value) > td.MaxID {
			return interact.Errorf(interact.Usage, "shorten it", "%s has %d bytes, the limit is %d", name, len(value), td.MaxID)
		}
	}
	return nil
}

// parseDID reads a DID, or the key part of a did:key.
func parseDID(v url.Values, name string) (did.DID, error) {
	s := v.Get(name)
	if s == "" {
		return "", nil
	}
	if !strings.HasPrefix(s, "did:") {
		s = "did:key:" + s
	}
	id, err := did.Parse(s)
	if err != nil {
		return "", interact.Errorf(interact.Usage, name+"=did:key:z6Mk…", "%s is %q: %v", name, tdd.Clip(s), err)
	}
	return id, nil
}

// duration reads a positive duration of at most high; fallback if it is absent.
func duration(q url.Values, name string, high, fallback time.Duration) (time.Duration, error) {
	if !q.Has(name) {
		return fallback, nil
	}
	d, err := time.ParseDuration(q.Get(name))
	if err != nil || d <= 0 || d > high {
		return 0, interact.Errorf(interact.Usage, name+"="+fallback.String(), "%s is %q; expected a duration with a unit, up to %s",
			name, tdd.Clip(q.Get(name)), high)
	}
	return d, nil
}
