package executor

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// TestContents converts MCP content of each kind to parts and metadata.
func TestContents(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ output, want, meta string }{
		"text":           {`{"lmosd:content":[{"type":"text","text":"a"}]}`, `[{"text":"a"}]`, ``},
		"annotated text": {`{"lmosd:content":[{"type":"text","text":"a","annotations":{"priority":1},"_meta":{"k":1}}]}`, `[{"text":"a","metadata":{"mcp:annotations":{"priority":1},"mcp:meta":{"k":1}}}]`, ``},
		"image":          {`{"lmosd:content":[{"type":"image","data":"AQI=","mimeType":"image/png"}]}`, `[{"raw":"AQI=","mediaType":"image/png","metadata":{"mcp:block":{"mimeType":"image/png","type":"image"}}}]`, ``},
		"a link": {`{"lmosd:content":[{"type":"resource_link","uri":"https://x/c","name":"c.txt","mimeType":"text/plain","description":"d"}]}`,
			`[{"url":"https://x/c","filename":"c.txt","mediaType":"text/plain","metadata":{"mcp:block":{"description":"d","mimeType":"text/plain","name":"c.txt","type":"resource_link","uri":"https://x/c"}}}]`, ``},
		"a text resource": {`{"lmosd:content":[{"type":"resource","resource":{"uri":"file:///a/b.csv?x=1","mimeType":"text/csv","text":"1,2"}}]}`,
			`[{"text":"1,2","filename":"b.csv","mediaType":"text/csv","metadata":{"mcp:block":{"resource":{"mimeType":"text/csv","uri":"file:///a/b.csv?x=1"},"type":"resource"}}}]`, ``},
		"a blob": {`{"lmosd:content":[{"type":"resource","resource":{"uri":"x:y","blob":"AQI="}}]}`,
			`[{"raw":"AQI=","metadata":{"mcp:block":{"resource":{"uri":"x:y"},"type":"resource"}}}]`, ``},
		"what is not known":         {`{"lmosd:content":[{"type":"video","data":1},7,{"type":"image","data":"?"}]}`, `[{"data":{"type":"video","data":1},"mediaType":"application/json"},{"data":7,"mediaType":"application/json"},{"data":{"type":"image","data":"?"},"mediaType":"application/json"}]`, ``},
		"structured, repeats":       {`{"sum":3,"lmosd:meta":{"r":1}}`, `[{"data":{"sum":3},"mediaType":"application/json"},{"text":"{\"sum\":3}"}]`, `{"mcp:meta":{"r":1}}`},
		"structured and text":       {`{"sum":3,"lmosd:content":[{"type":"text","text":"three"}]}`, `[{"data":{"sum":3},"mediaType":"application/json"},{"text":"three"}]`, ``},
		"_meta alone":               {`{"lmosd:meta":{"r":1}}`, `[{"data":{},"mediaType":"application/json"}]`, `{"mcp:meta":{"r":1}}`},
		"a member of the same name": {`{"lmosd:content":"x"}`, `[{"data":{"lmosd:content":"x"},"mediaType":"application/json"},{"text":"{\"lmosd:content\":\"x\"}"}]`, ``},
	} {
		parts, meta := partsOf([]byte(test.output), interact.JSON)
		if got := string(protocol.Encode(parts)); got != test.want || string(meta) != test.meta {
			t.Errorf("%s: got  %s %s\nwant %s %s", name, got, meta, test.want, test.meta)
		}
	}
	long := strings.Repeat("AAAA", maxPart)
	parts, _ := partsOf([]byte(`{"lmosd:content":[{"type":"image","data":"`+long+`"},{"type":"text","text":"a"}]}`), interact.JSON)
	for i, n := 0, 0; i < len(parts); i += n {
		if n = partsPerEvent(parts[i:]); len(protocol.Encode(parts[i:i+n])) > 2*maxPart || n == 0 {
			t.Errorf("%d parts from %d are an event of %d bytes", n, i, len(protocol.Encode(parts[i:i+n])))
		}
	}
}

// FuzzContents converts outputs of remote Things.
func FuzzContents(f *testing.F) {
	f.Add([]byte(`{"sum":3,"lmosd:content":[{"type":"resource","resource":{"uri":"x:y","blob":"AQI="}}],"lmosd:meta":{}}`))
	f.Add([]byte(`{"lmosd:content":[null,[],{"type":"resource_link","uri":""}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		parts, meta := partsOf(data, interact.JSON)
		for _, p := range parts {
			if raw, err := json.Marshal(p); err != nil || p.Text == nil && p.Raw == nil && p.URL == nil && p.Data == nil {
				t.Errorf("%q gives %s, %v", data, raw, err)
			}
		}
		if meta != nil && !json.Valid(meta) {
			t.Errorf("%q gives %s", data, meta)
		}
	})
}

// Progress is a WORKING status, and not part of the output or the history.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, progress)
}

// Progress updates above the rate are dropped, and the result is not.
func TestProgressRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{})
		defer d.Close()
		s := subject(nil)
		s.Thing = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				for range 1000 {
					r := m.Reply(interact.ActionStatus, interact.Progress, []byte(`{"message":"on"}`))
					if r.Status = interact.StatusRunning; !yield(r, nil) {
						return
					}
				}
				r := m.Reply(interact.ActionStatus, "", []byte(`"done"`))
				r.Status = interact.StatusCompleted
				yield(r, nil)
			}
		})
		came, done := 0, false
		for raw, err := range d.Agent(s, "").Do(t.Context(), &protocol.Operation{Method: protocol.SendStreamingMessage, Params: json.RawMessage(say("1", "x"))}) {
			if err != nil {
				t.Fatal(err)
			}
			came += strings.Count(string(raw), `"text":"on"`)
			done = done || strings.Contains(string(raw), `"text":"done"`)
		}
		if came == 0 || came > 1+int(progressLimit.Burst) || !done { // the first sets the state
			t.Errorf("%d progress updates; done: %t", came, done)
		}
	})
}

func progress(t *testing.T) {
	d := New(Options{})
	defer d.Close()
	s := subject(nil)
	s.Thing = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for _, p := range []string{`{"progress":1,"total":2}`, `{"message":"half"}`, `rubbish`, `{"progress":2,"total":2,"message":"all"}`} {
				r := m.Reply(interact.ActionStatus, interact.Progress, []byte(p))
				if r.Status = interact.StatusRunning; !yield(r, nil) {
					return
				}
			}
			r := m.Reply(interact.ActionStatus, "", []byte(`"done"`))
			r.Status = interact.StatusCompleted
			yield(r, nil)
		}
	})
	var words, artifacts []string
	for raw, err := range d.Agent(s, "").Do(t.Context(), &protocol.Operation{Method: protocol.SendStreamingMessage, Params: json.RawMessage(say("1", "x"))}) {
		var e protocol.StreamResponse
		if err != nil || json.Unmarshal(raw, &e) != nil {
			t.Fatal(err)
		}
		switch {
		case e.StatusUpdate != nil && e.StatusUpdate.Status.Message != nil:
			p := e.StatusUpdate.Status.Message.Parts[0]
			words = append(words, string(e.StatusUpdate.Status.State)+" "+*p.Text+" "+string(p.Metadata))
		case e.ArtifactUpdate != nil:
			artifacts = append(artifacts, string(protocol.Encode(e.ArtifactUpdate.Artifact.Parts)))
		}
	}
	want := `TASK_STATE_WORKING 1 of 2 {"lmosd:progress":{"progress":1,"total":2}}; TASK_STATE_WORKING half {"lmosd:progress":{"message":"half"}}; ` +
		`TASK_STATE_WORKING all {"lmosd:progress":{"progress":2,"total":2,"message":"all"}}`
	if got := strings.Join(words, "; "); got != want || strings.Join(artifacts, "") != `[{"text":"done"}]` {
		t.Errorf("got %s and %s, want %s", got, artifacts, want)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, task := range d.tasks {
		if len(task.shown.History) != 1 {
			t.Errorf("the history has %d messages", len(task.shown.History))
		}
	}
}

// TestStatesOfRuns maps the replies of runs to task states.
func TestStatesOfRuns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status interact.Status
		data   string
		err    error
		want   protocol.State
		words  string
	}{
		"completed":   {interact.StatusCompleted, `"x"`, nil, protocol.Completed, ""},
		"failed":      {interact.StatusFailed, `"ink"`, nil, protocol.Failed, "ink"},
		"cancelled":   {interact.StatusCancelled, ``, nil, protocol.Canceled, ""},
		"asks":        {interact.StatusInputRequired, `{"k":{"kind":"form","message":"which?"}}`, nil, protocol.InputRequired, "which?"},
		"proof":       {interact.StatusInputRequired, `{"k":{"kind":"url","message":"log in","url":"https://x"}}`, nil, protocol.AuthRequired, "log in https://x"},
		"a model":     {interact.StatusInputRequired, `{"k":{"kind":"model"}}`, nil, protocol.InputRequired, defaultTexts[interact.InputModel]},
		"asks what?":  {interact.StatusInputRequired, `{}`, nil, protocol.Failed, "the agent returned an invalid input request"},
		"not known":   {interact.Status(99), ``, nil, protocol.Failed, "the agent returned an unknown status"},
		"the agent":   {0, "", &interact.Error{Code: interact.AgentFailed, Title: "no ink"}, protocol.Failed, "no ink"},
		"a policy":    {0, "", &interact.Error{Code: interact.Forbidden, Title: "rule 7"}, protocol.Rejected, "rule 7"},
		"no proof":    {0, "", &interact.Error{Code: interact.Unauthenticated, Title: "who?"}, protocol.Rejected, "who?"},
		"called back": {0, "", &interact.Error{Code: interact.Cancelled, Title: "no"}, protocol.Canceled, "no"},
	} {
		d := open(t, Options{})
		a := d.Agent(subject(func(ctx context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
			if test.err != nil {
				return test.err
			}
			if say(test.status, test.data) && test.status == interact.StatusInputRequired {
				<-ctx.Done()
			}
			return nil
		}), "")
		s := taskIn(t, ask(t, a, protocol.SendMessage, strings.Replace(say("1", "x"), "true", "false", 1))).Status
		words := ""
		if s.Message != nil {
			words = *s.Message.Parts[0].Text
		}
		if s.State != test.want || words != test.words {
			t.Errorf("%s is %s %q, want %s %q", name, s.State, words, test.want, test.words)
		}
	}
}

// Data without a skill is matched against the schemas of MCP tools.
func TestVerbatimSchemas(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"actions":{"a":{"mcp:inputSchema":{"type":"object","$defs":{"n":{"type":"integer"}},"properties":{"x":{"$ref":"#/$defs/n"}},"required":["x"],"additionalProperties":false}},
		"b":{"mcp:inputSchema":{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}},"c":{"mcp:inputSchema":7},"d":{}}}`)
	thing := &td.Thing{Title: "X", Raw: raw, Actions: map[string]*td.Action{"a": {}, "b": {}, "c": {}, "d": {}}}
	a := &agent{thing: Agent{Desc: thing}}
	for data, want := range map[string]string{`{"x":1}`: "a", `{"arguments":{"x":1}}`: "a", `{"x":"1"}`: "b", `{"x":1.5}`: "", `{}`: "", `7`: ""} {
		got, err := a.matchAction(&protocol.Message{Parts: []protocol.Part{protocol.DataPart([]byte(data))}}, []string{"a", "b", "c", "d"})
		if got != want || err != nil {
			t.Errorf("%s selects %q, want %q (%v)", data, got, want, err)
		}
	}
}
