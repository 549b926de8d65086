package dht

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

func TestQueryRoundTrip(t *testing.T) {
	t.Parallel()
	telekom := &td.Membership{ID: "QmTelekom"}
	all := td.Query{
		Capability: []string{"a", "b:c"}, Version: "^1.2", ID: "urn:x", Name: "x", Owner: testSigner(t, 1).DID(), Organization: "Telekom", Claimed: true,
		Host: testSigner(t, 2).DID(), Protocol: "mqtt", Action: "ask", Property: "state", Event: "done", Type: "agent", Text: "words",
	}
	q := all
	q.Or, q.Not, q.Limit = []td.Query{all, {Event: "x"}}, []td.Query{{Type: "tool"}, all}, 7
	for i := range reflect.TypeFor[td.Query]().NumField() {
		if f := reflect.ValueOf(q).Field(i); f.IsZero() && f.Type() != reflect.TypeFor[*td.CoverageCounter]() && f.Type() != reflect.TypeFor[*td.Membership]() && f.Kind() != reflect.Map { // which stay here
			t.Errorf("the test has no %s", reflect.TypeFor[td.Query]().Field(i).Name)
		}
	}
	frame, err := encodeMessage(newFindRequest(q), maxRecordsRequest)
	if err != nil {
		t.Fatal(err)
	}
	body, _, err := streamserver.ReadFrame(bytes.NewReader(frame), &network.NullScope{}, maxRecordsRequest)
	if err != nil {
		t.Fatal(err)
	}
	w, err := decodeRecordsRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.Query.query()
	if err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("got %+v, %v; want %+v", got, err, q)
	}
	// Others know neither the members nor the name of an organization: they find its claims. Claims exclude nothing.
	verified := newFindRequest(td.Query{Organization: "Telekom", Members: telekom, Not: []td.Query{{Organization: "x", Members: telekom}, {Type: "tool"}}})
	if sent, err := verified.Query.query(); err != nil || sent.Organization != telekom.ID || !sent.Claimed || len(sent.Not) != 1 || sent.Not[0].Type != "tool" {
		t.Errorf("got %+v, %v", sent, err)
	}
}

func TestDecodeRecordsRequest(t *testing.T) {
	t.Parallel()
	hash := make([]byte, 32)
	request := func(w *wireQuery) *recordsRequest { return &recordsRequest{Op: opFind, Query: w} }
	tests := []struct {
		name string
		q    any
		ok   bool
	}{
		{"body", &recordsRequest{Op: opBody, Hash: hash}, true},
		{"state", &recordsRequest{Op: opState, Keys: make([]byte, 32*MaxStates)}, true},
		{"state of nothing", &recordsRequest{Op: opState}, false},
		{"state of half a key", &recordsRequest{Op: opState, Keys: make([]byte, 33)}, false},
		{"state of too many", &recordsRequest{Op: opState, Keys: make([]byte, 32*(MaxStates+1))}, false},
		{"state and body", &recordsRequest{Op: opState, Keys: make([]byte, 32), Hash: hash}, false},
		{"body with keys", &recordsRequest{Op: opBody, Hash: hash, Keys: make([]byte, 32)}, false},
		{"find everything", &recordsRequest{Op: opFind, Query: &wireQuery{}}, true},
		{"unknown", &recordsRequest{Op: "drop"}, false},
		{"empty", &recordsRequest{}, false},
		{"body without hash", &recordsRequest{Op: opBody}, false},
		{"body with a short hash", &recordsRequest{Op: opBody, Hash: hash[:31]}, false},
		{"body with a query", &recordsRequest{Op: opBody, Hash: hash, Query: &wireQuery{}}, false},
		{"find without a query", &recordsRequest{Op: opFind}, false},
		{"find with a hash", &recordsRequest{Op: opFind, Hash: hash, Query: &wireQuery{}}, false},
		{"too many terms", &recordsRequest{Op: opFind, Query: &wireQuery{Capability: make([]string, maxTerms+1)}}, false},
		{"a long term", &recordsRequest{Op: opFind, Query: &wireQuery{Capability: []string{strings.Repeat("x", maxTerm+1)}}}, false},
		{"a long text", &recordsRequest{Op: opFind, Query: &wireQuery{Text: strings.Repeat("x", maxTerm+1)}}, false},
		{"the most branches", request(&wireQuery{Or: make([]wireQuery, td.MaxBranches), Not: make([]wireQuery, td.MaxBranches)}), true},
		{"too many branches", request(&wireQuery{Or: make([]wireQuery, td.MaxBranches+1)}), false},
		{"too many exceptions", request(&wireQuery{Not: make([]wireQuery, td.MaxBranches+1)}), false},
		{"a long term in a branch", request(&wireQuery{Or: []wireQuery{{Event: strings.Repeat("x", maxTerm+1)}}}), false},
		{"a branch of a branch", request(&wireQuery{Or: []wireQuery{{Not: []wireQuery{{ID: "x"}}}}}), false},
		{"a limit of a branch", request(&wireQuery{Or: []wireQuery{{Limit: 1}}}), false},
		{"a limit below zero", &recordsRequest{Op: opFind, Query: &wireQuery{Limit: -1}}, false},
		{"a limit above all", &recordsRequest{Op: opFind, Query: &wireQuery{Limit: maxResults + 1}}, false},
		{"another member", map[string]any{"op": "find", "query": map[string]any{}, "more": 1}, false},
		{"a list", []int{1, 2}, false},
		{"a number", 7, false},
	}
	for _, tt := range tests {
		b, err := cbor.Marshal(tt.q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecordsRequest(b); (err == nil) != tt.ok || err != nil && !errors.Is(err, errWire) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	for _, w := range []wireQuery{{Owner: "nonsense"}, {Host: "nonsense"}} {
		for _, q := range []wireQuery{w, {Or: []wireQuery{w}}, {Not: []wireQuery{w}}} {
			if _, err := q.query(); !errors.Is(err, errWire) {
				t.Errorf("a DID that is none: got %v", err)
			}
		}
	}
}

func TestDecodeRecordsResponse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		a    any
		want error
	}{
		{"record", &recordsResponse{Record: []byte("r")}, nil},
		{"record and TD", &recordsResponse{Record: []byte("r"), TD: []byte("t")}, nil},
		{"TD", &recordsResponse{TD: []byte("t")}, nil},
		{"end", &recordsResponse{End: true}, nil},
		{"end of more", &recordsResponse{End: true, Truncated: true}, nil},
		{"nothing", &recordsResponse{}, errWire},
		{"data and end", &recordsResponse{Record: []byte("r"), End: true}, errWire},
		{"truncated and no end", &recordsResponse{Record: []byte("r"), Truncated: true}, errWire},
		{"error", &recordsResponse{Error: "not here"}, errRemote},
		{"endless error", &recordsResponse{Error: strings.Repeat("x", maxErrorText+1)}, errWire},
		{"huge record", &recordsResponse{Record: make([]byte, td.MaxRecord+1)}, errWire},
		{"huge TD", &recordsResponse{TD: make([]byte, td.MaxTD+1)}, errWire},
		{"another member", map[string]any{"end": true, "more": 1}, errWire},
		{"a text", "end", errWire},
	}
	for _, tt := range tests {
		b, err := cbor.Marshal(tt.a)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecordsResponse(b); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	largest := &recordsResponse{Record: make([]byte, td.MaxRecord), TD: make([]byte, td.MaxTD)}
	if _, err := encodeMessage(largest, maxRecordsResponse); err != nil {
		t.Errorf("the largest answer does not fit: %v", err)
	}
	if _, err := encodeMessage(&recordsResponse{TD: make([]byte, maxRecordsResponse)}, maxRecordsResponse); !errors.Is(err, errWire) {
		t.Errorf("more than the largest: got %v", err)
	}
}

func FuzzRecordsRequest(f *testing.F) {
	for _, q := range []*recordsRequest{
		{Op: opBody, Hash: make([]byte, 32)}, {Op: opState, Keys: make([]byte, 64)}, newFindRequest(td.Query{Capability: []string{"a"}, Limit: 3}),
		newFindRequest(td.Query{Or: []td.Query{{Version: "^1"}, {Protocol: "mqtt"}}, Not: []td.Query{{Property: "x"}}}),
	} {
		b, err := cbor.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := decodeRecordsRequest(b)
		if err != nil {
			return
		}
		switch q.Op {
		case opBody:
			if len(q.Hash) != 32 {
				t.Fatal("a body without a hash")
			}
			return
		case opState:
			if n := len(q.Keys); n == 0 || n%keySize != 0 || n > MaxStates*keySize {
				t.Fatalf("keys of %d bytes", n)
			}
			return
		}
		if got, err := q.Query.query(); err == nil && (got.Limit < 1 || got.Limit > maxResults || len(got.Capability) > maxTerms ||
			len(got.Or) > td.MaxBranches || len(got.Not) > td.MaxBranches) {
			t.Fatalf("a query beyond the limits: %+v", got)
		}
	})
}

// FuzzRecordsResponse decodes arbitrary bytes as a response: accepted content is within the limits.
func FuzzRecordsResponse(f *testing.F) {
	for _, as := range [][]*recordsResponse{
		{{Record: []byte("r"), TD: []byte("t")}, {End: true}},
		{{TD: []byte("t")}, {End: true, Truncated: true}},
		{{Error: "no"}},
		{{States: []byte{0, 1, 2}}, {End: true}},
	} {
		var all []byte
		for _, a := range as {
			frame, err := encodeMessage(a, maxRecordsResponse)
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, frame...)
		}
		f.Add(all)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		st := &script{r: bytes.NewReader(b)}
		n := 0
		_, err := roundTripRecords(st, nil, func(a *recordsResponse) (bool, error) {
			if n++; len(a.Record) > td.MaxRecord || len(a.TD) > td.MaxTD || len(a.States) > MaxStates {
				t.Fatal("more than may be was let through")
			}
			return true, nil
		})
		if n > maxResults || err == nil && len(b) == 0 {
			t.Fatalf("%d results and %v", n, err)
		}
		if st.scope.held != 0 || st.scope.peak > maxRecordsResponse {
			t.Fatalf("%d bytes held, %d at the peak", st.scope.held, st.scope.peak)
		}
	})
}

func TestQueryStopsAtTooManyRecords(t *testing.T) {
	t.Parallel()
	one, err := encodeMessage(&recordsResponse{Record: []byte("r")}, maxRecordsResponse)
	if err != nil {
		t.Fatal(err)
	}
	st := &script{r: bytes.NewReader(bytes.Repeat(one, maxResults+5))}
	n := 0
	_, err = roundTripRecords(st, nil, func(*recordsResponse) (bool, error) { n++; return true, nil })
	if !errors.Is(err, errWire) || n > maxResults+1 {
		t.Errorf("got %d records and %v", n, err)
	}
}

func TestPlausible(t *testing.T) {
	t.Parallel()
	r := &td.Record{Owner: "did:key:a", Thing: "urn:x", Hosts: []td.Host{{Node: "did:key:h"}},
		Capabilities: []string{"ask", "telekom/billing/read", "urn:example:weather"}}
	tests := []struct {
		q    td.Query
		want bool
	}{
		{td.Query{}, true},
		{td.Query{ID: "urn:x", Owner: "did:key:a"}, true},
		{td.Query{ID: "urn:y"}, false},
		{td.Query{Owner: "did:key:b"}, false},
		{td.Query{Capability: []string{"telekom"}}, true},
		{td.Query{Capability: []string{"urn:telekom:billing"}}, true},
		{td.Query{Capability: []string{"Telekom/Billing/Read"}}, true},
		{td.Query{Capability: []string{"telekom:bill"}}, false},
		{td.Query{Capability: []string{"telekom:billing:read:all"}}, false},
		{td.Query{Capability: []string{"example:weather", "telekom"}}, true},
		{td.Query{Capability: []string{"example:weather", "traffic"}}, false},
		{td.Query{Capability: []string{""}}, false},
		{td.Query{Action: "Ask"}, true},
		{td.Query{Action: "report"}, false},
		{td.Query{Text: "anything"}, true},
		{td.Query{Host: "did:key:h"}, true},
		{td.Query{Host: "did:key:g"}, false},
		{td.Query{Or: []td.Query{{Capability: []string{"traffic"}}, {Capability: []string{"telekom"}}}}, true},
		{td.Query{Or: []td.Query{{Capability: []string{"traffic"}}, {Action: "report"}}}, false},
		{td.Query{Action: "report", Or: []td.Query{{ID: "urn:x"}}}, true},
		{td.Query{Action: "report", Or: []td.Query{{ID: "urn:y"}}}, false},
	}
	for _, tt := range tests {
		if got := plausible(&tt.q, r); got != tt.want {
			t.Errorf("%+v: got %v", tt.q, got)
		}
	}
}

func TestKeyFor(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		q    td.Query
		want provideKey
	}{
		{"id before all", td.Query{ID: "urn:x", Capability: []string{"a:b"}}, thingKey("urn:x")},
		{"the deepest", td.Query{Capability: []string{"longest-of-all", "a:b"}, Action: "ask"}, capabilityKey("a:b")},
		{"the longest of the deepest", td.Query{Capability: []string{"a:b", "a:bc"}}, capabilityKey("a:bc")},
		{"four levels at most", td.Query{Capability: []string{"a:b:c:d:e"}}, capabilityKey("a:b:c:d")},
		{"urn and slashes", td.Query{Capability: []string{"URN:Example/Weather"}}, capabilityKey("example:weather")},
		{"an action", td.Query{Action: "getWeather"}, capabilityKey("getweather")},
		{"no term", td.Query{Text: "x", Type: "agent", Owner: "did:key:a"}, ""},
		{"nothing normal", td.Query{Capability: []string{"", ":", "urn:"}}, ""},
	}
	for _, tt := range tests {
		got, ok := keyFor(&tt.q)
		if ok != (tt.want != "") || ok && got != tt.want {
			t.Errorf("%s: got another key (%v)", tt.name, ok)
		}
	}
}

func TestLookupsOf(t *testing.T) {
	t.Parallel()
	a, b := td.Query{Capability: []string{"a"}}, td.Query{Action: "b"}
	exact := td.Query{ID: "urn:x", Owner: "did:key:a"}
	tests := []struct {
		name               string
		q                  td.Query
		keys, exact, hosts int
		open               bool
	}{
		{"nothing", td.Query{}, 0, 0, 0, true},
		{"one term", a, 1, 0, 0, false},
		{"every branch", td.Query{Capability: []string{"c"}, Or: []td.Query{a, b}}, 3, 0, 0, false},
		{"the same key twice", td.Query{Or: []td.Query{a, a, b}}, 2, 0, 0, false},
		{"one branch without a key", td.Query{Or: []td.Query{a, {Text: "words"}}}, 1, 0, 0, true},
		{"exact things", td.Query{Or: []td.Query{exact, b, exact}}, 1, 2, 0, false},
		{"an excluded capability has no key", td.Query{Text: "x", Not: []td.Query{a}}, 0, 0, 0, true},
		{"a host", td.Query{Host: "did:key:h", Or: []td.Query{{Host: "did:key:h", Action: "b"}}}, 1, 0, 1, true},
	}
	for _, tt := range tests {
		w := lookupsOf(&tt.q)
		if len(w.keys) != tt.keys || len(w.exact) != tt.exact || len(w.hosts) != tt.hosts || w.open != tt.open {
			t.Errorf("%s: got %d keys, %d things, %d hosts, open %v", tt.name, len(w.keys), len(w.exact), len(w.hosts), w.open)
		}
	}
}

// TestTermsHaveKeys checks that a query looks up the keys under which a Thing is provided.
func TestTermsHaveKeys(t *testing.T) {
	t.Parallel()
	r := &td.Record{Thing: "urn:x", Capabilities: []string{"urn:example:weather:forecast:daily:bonn"}}
	keys := keysOf(r)
	for _, term := range []string{"example", "urn:example:weather", "Example/Weather/Forecast", r.Capabilities[0]} {
		k, ok := keyFor(&td.Query{Capability: []string{term}})
		if !ok || !slices.Contains(keys, k) {
			t.Errorf("%s: its key is not provided", term)
		}
	}
	if k, ok := keyFor(&td.Query{Name: "X"}); !ok || !slices.Contains(keys, k) {
		t.Error("the name is not provided")
	}
	if fmt.Sprint(len(keys)) != "6" {
		t.Errorf("%d keys", len(keys))
	}
}
