package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
)

// maxRoute limits the body of POST /v1/route, in bytes.
const maxRoute = 1 << 20

// route selects an agent for a task.
func (g *Gateway) route(w http.ResponseWriter, r *http.Request) error {
	q, err := g.readRoute(w, r)
	if err != nil {
		return err
	}
	start := time.Now()
	d, err := g.o.Router.Route(r.Context(), q)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, routeAnswer(d, time.Since(start)))
}

// routeAnswer converts a decision to its form in the API.
func routeAnswer(d *route.Decision, took time.Duration) *api.RouteAnswer {
	a := &api.RouteAnswer{APIVersion: api.APIVersion, Kind: "Route", Candidates: make([]api.Candidate, 0, len(d.Candidates)),
		Method: string(d.Method), TieBreak: string(d.TieBreak), Reason: d.Reason, Took: api.Milliseconds(took)}
	if d.Agent != nil {
		c := candidate(*d.Agent)
		a.Agent = &c
	}
	for _, c := range d.Candidates {
		a.Candidates = append(a.Candidates, candidate(c))
	}
	return a
}

func candidate(c route.Candidate) api.Candidate {
	shown := api.Candidate{ID: c.ID, Name: c.Name, Score: c.Score, Capabilities: make([]api.CandidateCapability, 0, len(c.Capabilities))}
	for _, one := range c.Capabilities {
		shown.Capabilities = append(shown.Capabilities, api.CandidateCapability(one))
	}
	return shown
}

func (g *Gateway) readRoute(w http.ResponseWriter, r *http.Request) (q route.Request, err error) {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return q, err
	}
	raw, err := problem.ReadBody(w, r, maxRoute)
	if err != nil {
		return q, err
	}
	const example = `for example {"message": "show my bill"}`
	var body api.RouteRequest
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err = d.Decode(&body)
	if _, end := d.Token(); err == nil && end != io.EOF {
		err = errors.New("expected one JSON value")
	}
	if err != nil {
		return q, &interact.Error{Code: interact.Invalid, Title: "the body is not a route request", Hint: example, Err: err}
	}
	q = route.Request{Message: body.Message, Method: route.Method(body.Method)}
	for _, t := range body.History {
		q.History = append(q.History, route.Turn(t))
	}
	if strings.EqualFold(strings.TrimSpace(body.Among), api.AmongAll) {
		q.All = true
		return q, nil
	}
	if q.Filter, err = querytext.Parse(body.Among, td.Query{}); err != nil {
		return q, interact.Errorf(interact.Usage, "for example type:agent capability:urn:example:billing", "among: %v", err)
	}
	return q, nil
}
