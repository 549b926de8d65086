package gateway

import (
	"context"
	"net/http"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxCallList limits the calls in a list: all that the journal has.
const maxCallList = 500

// listCalls returns the last interactions of consumers of this node, newest first, with those that run.
func (g *Gateway) listCalls(w http.ResponseWriter, r *http.Request) error {
	v, err := tdd.Params(r, "limit", "code", "thing", "trace")
	if err != nil {
		return err
	}
	limit, err := tdd.Integer(v, "limit", 1, maxCallList, maxCallList)
	if err != nil {
		return err
	}
	code := v.Get("code")
	if code != "" {
		parsed, ok := interact.ParseCode(code)
		if !ok {
			return interact.Errorf(interact.Usage, "for example code="+interact.Unreachable.String(), "unknown error code %q", tdd.Clip(code))
		}
		code = parsed.String()
	}
	thing, trace := v.Get("thing"), v.Get("trace")
	list := api.CallList{APIVersion: api.APIVersion, Kind: "CallList", Items: []api.Call{}}
	names := map[string]string{}
	for _, c := range g.journal.Calls() {
		if code != "" && c.Code != code || trace != "" && c.TraceID != trace {
			continue
		}
		if c.Name = g.nameOf(r.Context(), c.Thing, names); thing != "" && c.Thing != thing && c.Name != thing && td.ParseRef(c.Thing).Name != thing {
			continue
		}
		if list.Items = append(list.Items, c); len(list.Items) == limit {
			break
		}
	}
	return writeJSON(w, http.StatusOK, list)
}

// getCall returns one interaction.
func (g *Gateway) getCall(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("ref")
	for _, c := range g.journal.Calls() {
		if c.ID == id {
			c.APIVersion, c.Kind, c.Name = api.APIVersion, "Call", g.nameOf(r.Context(), c.Thing, map[string]string{})
			return writeJSON(w, http.StatusOK, c)
		}
	}
	return interact.Errorf(interact.NotFound, "the node keeps the last 500 calls: see GET /v1/calls", "no call %q is kept", tdd.Clip(id))
}

// nameOf returns the name of a Thing in the index, or "". It sends no request.
func (g *Gateway) nameOf(ctx context.Context, ref string, names map[string]string) string {
	name, ok := names[ref]
	if ok {
		return name
	}
	parsed := td.ParseRef(ref)
	for _, item := range g.o.Directory.Lookup(ctx, parsed.Name) {
		if d := item.Describe(); parsed.Match(d) {
			name = d.Name()
			break
		}
	}
	names[ref] = name
	return name
}
