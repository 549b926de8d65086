package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func ask(t *testing.T, h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return w
}

func TestForecast(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, question, units string
		voice                 bool
		want                  string
	}{
		{"the question of the documentation", "Rain in Bonn?", "celsius", false, "Light rain, 12 °C, until 16:00."},
		{"other spelling of the city", "what is it like in BONN", "celsius", false, "Light rain, 12 °C, until 16:00."},
		{"in fahrenheit", "Rain in Bonn?", "fahrenheit", false, "Light rain, 54 °F, until 16:00."},
		{"to be spoken", "Rain in Bonn?", "celsius", true, "Light rain, 12 degrees Celsius, until 16 o'clock."},
	}
	for _, tt := range tests {
		if got := forecast(tt.question, tt.units, tt.voice); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestForecastOfACityDoesNotChange(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range []string{"London", "Paris", "Berlin", "Rome", "Oslo", "Madrid", "Vienna", "Prague", ""} {
		first := forecast("Weather in "+c, "celsius", false)
		if again := forecast("Will it rain in "+c+" tomorrow?", "celsius", false); c != "" && again != first {
			t.Errorf("%s: got %q and %q", c, first, again)
		}
		seen[first] = true
	}
	if len(seen) < 3 {
		t.Errorf("all cities have the same weather: %v", seen)
	}
}

func TestCity(t *testing.T) {
	t.Parallel()
	for question, want := range map[string]string{
		"Rain in Bonn?":                "Bonn",
		"forecast for bonn, please":    "bonn",
		"Is Paris warm":                "Paris",
		"Weather in Baden-Baden today": "Baden-Baden",
		"in":                           "",
		"":                             "",
		"wie ist das Wetter":           "Wetter",
		"?!":                           "",
	} {
		if got := city(question); got != want {
			t.Errorf("%q: got %q, want %q", question, got, want)
		}
	}
}

func TestUnitsAreWrittenAndUsed(t *testing.T) {
	t.Parallel()
	h, _ := New("http://agent.example")
	if w := ask(t, h, "PUT", "/properties/units", `"fahrenheit"`); w.Code != http.StatusNoContent {
		t.Fatalf("write: %d %s", w.Code, w.Body)
	}
	if w := ask(t, h, "GET", "/properties/units", ""); strings.TrimSpace(w.Body.String()) != `"fahrenheit"` {
		t.Errorf("read: %s", w.Body)
	}
	w := ask(t, h, "POST", "/actions/getWeather", `{"question":"Rain in Bonn?","interactionMode":"text"}`)
	if !strings.Contains(w.Body.String(), "54 °F") {
		t.Errorf("call: %s", w.Body)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()
	h, _ := New("http://agent.example")
	for name, in := range map[string][3]string{
		"not JSON":        {"POST", "/actions/getWeather", "rain?"},
		"no question":     {"POST", "/actions/getWeather", `{"interactionMode":"text"}`},
		"unknown mode":    {"POST", "/actions/getWeather", `{"question":"x","interactionMode":"song"}`},
		"unknown unit":    {"PUT", "/properties/units", `"kelvin"`},
		"no unit":         {"PUT", "/properties/units", ``},
		"rating too high": {"POST", "/actions/giveFeedback", `{"rating":6}`},
		"no rating":       {"POST", "/actions/giveFeedback", `{}`},
		"too large":       {"POST", "/actions/getWeather", `{"question":"` + strings.Repeat("x", 70<<10) + `"}`},
	} {
		w := ask(t, h, in[0], in[1], in[2])
		if w.Code != http.StatusBadRequest || w.Header().Get("Content-Type") != "application/problem+json" ||
			!json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
}

func TestDescriptionHasTheBase(t *testing.T) {
	t.Parallel()
	_, td := New("http://agent.example:1234")
	if strings.Contains(string(td), defaultBase) || strings.Count(string(td), "http://agent.example:1234/") < 7 {
		t.Errorf("the forms are elsewhere: %s", td)
	}
}

func TestEventHeadIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	h, _ := New("http://agent.example")
	if w := ask(t, h, "HEAD", "/events/userFeedbackReceived", ""); w.Code != http.StatusOK {
		t.Errorf("got %d", w.Code)
	}
}

func TestSlowListenerMissesAndDoesNotBlock(t *testing.T) {
	t.Parallel()
	a := &agent{listeners: map[chan []byte]bool{}}
	events, stop := a.listen()
	for range queue + 5 {
		a.publish([]byte("x"))
	}
	if len(events) != queue {
		t.Errorf("got %d events, want %d", len(events), queue)
	}
	stop()
	a.publish([]byte("x"))
	if len(a.listeners) != 0 {
		t.Error("it still listens")
	}
}
