package gateway

import (
	"context"
	"encoding/hex"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Limits of a search.
const (
	findTime    = 2 * time.Second // if none is given
	maxFindTime = time.Minute
	maxFind     = 1000 // things in an answer
	maxTerms    = 16   // capabilities in a question
)

// agentMethods are the methods of /v1/agents/{ref}.
func (g *Gateway) agentMethods() map[string]http.Handler {
	return map[string]http.Handler{
		http.MethodGet:    g.guarded(read, g.getAgent),
		http.MethodDelete: g.guarded(admin, g.deleteAgent),
	}
}

// find answers a search with what was found in time, and how complete that is.
func (g *Gateway) find(w http.ResponseWriter, r *http.Request) error {
	q, timeout, err := parseFind(r)
	if err != nil {
		return err
	}
	start := time.Now()
	list := AgentList{APIVersion: APIVersion, Kind: "AgentList", Items: []Agent{}}
	q.Tally = new(td.Tally)
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	for d, err := range g.o.Node.Find(ctx, q) {
		switch {
		case err == nil:
			list.Items = append(list.Items, g.agent(d))
		case r.Context().Err() == nil && interact.AsError(err).Code == interact.Timeout:
			q.Tally.Truncate() // our own deadline: what came in time is the answer
		default:
			return err
		}
	}
	list.Coverage = q.Tally.Coverage()
	list.Took = milliseconds(time.Since(start))
	g.metrics.found(time.Since(start))
	return writeJSON(w, http.StatusOK, list)
}

// agent returns d as lists show it.
func (g *Gateway) agent(d *td.Description) Agent {
	a := Agent{
		ID: d.ID, Ref: d.Ref(), Name: d.Name(), Title: d.Title, Description: d.Thing.Description, Owner: d.Record.Owner,
		Hosts: make([]did.DID, 0, len(d.Record.Hosts)), Capabilities: make([]string, 0, len(d.Capabilities)),
		Actions: names(d.Actions), Properties: names(d.Properties),
		Local: g.o.Node.Hosted(d), Seen: d.Record.Issued.UTC(), Expires: d.Record.Expires.UTC(),
	}
	a.Reachable = a.Local || g.o.Node.Reachable(d)
	for _, h := range d.Record.Hosts {
		a.Hosts = append(a.Hosts, h.Node)
	}
	for _, c := range d.Capabilities {
		a.Capabilities = append(a.Capabilities, c.ID)
	}
	return a
}

// names returns the sorted names of affordances, never nil.
func names[T any](m map[string]T) []string {
	return append(make([]string, 0, len(m)), slices.Sorted(maps.Keys(m))...)
}

func (g *Gateway) getAgent(w http.ResponseWriter, r *http.Request) error {
	d, err := g.o.Node.Get(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, AgentDetail{APIVersion: APIVersion, Kind: "Agent", Agent: g.agent(d), TD: d.Raw, Record: d.Signed.Record,
		Signature: Signature{
			// A Description exists only if its record and proof verified.
			Verified: true,
			Method:   d.ProofMethod, Suite: "eddsa-jcs-2022", Created: d.ProofCreated.UTC(),
			Seq: d.Record.Seq, Hash: hex.EncodeToString(d.Record.Hash[:]), Size: len(d.Raw),
		}})
}

func (g *Gateway) deleteAgent(w http.ResponseWriter, r *http.Request) error {
	p, err := g.o.Node.Unpublish(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	p.APIVersion, p.Kind, p.Withdrawn = APIVersion, "Publication", true
	return writeJSON(w, http.StatusOK, p)
}

// parseFind reads the query of GET /v1/find.
func parseFind(r *http.Request) (q td.Query, timeout time.Duration, err error) {
	v, err := params(r, "capability", "type", "action", "owner", "id", "q", "limit", "timeout")
	if err != nil {
		return q, 0, err
	}
	q = td.Query{Capability: v["capability"], ID: v.Get("id"), Action: v.Get("action"), Type: v.Get("type"),
		Text: v.Get("q")}
	if err := checkTerms(q); err != nil {
		return q, 0, err
	}
	if q.Owner, err = owner(v.Get("owner")); err != nil {
		return q, 0, err
	}
	if q.Limit, err = whole(v, "limit", 1, maxFind, 0); err != nil {
		return q, 0, err
	}
	timeout, err = duration(v, "timeout", maxFindTime, findTime)
	return q, timeout, err
}

func checkTerms(q td.Query) error {
	if len(q.Capability) > maxTerms {
		return interact.Errorf(interact.Usage, "ask for fewer", "%d capabilities are asked for, %d are possible",
			len(q.Capability), maxTerms)
	}
	for _, c := range q.Capability {
		if _, ok := td.Normal(c); !ok {
			return interact.Errorf(interact.Usage, "a capability looks like urn:example:weather:forecast",
				"%q is no capability: it is empty or has more than %d bytes", clip(c), td.MaxCapability)
		}
	}
	for name, value := range map[string]string{"id": q.ID, "action": q.Action, "type": q.Type, "q": q.Text} {
		if len(value) > td.MaxID {
			return interact.Errorf(interact.Usage, "ask for less", "%s has %d bytes, %d are possible", name,
				len(value), td.MaxID)
		}
	}
	return nil
}

// owner reads a DID, or the key part of a did:key.
func owner(s string) (did.DID, error) {
	if s == "" {
		return "", nil
	}
	if !strings.HasPrefix(s, "did:") {
		s = "did:key:" + s
	}
	id, err := did.Parse(s)
	if err != nil {
		return "", interact.Errorf(interact.Usage, "owner=did:key:z6Mk…", "owner is %q: %s", clip(s), clip(err.Error()))
	}
	return id, nil
}

// params reads the query of r. A parameter that the route does not know is an error: ignoring it would answer another
// question (WoT Discovery §7.3.1). Only capability may repeat.
func params(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, interact.Errorf(interact.Usage, "percent-encode its values", "the query cannot be read: %v", err)
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, interact.Errorf(interact.Usage, "known are "+strings.Join(known, ", "),
				"the parameter %q is not known here", clip(name))
		}
		if len(values) > 1 && name != "capability" {
			return nil, interact.Errorf(interact.Usage, "give it once", "the parameter %q is given %d times", name,
				len(values))
		}
	}
	return q, nil
}

// whole reads a whole number between low and high; absent is otherwise.
func whole(q url.Values, name string, low, high, otherwise int) (int, error) {
	if !q.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < low || n > high {
		return 0, interact.Errorf(interact.Usage, name+"="+strconv.Itoa(max(low, 10)),
			"%s is %q; it must be a number from %d to %d",
			name, clip(q.Get(name)), low, high)
	}
	return n, nil
}

// duration reads a positive duration of at most high; absent is otherwise.
func duration(q url.Values, name string, high, otherwise time.Duration) (time.Duration, error) {
	if !q.Has(name) {
		return otherwise, nil
	}
	d, err := time.ParseDuration(q.Get(name))
	if err != nil || d <= 0 || d > high {
		return 0, interact.Errorf(interact.Usage, name+"="+otherwise.String(),
			"%s is %q; it must be a duration up to %s, with a unit",
			name, clip(q.Get(name)), high)
	}
	return d, nil
}
