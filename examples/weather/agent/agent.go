// Package agent is a plain HTTP server with a W3C Thing Description; it does not use lmosd. It is made for examples and tests: its
// weather comes from a table, so that the same question has the same answer.
package agent

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// defaultBase is the address in the embedded TD.
const defaultBase = "http://127.0.0.1:8765"

//go:embed weather.td.json
var description []byte

// New returns the agent, and its Thing Description with forms at base, for example "http://127.0.0.1:8765". The handler is
// safe for concurrent use; it has no goroutine of its own, and a request that waits for an event ends with its context.
func New(base string) (http.Handler, []byte) {
	td := bytes.ReplaceAll(description, []byte(defaultBase), []byte(base))
	a := &agent{td: td, units: "celsius", listeners: map[chan []byte]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/wot", a.wellKnown)
	mux.HandleFunc("GET /properties", a.properties)
	mux.HandleFunc("GET /properties/modelConfiguration", a.modelConfiguration)
	mux.HandleFunc("GET /properties/units", a.getUnits)
	mux.HandleFunc("PUT /properties/units", a.putUnits)
	mux.HandleFunc("POST /actions/getWeather", a.getWeather)
	mux.HandleFunc("POST /actions/giveFeedback", a.giveFeedback)
	mux.HandleFunc("GET /events/userFeedbackReceived", a.events)
	return mux, td
}

type agent struct {
	td []byte

	mu        sync.Mutex // guards the rest
	units     string
	listeners map[chan []byte]bool
}

// model is the value of modelConfiguration.
var model = map[string]any{"modelName": "a-table", "temperature": 0.2, "maxTokens": 64}

func (a *agent) wellKnown(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/td+json")
	_, _ = w.Write(a.td)
}

func (a *agent) properties(w http.ResponseWriter, r *http.Request) {
	reply(w, map[string]any{"modelConfiguration": model, "units": a.unit()})
}

func (a *agent) modelConfiguration(w http.ResponseWriter, r *http.Request) { reply(w, model) }

func (a *agent) getUnits(w http.ResponseWriter, r *http.Request) { reply(w, a.unit()) }

func (a *agent) unit() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.units
}

func (a *agent) putUnits(w http.ResponseWriter, r *http.Request) {
	var units string
	if !read(w, r, &units) {
		return
	}
	if units != "celsius" && units != "fahrenheit" {
		refuse(w, "units are celsius or fahrenheit")
		return
	}
	a.mu.Lock()
	a.units = units
	a.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (a *agent) getWeather(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Question        string `json:"question"`
		InteractionMode string `json:"interactionMode"`
	}
	if !read(w, r, &in) {
		return
	}
	switch {
	case in.Question == "":
		refuse(w, "a question is needed")
	case in.InteractionMode != "text" && in.InteractionMode != "voice":
		refuse(w, "interactionMode is text or voice")
	default:
		reply(w, forecast(in.Question, a.unit(), in.InteractionMode == "voice"))
	}
}

// A feedback is the data of the event userFeedbackReceived.
type feedback struct {
	Rating  int    `json:"rating"`
	Comment string `json:"comment,omitempty"`
}

func (a *agent) giveFeedback(w http.ResponseWriter, r *http.Request) {
	var f feedback
	if !read(w, r, &f) {
		return
	}
	if f.Rating < 1 || f.Rating > 5 {
		refuse(w, "a rating is 1 to 5")
		return
	}
	data, _ := json.Marshal(f)
	a.publish(data)
	w.WriteHeader(http.StatusNoContent)
}

// read decodes the body, or answers that it cannot.
func read(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(v); err != nil {
		refuse(w, "the body is not the JSON that is needed")
		return false
	}
	return true
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller may have disconnected
}

// refuse answers with a problem (RFC 9457).
func refuse(w http.ResponseWriter, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprintf(w, `{"title":"Bad request","status":400,"detail":%q}`, detail)
}
