package gateway

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
)

// Route selects the agent that the task names, and repeats the request.
func (n *fakeNode) Route(_ context.Context, q route.Request) (*route.Decision, error) {
	if q.Message == "" {
		return nil, interact.Errorf(interact.Usage, "send a message", "the task is missing")
	}
	d := &route.Decision{Candidates: []route.Candidate{}, Method: q.Method, Reason: q.Filter.String()}
	if q.All {
		d.Reason = "all"
	}
	if strings.Contains(q.Message, "weather") {
		d.Agent = &route.Candidate{ID: "urn:x:weather", Name: "weather", Score: 1}
	}
	return d, nil
}

func TestRoute(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(), Options{}))
	c := dial(t, r.url, "")
	got, err := c.Route(t.Context(), api.RouteRequest{Message: "what is the weather", Method: string(route.Vector), Among: "type:agent NOT b"})
	if err != nil || got.Kind != "Route" || got.Agent == nil || got.Agent.ID != "urn:x:weather" || got.Method != string(route.Vector) ||
		got.Reason != "type:agent NOT b" {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = c.Route(t.Context(), api.RouteRequest{Message: "all weather", Among: " All"})
	if err != nil || got.Agent == nil || got.Reason != "all" {
		t.Errorf("of all: %+v, %v", got, err)
	}
	got, err = c.Route(t.Context(), api.RouteRequest{Message: "sing", History: []api.Turn{{Role: "USER", Content: "Hello"}}})
	if err != nil || got.Agent != nil || got.Candidates == nil {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, q := range map[string]struct {
		body, media string
		code        string
	}{
		"no message":        {`{}`, "application/json", "LMOS-2000"},
		"not JSON":          {`show my bill`, "application/json", "LMOS-1400"},
		"unknown member":    {`{"message":"x","agent":"y"}`, "application/json", "LMOS-1400"},
		"two values":        {`{"message":"x"}{}`, "application/json", "LMOS-1400"},
		"a further bracket": {`{"message":"x"}}`, "application/json", "LMOS-1400"},
		"invalid filter":    {`{"message":"x","among":"a OR"}`, "application/json", "LMOS-2000"},
		"another type":      {`x`, "text/plain", "LMOS-1415"},
		"more than a MiB":   {`{"message":"` + strings.Repeat("x", maxRoute) + `"}`, "application/json", "LMOS-1413"},
		"empty body":        {``, "application/json", "LMOS-1400"},
		"an array":          {`[]`, "application/json", "LMOS-1400"},
	} {
		resp, err := http.Post(r.url+"/v1/route", q.media, bytes.NewReader([]byte(q.body)))
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		_, _ = text.ReadFrom(resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 400 || !strings.Contains(text.String(), q.code) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text.String())
		}
	}
}
