package frame

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// TestErrorsOfAllCodes writes an error of each code in each dialect and reads it again.
func TestErrorsOfAllCodes(t *testing.T) {
	t.Parallel()
	for _, code := range interact.Codes() {
		for _, d := range []Dialect{Doc, Kotlin, WTP} {
			f := &Frame{Style: Style{Dialect: d}, op: interact.InvokeAction}
			if d == WTP {
				f.part = response
			}
			f.Type, f.Thing, f.ID = TypeError, "urn:x", "m1"
			f.Fault = &interact.Error{Code: code, Title: "it\nbroke", Hint: "repair it", Issues: []td.Issue{{Pointer: "/a", Reason: "is b"}}}
			b, err := f.Encode()
			if err != nil {
				t.Fatal(err)
			}
			g, err := Decode(b)
			if err != nil {
				t.Fatalf("%s: %v", b, err)
			}
			e := g.Fault
			if e.Code != code || e.Title != "it broke" || e.Hint != "repair it" || !e.Remote || len(e.Issues) != 1 || e.Issues[0].Pointer != "/a" {
				t.Errorf("%s is read as %+v", b, e)
			}
			var wire struct {
				Status, Type, Title, Detail, Instance any
				Error                                 map[string]any
			}
			if err := json.Unmarshal(b, &wire); err != nil {
				t.Fatal(err)
			}
			if d == WTP {
				if _, isNumber := wire.Error["status"].(float64); !isNumber {
					t.Errorf("the status of wtp is not a number: %s", b)
				}
				continue
			}
			for _, member := range []any{wire.Status, wire.Type, wire.Title, wire.Detail, wire.Instance} {
				if text, ok := member.(string); !ok || text == "" {
					t.Errorf("a member of the error is not a text: %s", b)
				}
			}
		}
	}
}

// TestProblemsOfOthers reads errors without a code of lmosd.
func TestProblemsOfOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw, title string
		code       interact.Code
	}{
		{`{"type":"https://eclipse.dev/lmos/protocol/v1/errors#not-found","status":"404","title":"Action Not Found","detail":"no x"}`, "no x", interact.NoAffordance},
		{`{"type":"https://eclipse.dev/lmos/protocol/v1/errors#unsupported-message-type","status":"400"}`, "", interact.NotAllowed},
		{`{"type":"https://w3c.github.io/web-thing-protocol/errors#503","status":503,"title":"Busy"}`, "Busy", interact.Overloaded},
		{`{"status":"401"}`, "", interact.Unauthenticated},
		{`{"status":418,"title":"teapot"}`, "teapot", interact.AgentFailed},
		{`{"status":{"a":1},"title":7,"detail":["x"]}`, "", interact.AgentFailed},
		{`{"code":"LMOS-0001","status":500}`, "", interact.AgentFailed},
		{`{"code":"LMOS-1403","status":500}`, "", interact.Forbidden},
		{`"out of memory"`, "out of memory", interact.AgentFailed},
		{`7`, "", interact.AgentFailed},
	} {
		if e := ReadProblem([]byte(c.raw)); e.Code != c.code || e.Title != c.title || e.Hint == "" && e.Next == nil || !e.Remote {
			t.Errorf("%s is read as %+v", c.raw, e)
		}
	}
	e := ReadProblem([]byte(`{"title":"` + strings.Repeat("ä\\u001b[2J ", 4<<10) + `"}`))
	if len(e.Title) > MaxText+8 || strings.ContainsRune(e.Title, 0x1b) {
		t.Errorf("a title of %d bytes: %q", len(e.Title), e.Title[:20])
	}
}
