package td

import (
	"slices"
	"sync"
	"testing"
	"time"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	d := verified(t, published(t, readFile(t, "weather.td.json"), signer(t, 1), 7))
	tests := []struct {
		name  string
		query Query
		want  bool
	}{
		{"empty query", Query{}, true},
		{"the whole capability", Query{Capability: []string{"urn:example:weather:forecast"}}, true},
		{"in capitals, with slashes, without urn", Query{Capability: []string{"EXAMPLE/Weather"}}, true},
		{"the first level", Query{Capability: []string{"example"}}, true},
		{"half a level", Query{Capability: []string{"urn:exam"}}, false},
		{"a level too many", Query{Capability: []string{"urn:example:weather:forecast:hourly"}}, false},
		{"a level from the middle", Query{Capability: []string{"weather"}}, false},
		{"two capabilities", Query{Capability: []string{"urn:example:weather:forecast", "urn:example:weather:current"}},
			true},
		{"one of two", Query{Capability: []string{"urn:example:weather:forecast", "urn:example:billing"}}, false},
		{"an action as capability", Query{Capability: []string{"getWeather"}}, true},
		{"no capability at all", Query{Capability: []string{"::"}}, false},
		{"the id", Query{ID: "urn:example:agent:weather"}, true},
		{"another id", Query{ID: "urn:example:agent"}, false},
		{"the owner", Query{Owner: signer(t, 1).DID()}, true},
		{"another owner", Query{Owner: signer(t, 2).DID()}, false},
		{"the action", Query{Action: "getWeather"}, true},
		{"the action in lower case", Query{Action: "getweather"}, true},
		{"another action", Query{Action: "get"}, false},
		{"an agent", Query{Type: "agent"}, true},
		{"no tool", Query{Type: "tool"}, false},
		{"a word of the title", Query{Text: "WEATHER"}, true},
		{"a word of the description", Query{Text: "europe"}, true},
		{"a word of a capability", Query{Text: "place"}, true},
		{"a word of an action", Query{Text: "getweather"}, true},
		{"the beginning of a word", Query{Text: "fore"}, true},
		{"all words", Query{Text: "forecast, europe!"}, true},
		{"one of the words", Query{Text: "forecast mars"}, true},
		{"with a typo", Query{Text: "waether"}, true},
		{"none of the words", Query{Text: "mars rover"}, false},
		{"a text", Query{Text: "Who can tell me the weather?"}, true},
		{"a version", Query{Version: "^1"}, true},
		{"another version", Query{Version: "^2"}, false},
		{"a version of a capability", Query{Capability: []string{"example:weather"}, Version: "[1.0,2.0["}, true},
		{"no range", Query{Version: "newest"}, false},
		{"the host", Query{Host: signer(t, 1).DID()}, true},
		{"another host", Query{Host: signer(t, 2).DID()}, false},
		{"a claimed organization", Query{Organization: "EXAMPLE weather Service", Claimed: true}, true},
		{"an organization that is only claimed", Query{Organization: "EXAMPLE weather Service"}, false},
		{"another organization", Query{Organization: "Example"}, false},
		{"a property", Query{Property: "modelconfiguration"}, true},
		{"another property", Query{Property: "model"}, false},
		{"an event", Query{Event: "nothing"}, false},
		{"the protocol", Query{Protocol: "http"}, true},
		{"another protocol", Query{Protocol: "mqtt"}, false},
		{"one of two queries", Query{ID: "urn:nothing", Or: []Query{{Owner: signer(t, 2).DID()}, {Type: "agent"}}}, true},
		{"none of two queries", Query{ID: "urn:nothing", Or: []Query{{Type: "tool"}}}, false},
		{"alternatives only", Query{Or: []Query{{Type: "tool"}}}, false},
		{"excluded", Query{Text: "weather", Not: []Query{{Type: "agent"}}}, false},
		{"not excluded", Query{Text: "weather", Not: []Query{{Type: "tool"}, {}}}, true},
		{"excluded from an alternative", Query{Type: "tool", Or: []Query{{Type: "agent"}}, Not: []Query{{Text: "wether"}}}, false},
		{"signs only", Query{Text: "?!"}, true},
		{"all of it",
			Query{Capability: []string{"example"}, Action: "getWeather", Type: "lmos:Agent", Text: "weather",
				Owner: signer(t, 1).DID()}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.query.Match(d); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestMatchWithoutAThing(t *testing.T) {
	t.Parallel()
	for _, d := range []*Description{nil, {Record: &Record{Kind: KindTombstone}}} {
		if (&Query{}).Match(d) {
			t.Errorf("%v matches", d)
		}
	}
	// Things that other packages create have no cached terms.
	d := &Description{Thing: &Thing{Title: "Köln"}, Record: &Record{}}
	if !(&Query{Text: "ko\u0308ln"}).Match(d) {
		t.Error("composed and decomposed letters differ")
	}
}

func TestMax(t *testing.T) {
	t.Parallel()
	if got := (&Query{}).Max(); got != 32 {
		t.Errorf("got %d", got)
	}
	if got := (&Query{Limit: 5}).Max(); got != 5 {
		t.Errorf("got %d", got)
	}
}

func TestCoverageCounter(t *testing.T) {
	t.Parallel()
	var counter CoverageCounter
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			counter.CountAsked(2)
			counter.CountAnswer()
			counter.CountUnreachable()
			counter.NoteIssued(epoch.Add(time.Duration(i) * time.Second))
		})
	}
	wg.Wait()
	want := Coverage{Asked: 200, Answered: 100, Unreachable: 100, Oldest: epoch}
	if got := counter.Coverage(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if counter.Coverage().Complete() {
		t.Error("half of the answers are complete")
	}
}

func TestCoverageComplete(t *testing.T) {
	t.Parallel()
	var counter CoverageCounter
	if !counter.Coverage().Complete() {
		t.Error("incomplete without a query")
	}
	counter.CountAsked(1)
	counter.CountAnswer()
	if !counter.Coverage().Complete() {
		t.Error("all peers have answered, and it is incomplete")
	}
	counter.SetTruncated()
	if counter.Coverage().Complete() {
		t.Error("a truncated answer is complete")
	}
}

func TestNilCoverageCounter(t *testing.T) {
	t.Parallel()
	var counter *CoverageCounter
	counter.CountAsked(1)
	counter.CountAnswer()
	counter.CountUnreachable()
	counter.SetTruncated()
	counter.NoteIssued(epoch)
	if got := counter.Coverage(); got != (Coverage{}) {
		t.Errorf("got %+v", got)
	}
}

// A relative href has no scheme, even if its path has a colon.
func TestProtocolsOfRelativeForms(t *testing.T) {
	t.Parallel()
	thing := &Thing{Forms: []Form{{Href: "/things/a:b"}, {Href: "HTTPS://x/a"}, {Href: "a/b:c"}}}
	if got := slices.Collect(thing.Protocols()); !slices.Equal(got, []string{"https"}) {
		t.Errorf("got %q, want https only", got)
	}
}

// The text of an exclusion has all its fields, also if it has several words.
func TestQueryStringHasAllExclusions(t *testing.T) {
	t.Parallel()
	q := Query{Text: "rain", Not: []Query{{Text: "heavy snow", Type: "tool"}, {Text: "hail", Action: "ask"}}}
	if got, want := q.String(), `rain NOT "heavy snow" NOT type:tool NOT action:ask NOT hail`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
