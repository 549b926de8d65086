package agent

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestOutcome(t *testing.T) {
	t.Parallel()
	event := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	running := func(output string) string { return event("a", `{"status":"running","output":`+output+`}`) }
	done := event("a", `{"status":"completed"}`)
	for name, c := range map[string]struct {
		stream, want string
		code         interact.Code
	}{
		"an output": {": \n\n" + event("a", `{"status":"completed","output":{"x":1}}`), `{"x":1}`, 0},
		"none":      {done, "", 0},
		"a long action": {event("a", `{"status":"pending","href":"/x"}`) + event("a", `{"status":"completed","output":2}`),
			"2", 0},
		"texts in parts":              {running(`"x"`) + running(`"y"`) + done, `"xy"`, 0},
		"values in parts":             {running(`1`) + running(`2`) + done, "[1,2]", 0},
		"the whole output at the end": {running(`1`) + event("a", `{"status":"completed","output":[1,2]}`), "[1,2]", 0},
		"lines that end in CR":        {"event: a\r\ndata: {\"status\":\"completed\",\"output\":1}\r\n\r\n", "1", 0},
		"a failure": {event("a", `{"status":"failed","error":{"code":"LMOS-1529","title":"Overloaded","detail":"no time"}}`),
			"", interact.Overloaded},
		"a failure without an error": {event("a", `{"status":"failed"}`), "", interact.Internal},
		"cancelled":                  {event("a", `{"status":"cancelled"}`), "", interact.Cancelled},
		"a problem after parts": {running(`1`) + event("lmosd:problem", `{"code":"LMOS-1503","title":"Agent unreachable"}`),
			"", interact.Unreachable},
		"incomplete stream": {running(`1`), "", interact.NodeLost},
		"empty stream":      {"", "", interact.NodeLost},
		"invalid state":     {event("a", `[`), "", interact.NodeLost},
	} {
		got, err := readOutput("a", []byte(c.stream))
		switch {
		case c.code != 0:
			if e := interact.AsError(err); e == nil || e.Code != c.code {
				t.Errorf("%s: got %s, %v, want %v", name, got, err, c.code)
			}
		case err != nil || string(got) != c.want:
			t.Errorf("%s: got %s, %v, want %s", name, got, err, c.want)
		}
	}
}

func FuzzOutcome(f *testing.F) {
	f.Add("event: a\ndata: {\"status\":\"running\",\"output\":\"x\"}\n\nevent: a\ndata: {\"status\":\"completed\"}\n\n")
	f.Add("event: lmosd:problem\ndata: {\"title\":\"x\"}\n\n")
	f.Add("data: " + strings.Repeat("[", 100))
	f.Fuzz(func(t *testing.T, stream string) {
		if _, err := readOutput("a", []byte(stream)); err != nil && interact.AsError(err).Code == 0 {
			t.Errorf("an error without a code: %v", err)
		}
	})
}

func TestCallOfAnUnknownAgent(t *testing.T) {
	t.Setenv("LMOSD_NODE", "http://127.0.0.1:1")
	for want, call := range map[interact.Code]func() error{
		interact.NotRunning: func() error { _, err := Call[int](t.Context(), "a", "b", nil); return err },
		interact.Invalid:    func() error { _, err := Call[int](t.Context(), "a", "b", func() {}); return err },
	} {
		if err := call(); interact.AsError(err) == nil || interact.AsError(err).Code != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}
