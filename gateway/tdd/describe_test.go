package tdd

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/td"
)

// The TD of the directory (WoT Discovery §7.3.4) is valid and has all affordances of the Thing Model.
func TestAffordances(t *testing.T) {
	t.Parallel()
	describe := func(change string, changes bool) *td.Thing {
		t.Helper()
		doc := map[string]any{"@context": []any{td.Context10, td.Context11, td.ContextDiscovery}, "@type": "ThingDirectory",
			"id": "urn:x:directory", "title": "Directory",
			"security": []any{"nosec_sc"}, "securityDefinitions": map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"},
				"token": map[string]any{"scheme": "bearer"}}}
		maps.Copy(doc, Affordances("http://127.0.0.1:4668", change, changes))
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		thing, err := td.Parse(raw)
		if err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
		for _, issue := range thing.Warnings {
			if !strings.HasPrefix(issue.Pointer, "/events/") { // the specification defines them only as named server-sent events
				t.Error(issue)
			}
		}
		return thing
	}
	d := describe("token", true)
	if got := strings.Join(slices.Sorted(maps.Keys(d.Actions)),
		" "); got != "createAnonymousThing createThing deleteThing partiallyUpdateThing "+
		"retrieveThing searchJSONPath searchXPath updateThing" {
		t.Errorf("actions: %s", got)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(d.Events)), " "); got != "thingCreated thingDeleted thingUpdated" {
		t.Errorf("events: %s", got)
	}
	list := d.Properties["things"]
	if f := list.Forms[0]; f.Href != "http://127.0.0.1:4668/things{?offset,limit,format}" ||
		!slices.Equal(f.Ops, []string{"readproperty"}) || len(list.URIVariables) != 3 {
		t.Errorf("things: %+v", f)
	}
	for name, a := range d.Actions {
		f := a.Forms[0]
		if secured := slices.Equal(f.Security, []string{"token"}); secured != (f.HTTPMethod != "GET") || f.ResponseType == "" ||
			a.Synchronous == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if less := describe("", false); len(less.Actions) != 3 {
		t.Errorf("read only: %v", less.Actions)
	}
	// The server supports all its forms.
	w := newFixture(t)
	w.add("urn:x:a", "A")
	for name, a := range d.Actions {
		f := a.Forms[0]
		path := strings.NewReplacer("http://127.0.0.1:4668", "", "{id}", "urn:x:a", "{query}", "none").Replace(f.Href)
		rec := w.do(t, exchange{method: f.HTTPMethod, path: path, status: -1})
		if rec.Code == 404 || rec.Code == 405 {
			t.Errorf("%s: %s %s is %d", name, f.HTTPMethod, path, rec.Code)
		}
		if name == "deleteThing" {
			w.add("urn:x:a", "A")
		}
	}
}
