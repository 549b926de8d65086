package rest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func readSeveral(names string) *interact.Message {
	return &interact.Message{Type: interact.ReadMultipleProperties, Thing: "thing", ID: "1", Data: []byte(names)}
}

func readAll() *interact.Message {
	return &interact.Message{Type: interact.ReadAllProperties, Thing: "thing", ID: "1"}
}

func writeSeveral(values string) *interact.Message {
	return &interact.Message{Type: interact.WriteMultipleProperties, Thing: "thing", ID: "1", Data: []byte(values)}
}

// byPath responds with the value for the path, or 404.
func byPath(values map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := values[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if text, ok := strings.CutPrefix(v, "text:"); ok {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte(text))
			return
		}
		responds(v)(w, r)
	}
}

func TestReadAllByTheFormOfTheThing(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`{"a":1}`))
	thing := describe(t, agent.URL, lamp+`, "forms": [{"href": "BASE/all", "op": ["readallproperties"]}]`)
	got, err := ask(t, newClient(t, Options{}), thing, readAll())
	if err != nil {
		t.Fatal(err)
	}
	if got.Type != interact.PropertyReadings || string(got.Data) != `{"a":1}` || got.Time.IsZero() {
		t.Errorf("got %+v %s", got, got.Data)
	}
	if r := agent.last(t); r.method != "GET" || r.path != "/all" || len(agent.requests()) != 1 {
		t.Errorf("received %+v", agent.requests())
	}
}

func TestReadAllOneByOne(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, byPath(map[string]string{"/power": "true", "/level": "5", "/note": "text:hi \"you\"",
		"/none": "null"}))
	thing := describe(t, agent.URL, `"properties": {
		"power":  {"type": "boolean", "forms": [{"href": "BASE/power"}]},
		"level":  {"type": "integer", "forms": [{"href": "BASE/level"}]},
		"none":   {"forms": [{"href": "BASE/none"}]},
		"note":   {"type": "string", "forms": [{"href": "BASE/note", "contentType": "text/plain"}]},
		"secret": {"type": "string", "writeOnly": true, "forms": [{"href": "BASE/secret"}]},
		"image":  {"forms": [{"href": "BASE/image", "contentType": "image/png"}]},
		"room":   {"uriVariables": {"room": {"type": "string"}}, "forms": [{"href": "BASE/rooms/{room}"}]},
		"mqtt":   {"forms": [{"href": "mqtt://broker.example/p"}]}}`)
	got, err := ask(t, newClient(t, Options{}), thing, readAll())
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"level":5,"none":null,"note":"hi \"you\"","power":true}`; string(got.Data) != want {
		t.Errorf("got %s, want %s", got.Data, want)
	}
}

func TestReadAllFailsIfOneFails(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, byPath(map[string]string{"/power": "true"}))
	_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, lamp), readAll())
	wantError(t, err, interact.AgentFailed)
}

func TestReadMultiple(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, byPath(map[string]string{"/power": "true", "/level": "5", "/serial": `"x"`}))
	c, thing := newClient(t, Options{}), describe(t, agent.URL, lamp)
	got, err := ask(t, c, thing, readSeveral(`["serial","level"]`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"level":5,"serial":"x"}`; string(got.Data) != want || got.Type != interact.PropertyReadings {
		t.Errorf("got %s", got.Data)
	}
	if _, err := ask(t, c, thing, readSeveral(`["level"`+strings.Repeat(`,"level"`, 1000)+`]`)); err != nil {
		t.Error(err)
	}
	if n := len(agent.requests()); n != 3 {
		t.Errorf("one name a thousand times: the agent received %d requests, want 3 with the two before", n)
	}
	before := len(agent.requests())
	for names, code := range map[string]interact.Code{
		`["serial","leve"]`:   interact.NoAffordance,
		`["serial","secret"]`: interact.NotAllowed,
		`[]`:                  interact.Invalid,
		`{"a":1}`:             interact.Invalid,
		``:                    interact.Invalid,
		`[1]`:                 interact.Invalid,
	} {
		_, err := ask(t, c, thing, readSeveral(names))
		wantError(t, err, code)
	}
	if after := len(agent.requests()); after != before {
		t.Errorf("the agent received %d requests for what does not fit", after-before)
	}
}

func TestReadMultipleByTheFormOfTheThing(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, byPath(map[string]string{"/some": `{"power":true}`, "/power": "true"}))
	c := newClient(t, Options{})
	posted := describe(t, agent.URL, lamp+`, "forms": [{"href": "BASE/some", "op": ["readmultipleproperties"],
		"htv:methodName": "POST"}]`)
	if got, err := ask(t, c, posted, readSeveral(`["power"]`)); err != nil || string(got.Data) != `{"power":true}` {
		t.Fatalf("got %v, %v", got, err)
	}
	if r := agent.last(t); r.path != "/some" || r.body != `["power"]` {
		t.Errorf("got %+v", r)
	}
	// A GET has no body for the names: each property is read.
	got := describe(t, agent.URL, lamp+`, "forms": [{"href": "BASE/some", "op": ["readmultipleproperties"]}]`)
	if _, err := ask(t, c, got, readSeveral(`["power"]`)); err != nil {
		t.Fatal(err)
	}
	if r := agent.last(t); r.path != "/power" {
		t.Errorf("got %+v", r)
	}
}

func TestBinaryPropertyIsNotReadTogether(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/png")
		_, _ = w.Write([]byte{1})
	})
	thing := describe(t, agent.URL, `"properties": {"image": {"forms": [{"href": "BASE/image",
		"contentType": "image/png"}]}}`)
	_, err := ask(t, newClient(t, Options{}), thing, readSeveral(`["image"]`))
	wantError(t, err, interact.NotAllowed)
}

func TestWriteMultiple(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c := newClient(t, Options{})
	got, err := ask(t, c, describe(t, agent.URL, lamp), writeSeveral(`{"power":true,"level":5}`))
	if err != nil || got.Type != interact.Acknowledgement || len(got.Data) != 0 {
		t.Fatalf("got %v, %v", got, err)
	}
	all := agent.requests()
	if len(all) != 2 || all[0].path != "/level/set" || all[0].body != "5" || all[1].path != "/power" ||
		all[1].body != "true" {
		t.Errorf("received %+v", all)
	}

	whole := describe(t, agent.URL, lamp+`, "forms": [{"href": "BASE/all", "op": ["writemultipleproperties"]}]`)
	if _, err := ask(t, c, whole, writeSeveral(`{"power":true,"level":5}`)); err != nil {
		t.Fatal(err)
	}
	if r := agent.last(t); r.method != "PUT" || r.path != "/all" || r.body != `{"power":true,"level":5}` {
		t.Errorf("received %+v", r)
	}
}

func TestWriteMultipleChecksAllBeforeTheFirst(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	c, thing := newClient(t, Options{}), describe(t, agent.URL, lamp)
	for values, code := range map[string]interact.Code{
		`{"power":true,"level":500}`:  interact.Invalid,
		`{"power":true,"serial":"x"}`: interact.NotAllowed,
		`{"power":true,"other":1}`:    interact.NoAffordance,
		`{}`:                          interact.Invalid,
		`[1]`:                         interact.Invalid,
		`{"power":true,"power":true}`: interact.Invalid,
		``:                            interact.Invalid,
	} {
		_, err := ask(t, c, thing, writeSeveral(values))
		wantError(t, err, code)
	}
	_, err := ask(t, c, thing, writeSeveral(`{"power":1,"level":500}`))
	e := wantError(t, err, interact.Invalid)
	if len(e.Issues) != 2 || e.Issues[0].Pointer != "/level" || e.Issues[1].Pointer != "/power" {
		t.Errorf("issues %v", e.Issues)
	}
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
}

func TestWriteMultipleListsWrittenProperties(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/power" {
			http.Error(w, "stuck", http.StatusInternalServerError)
		}
	})
	_, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, lamp), writeSeveral(`{"power":true,"level":5}`))
	e := wantError(t, err, interact.AgentFailed)
	for _, want := range []string{"power was not written", "written before: level", "stuck"} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q is missing in %v", want, e)
		}
	}
}

func TestWriteReturnsTheOutputOfTheAgent(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`42`)) // it stored another value than it received
	got, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, lamp), write("level", "41"))
	if err != nil || string(got.Data) != "42" {
		t.Errorf("got %v, %v", got, err)
	}
	agent.answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("OK")) }
	got, err = ask(t, newClient(t, Options{}), describe(t, agent.URL, lamp), write("level", "41"))
	if err != nil || len(got.Data) != 0 {
		t.Errorf("an invalid JSON body: got %v, %v", got, err)
	}
}

func TestWriteAll(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c := newClient(t, Options{})
	const members = `"properties": {
		"a": {"type": "integer", "forms": [{"href": "BASE/a"}]},
		"b": {"type": "string", "forms": [{"href": "BASE/b"}]},
		"r": {"readOnly": true, "forms": [{"href": "BASE/r"}]}}`
	all := func() *interact.Message {
		return &interact.Message{Type: interact.WriteAllProperties, Thing: "thing", ID: "1", Key: "k", Data: []byte(`{"b":"x","a":1}`)}
	}
	form := func(ops string) string { return members + `, "forms": [{"href": "BASE/all", "op": [` + ops + `]}]` }
	for name, tt := range map[string]struct{ members, want string }{
		"by its form":                {form(`"writeallproperties"`), `PUT /all {"b":"x","a":1}`},
		"by the form for several":    {form(`"writemultipleproperties"`), `PUT /all {"b":"x","a":1}`},
		"one by one":                 {members, `PUT /a 1 PUT /b "x"`},
		"by no form that only reads": {form(`"readallproperties"`), `PUT /a 1 PUT /b "x"`},
	} {
		before := len(agent.requests())
		got, err := ask(t, c, describe(t, agent.URL, tt.members), all())
		reply := interact.Acknowledgement
		if strings.Contains(tt.want, "/all") {
			reply = interact.PropertyReadings
		}
		if err != nil || got.Type != reply {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
		var asked []string
		for _, r := range agent.requests()[before:] {
			asked = append(asked, r.method+" "+r.path+" "+r.body)
			if key := r.header.Get("Idempotency-Key"); key != "" && r.path != "/all" {
				t.Errorf("%s: two requests have one key", name)
			}
		}
		if strings.Join(asked, " ") != tt.want {
			t.Errorf("%s: received %s", name, asked)
		}
	}
	_, err := ask(t, c, describe(t, agent.URL, members), &interact.Message{Type: interact.WriteAllProperties,
		Data: []byte(`{"a":1}`)})
	if e := wantError(t, err, interact.Invalid); len(e.Issues) != 1 || e.Issues[0].Pointer != "/b" {
		t.Errorf("got %s", everything(e))
	}
	// Several are not all: the form for all is not theirs.
	if _, err := ask(t, c, describe(t, agent.URL, form(`"writeallproperties"`)), writeSeveral(`{"a":1}`)); err != nil ||
		agent.last(t).path != "/a" {
		t.Errorf("got %v, received %s", err, agent.last(t).path)
	}
}

func TestSeveralPropertiesInCBOR(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/cbor")
		_, _ = w.Write([]byte{0x18, 0x2a})
	})
	c := newClient(t, Options{})
	thing := describe(t, agent.URL, `"properties": {
		"a": {"type": "integer", "forms": [{"href": "BASE/a", "contentType": "application/cbor"}]},
		"b": {"type": "integer", "forms": [{"href": "BASE/b", "contentType": "application/cbor"}, {"href": "BASE/json"}]}}`)
	m := readSeveral("\x81\x61a") // ["a"]
	m.ContentType = "application/cbor"
	if got, err := ask(t, c, thing, m); err != nil || string(got.Data) != `{"a":42}` {
		t.Errorf("got %v, %v", got, err)
	}
	agent.answer = byPath(map[string]string{"/json": "7"})
	if got, err := ask(t, c, thing, readSeveral(`["b"]`)); err != nil || string(got.Data) != `{"b":7}` {
		t.Errorf("got %v, %v", got, err)
	}
	agent.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	w := writeSeveral("\xa1\x61a\x01")
	w.ContentType = "application/cbor"
	if _, err := ask(t, c, thing, w); err != nil || agent.last(t).body != "\x01" || agent.last(t).path != "/a" {
		t.Errorf("wrote %+v, %v", agent.last(t), err)
	}
}

func TestSeveralValuesWithVariables(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c, thing := newClient(t, Options{}), describe(t, agent.URL, rooms)
	if _, err := ask(t, c, thing, writeSeveral(`{"heat":{"room":"hall","value":21.5}}`)); err != nil {
		t.Fatal(err)
	}
	if r := agent.last(t); r.path != "/heat/hall" || r.body != "21.5" {
		t.Errorf("wrote %+v", r)
	}
	_, err := ask(t, c, thing, writeSeveral(`{"heat":{"room":"hall","value":"hot"},"light":{"room":5}}`))
	e := wantError(t, err, interact.Invalid)
	if len(e.Issues) != 2 || e.Issues[0].Pointer != "/heat" || e.Issues[1].Pointer != "/light/room" {
		t.Errorf("got %s", everything(e))
	}
	if n := len(agent.requests()); n != 1 {
		t.Errorf("the agent received %d requests", n)
	}
}

func TestUnusableThingForm(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, byPath(map[string]string{"/power": "true", "/level": "1", "/serial": `"x"`}))
	thing := describe(t, agent.URL, `"securityDefinitions": {"nosec_sc": {"scheme": "nosec"}, "sc": {"scheme": "bearer"}},
		"security": ["nosec_sc"], `+
		lamp+`, "forms": [{"href": "BASE/all", "op": ["readallproperties"], "security": ["sc"]}]`)
	got, err := ask(t, newClient(t, Options{}), thing, readAll())
	if err != nil || string(got.Data) != `{"level":1,"power":true,"serial":"x"}` {
		t.Errorf("got %v, %v", got, err)
	}
}
