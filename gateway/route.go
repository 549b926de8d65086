package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxRoute bounds the body of POST /v1/route, in bytes.
const maxRoute = 1 << 20

// route picks an agent for a task.
func (g *Gateway) route(w http.ResponseWriter, r *http.Request) error {
	q, err := g.readRoute(w, r)
	if err != nil {
		return err
	}
	start := time.Now()
	d, err := g.o.Node.Route(r.Context(), q)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, RouteAnswer{APIVersion: APIVersion, Kind: "Route", Decision: d, Took: milliseconds(time.Since(start))})
}

func (g *Gateway) readRoute(w http.ResponseWriter, r *http.Request) (q route.Question, err error) {
	if err := contentType(r, interact.JSON); err != nil {
		return q, err
	}
	raw, err := readBody(w, r, maxRoute)
	if err != nil {
		return q, err
	}
	const example = `for example {"message": "show my bill"}`
	var body RouteRequest
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || d.More() {
		return q, &interact.Error{Code: interact.Invalid, Title: "the body is no task", Hint: example, Err: err}
	}
	q = route.Question{Message: body.Message, History: body.History, Method: body.Method}
	if strings.EqualFold(strings.TrimSpace(body.Among), AmongAll) {
		q.All = true
		return q, nil
	}
	if q.Among, err = td.ParseQuery(body.Among, td.Query{}); err != nil {
		return q, interact.Errorf(interact.Usage, "for example type:agent capability:urn:example:billing", "among: %v", err)
	}
	return q, nil
}
