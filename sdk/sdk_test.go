package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// TestEveryLibraryCallsEveryAgent runs the same contract between the clients and agents of all libraries.
func TestEveryLibraryCallsEveryAgent(t *testing.T) {
	h := newHost(t, "")
	t.Setenv("LMOSD_NODE", h.api) // for agent.Call, which finds the node as a program does
	t.Setenv("LMOSD_TOKEN", h.token)
	for to, start := range languages {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			name := "lamp-" + to
			start(t, h, h.api, name)
			for from, open := range clients {
				t.Run("from "+from, func(t *testing.T) { // in sequence: they share the state of the lamp
					c := &caller{t, open(t, h, h.api), from, name}
					for what, check := range contract {
						if !t.Run(what, func(t *testing.T) { c.T = t; check(c) }) {
							return
						}
					}
				})
			}
		})
	}
}

// A caller calls one agent with the client of one library.
type caller struct {
	*testing.T
	client
	from, agent string
}

func (a *caller) do(op, name, input string) (json.RawMessage, error) {
	r := request{Op: op, Agent: a.agent, Name: name}
	if input != "" {
		r.Input = json.RawMessage(input)
	}
	return a.client(r, nil)
}

// gives checks the result of one request; want is JSON.
func (a *caller) gives(op, name, input, want string) {
	a.Helper()
	got, err := a.do(op, name, input)
	if err != nil || !same(got, want) {
		a.Errorf("%s %s %s: got %.200s, %v; want %.200s", op, name, input, got, err, want)
	}
}

// fails checks the error of one request, and returns it.
func (a *caller) fails(op, name, input string, code interact.Code, words string) *libraryError {
	a.Helper()
	got, err := a.do(op, name, input)
	var e *libraryError
	if !errors.As(err, &e) || e.Code != code.String() || !strings.Contains(e.Message, words) {
		a.Errorf("%s %s %s: got %.200s, %v; want %s %q", op, name, input, got, err, code, words)
		return &libraryError{}
	}
	return e
}

// same reports whether two texts are the same JSON. Nothing is null.
func same(got json.RawMessage, want string) bool {
	if got == nil {
		got = json.RawMessage("null")
	}
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil {
		return false
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// contract has the checks of every client with every agent.
var contract = map[string]func(*caller){
	"call": func(a *caller) {
		a.gives("call", "add", `{"a":1,"b":2}`, `3`)
		a.gives("call", "add", `{"a":1}`, `2`)
		a.gives("call", "echo", `"grüße ☂ \u0000 \" \\"`, `"grüße ☂ \u0000 \" \\"`)
		a.gives("call", "move", `{"place":{"name":"x","at":{"lat":1.5,"lon":2},"near":[{"lat":7}]},"by":2}`,
			`{"name":"x","at":{"lat":3.5,"lon":2},"near":[{"lat":7,"lon":0}]}`)
		a.gives("call", "move", `{"place":{"name":"x","at":null},"by":null}`, `{"name":"x","at":{"lat":1,"lon":0},"near":[]}`)
	},
	"parts": func(a *caller) {
		a.gives("call", "count", `{"to":3}`, `"1 2 3 "`)
		a.gives("call", "numbers", `{"to":3}`, `[1,2,3]`)
		a.gives("call", "numbers", `{"to":1}`, `1`)
		a.gives("call", "numbers", `{"to":0}`, `null`)
		if a.from == "go" { // its library has no response streams
			return
		}
		a.gives("stream", "count", `{"to":3}`, `["1 ","2 ","3 "]`)
		a.gives("stream", "numbers", `{"to":3}`, `[1,2,3]`)
		a.gives("stream", "add", `{"a":4}`, `[5]`)
	},
	"long": func(a *caller) { a.gives("call", "slow", `{"text":"done"}`, `"done"`) },
	"properties": func(a *caller) {
		a.gives("write", "units", `"kelvin"`, `null`)
		a.gives("read", "units", "", `"kelvin"`)
		a.gives("read", "version", "", `"1.2.3"`)
		a.gives("write", "visitor", `"seen"`, `null`)
		a.gives("read", "visitor", "", `"seen by local#operator, read by local#operator"`)
		a.gives("write", "note", `{"of":"`+a.from+`"}`, `null`)
		a.gives("read", "note", "", `{"of":"`+a.from+`"}`)
		a.gives("write", "note", `null`, `null`)
		a.gives("read", "note", "", `null`)
		raw, err := a.do("read", "", "")
		var all map[string]any
		if err != nil || json.Unmarshal(raw, &all) != nil || all["units"] != "kelvin" || all["version"] != "1.2.3" {
			a.Errorf("read all: %s, %v", raw, err)
		}
	},
	"errors": func(a *caller) {
		a.fails("call", "fail", "", interact.AgentFailed, "out of order")
		if e := a.fails("call", "refuse", "", interact.Overloaded, "no bulb"); e.Hint != "screw one in" {
			a.Errorf("the hint is %q", e.Hint)
		}
		a.fails("call", "unwritable", "", interact.AgentFailed, "")
		a.gives("call", "add", `{"a":1,"b":2}`, `3`) // it still runs
	},
	"what the node refuses": func(a *caller) {
		if e := a.fails("call", "add", `{"a":"one"}`, interact.Invalid, "add"); len(e.Issues) != 1 || e.Issues[0].Pointer != "/a" {
			a.Errorf("the issues are %v", e.Issues)
		}
		a.fails("call", "add", "", interact.Invalid, "")
		a.fails("call", "none", "", interact.NoAffordance, "none")
		a.fails("write", "level", `101`, interact.Invalid, "level")
		a.fails("write", "version", `"2"`, interact.NotAllowed, "version")
		a.fails("write", "hung", `2`, interact.NotAllowed, "hung")
		a.agent = "absent"
		defer func() { a.agent = "lamp-" + strings.Split(a.Name(), "/")[1] }()
		if e := a.fails("call", "add", `{"a":1}`, interact.NotFound, "absent"); len(e.Next) == 0 || e.Next[0].Kind != interact.StepFind {
			a.Errorf("the next steps are %v", e.Next)
		}
	},
	"large": func(a *caller) {
		text := `"` + strings.Repeat("0123456789abcde\\n", 1<<16) + `"`
		a.gives("call", "echo", text, text)
		e := a.fails("call", "huge", `{"size":4194304}`, interact.TooLarge, "")
		if e.Message == "" {
			a.Error("the error has no message")
		}
		a.gives("call", "echo", `"still there"`, `"still there"`)
	},
	"many at once": func(a *caller) {
		var work sync.WaitGroup
		for i := range 100 {
			work.Go(func() { a.gives("call", "add", fmt.Sprintf(`{"a":%d,"b":1000}`, i), fmt.Sprint(i+1000)) })
		}
		work.Wait()
	},
	"find": func(a *caller) {
		raw, err := a.client(request{Op: "find", Capability: "urn:example:lamp"}, nil)
		if err != nil || !strings.Contains(string(raw), `"`+a.agent+`"`) {
			a.Errorf("find: %s, %v", raw, err)
		}
		raw, err = a.client(request{Op: "find", Name: "nothing of the kind"}, nil)
		if err != nil || !same(raw, `[]`) {
			a.Errorf("find nothing: %s, %v", raw, err)
		}
	},
	"timeout": func(a *caller) {
		if !strings.HasSuffix(a.agent, a.from) {
			return // it takes a second, so one client at each agent is enough
		}
		before := a.hung()
		_, err := a.client(request{Op: "call", Agent: a.agent, Name: "hang", Timeout: 1}, nil)
		var e *libraryError
		if !errors.As(err, &e) || e.Code != interact.Timeout.String() {
			a.Errorf("got %v", err)
		}
		until(a.T, "the action receives its cancellation", func() error { return above(a.hung(), before) })
	},
	"leave": func(a *caller) {
		if a.from == "go" {
			return
		}
		before := a.hung()
		raw, err := a.client(request{Op: "stream", Agent: a.agent, Name: "drip", Count: 3}, nil)
		if err != nil || !same(raw, `["drop","drop","drop"]`) {
			a.Errorf("got %s, %v", raw, err)
		}
		until(a.T, "the generator is closed", func() error { return above(a.hung(), before) })
	},
	"event": func(a *caller) {
		a.watches(request{Op: "watch", Event: "alarm"}, "alarm", func(i int) error {
			_, err := a.do("call", "ring", fmt.Sprintf(`{"text":"%d"}`, i))
			return err
		}, func(i int) string { return fmt.Sprintf(`"%d"`, i) })
		a.watches(request{Op: "watch"}, "alarm", func(i int) error {
			_, err := a.do("call", "ring", fmt.Sprintf(`{"text":"%d"}`, i))
			return err
		}, func(i int) string { return fmt.Sprintf(`"%d"`, i) })
	},
	"observe": func(a *caller) {
		set := func(i int) error { _, err := a.do("write", "level", fmt.Sprint(i%100)); return err }
		for _, property := range []string{"level", "*"} {
			a.gives("write", "level", quiet, `null`)
			a.watches(request{Op: "watch", Property: property}, "level", set, func(i int) string { return fmt.Sprint(i % 100) })
		}
	},
}

func (a *caller) hung() int {
	a.Helper()
	raw, err := a.do("read", "hung", "")
	var n int
	if err == nil {
		err = json.Unmarshal(raw, &n)
	}
	if err != nil {
		a.Fatal(err)
	}
	return n
}

func above(n, before int) error {
	if n <= before {
		return fmt.Errorf("it is %d", n)
	}
	return nil
}

// quiet is a level that the test ignores: an observer may receive the current values first.
const quiet = `100`

// watches checks that the items of r arrive completely and in order, while cause produces them.
func (a *caller) watches(r request, name string, cause func(i int) error, want func(i int) string) {
	a.Helper()
	r.Agent = a.agent
	items, done := make(chan json.RawMessage, 1000), make(chan error, 1)
	last := ""
	hear := func(item json.RawMessage) {
		said := string(item)
		if r.Property == "" || strings.Contains(said, `"`+name+`"`) && !strings.Contains(said, quiet) && said != last {
			last = said
			items <- item
		}
	}
	after := 5 // the number of items after the first
	r.Count = 3 * after
	go func() {
		_, err := a.client(r, hear)
		done <- err
	}()
	first := -1
	for i := 0; first < 0; i++ {
		if err := cause(i); err != nil {
			a.Fatal(err)
		}
		select {
		case item := <-items:
			for j := i; j >= 0 && first < 0; j-- {
				if same(item, `["`+name+`",`+want(j)+`]`) {
					first = j
				}
			}
			if first < 0 {
				a.Fatalf("the first is %s, of %d", item, i)
			}
			for j := first + 1; j <= first+after; j++ {
				if j > i {
					if err := cause(j); err != nil {
						a.Fatal(err)
					}
				}
				if item := take(a.T, items); !same(item, `["`+name+`",`+want(j)+`]`) {
					a.Fatalf("got %s, want %s %s", item, name, want(j))
				}
			}
		case err := <-done:
			a.Fatalf("the watch ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for i := 0; ; i++ { // it ends with the loop
		if err := cause(i); err != nil {
			a.Fatal(err)
		}
		select {
		case err := <-done:
			if err != nil {
				a.Error(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func take[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(timeout):
		t.Fatal("nothing comes")
	}
	panic("not reached")
}

// TestWatchContinues: after a lost connection, a watch receives the missed events, each once.
func TestWatchContinues(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	startGo(t, h, h.api, "lamp")
	for from, open := range clients {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, h.api)
			c := open(t, h, w.api())
			events, done := make(chan json.RawMessage, 1000), make(chan error, 1)
			go func() {
				_, err := c(request{Op: "watch", Agent: "lamp", Event: "alarm", Count: 1000}, func(item json.RawMessage) {
					if strings.Contains(string(item), from) {
						events <- item
					}
				})
				done <- err
			}()
			ring := func(text string) {
				t.Helper()
				if _, _, err := h.client.Call(t.Context(), "lamp", "ring", "", []byte(`{"text":"`+from+" "+text+`"}`)); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the watch begins", func() error {
				ring("first")
				select {
				case <-events:
					return nil
				case <-time.After(10 * time.Millisecond):
					return errors.New("nothing comes")
				}
			})
			for i := range 3 {
				if _, err := c(request{Op: "later", Input: json.RawMessage("90")}, nil); err != nil { // without an event for 90 s
					t.Fatal(err)
				}
				w.cut()
				ring(fmt.Sprint("missed ", i))
				w.heal(h.api)
				for item := take(t, events); !same(item, fmt.Sprintf(`["alarm","%s missed %d"]`, from, i)); item = take(t, events) {
					if !strings.Contains(string(item), "first") {
						t.Fatalf("after cut %d: %s", i, item)
					}
				}
			}
			select {
			case item := <-events:
				t.Errorf("twice: %s", item)
			case err := <-done:
				t.Errorf("the watch ended: %v", err)
			default:
			}
		})
	}
}

// eachLanguage runs f with each kind of agent, in parallel.
func eachLanguage(t *testing.T, f func(t *testing.T, start func(t *testing.T, h *host, api, name string) *lamp)) {
	for language, start := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			f(t, start)
		})
	}
}

// add calls the lamp.
func (h *host) add(t *testing.T) error {
	t.Helper()
	out, _, err := h.client.Call(t.Context(), "lamp", "add", "", []byte(`{"a":1,"b":1}`))
	if err == nil && string(out) != "2" {
		err = fmt.Errorf("got %s", out)
	}
	return err
}

// TestAgentReturns: an agent registers again after a restart of the node, and after a lost connection.
func TestAgentReturns(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, start func(t *testing.T, h *host, api, name string) *lamp) {
		h := newHost(t, "")
		w := newWire(t, h.api)
		start(t, h, w.api(), "lamp")
		if err := h.add(t); err != nil {
			t.Fatal(err)
		}
		w.cut()
		until(t, "the agent is away", func() error { return isAway(h.add(t)) })
		w.heal(h.api)
		until(t, "the agent comes back", func() error { return h.add(t) })

		h.stop()
		h = newHost(t, h.dir)
		if err := h.add(t); interact.AsError(err).Code != interact.NotFound {
			t.Errorf("a new node says %v", err)
		}
		w.heal(h.api)
		until(t, "the agent comes to the new node", func() error { return h.add(t) })
	})
}

// isAway returns nil if err reports a lost connection to the agent.
func isAway(err error) error {
	if e := interact.AsError(err); e == nil || e.Code != interact.Unreachable || !strings.Contains(e.Title, "away") {
		return fmt.Errorf("not away: %w", err)
	}
	return nil
}

// TestAgentCrashes: a new process with the same id replaces one that died.
func TestAgentCrashes(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, start func(t *testing.T, h *host, api, name string) *lamp) {
		h := newHost(t, "")
		first := start(t, h, h.api, "lamp")
		if first.kill == nil {
			t.Skip("an agent of this process cannot be killed")
		}
		first.kill()
		until(t, "the agent is away", func() error { return isAway(h.add(t)) })
		second := start(t, h, h.api, "lamp")
		if err := h.add(t); err != nil {
			t.Error(err)
		}
		if first.id != second.id {
			t.Errorf("the id was %s and is %s", first.id, second.id)
		}
	})
}

// TestAgentCrashesDuringACall: the calls of an agent whose process dies fail with that cause.
func TestAgentCrashesDuringACall(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	l := languages["python"](t, h, h.api, "lamp")
	_, _, err := h.client.Call(t.Context(), "lamp", "crash", "", nil)
	if e := interact.AsError(err); e == nil || e.Code != interact.Unreachable {
		t.Errorf("got %v", err)
	}
	l.kill()
}

// TestPythonExit: an action that exits ends only itself.
func TestPythonExit(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	languages["python"](t, h, h.api, "lamp")
	_, _, err := h.client.Call(t.Context(), "lamp", "leave", "", nil)
	if e := interact.AsError(err); e == nil || e.Code != interact.AgentFailed || !strings.Contains(e.Title, "no exit") {
		t.Errorf("got %v", err)
	}
	if err := h.add(t); err != nil {
		t.Error(err)
	}
}

// TestAgentDisconnects: an agent that stops is unregistered, and its process ends.
func TestAgentDisconnects(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, start func(t *testing.T, h *host, api, name string) *lamp) {
		h := newHost(t, "")
		l := start(t, h, h.api, "lamp")
		if err := h.add(t); err != nil {
			t.Fatal(err)
		}
		if err := l.leave(); err != nil {
			t.Error(err)
		}
		until(t, "it is gone", func() error {
			switch err := h.add(t); interact.AsError(err).Code {
			case interact.NotFound, interact.Withdrawn:
				return nil
			default:
				return err
			}
		})
	})
}

// TestAgentDisconnectsWithoutCalls: an agent without its node ends at once.
func TestAgentDisconnectsWithoutCalls(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, start func(t *testing.T, h *host, api, name string) *lamp) {
		h := newHost(t, "")
		w := newWire(t, h.api)
		l := start(t, h, w.api(), "lamp")
		w.cut()
		until(t, "the agent is away", func() error { return isAway(h.add(t)) })
		began := time.Now()
		if err := l.leave(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > timeout/3 {
			t.Errorf("it took %v", took)
		}
	})
}

// TestFindsTheNode: an agent finds its node through the data folder, by the socket or with the token.
func TestFindsTheNode(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	for language, argv := range map[string][]string{"python3": {"testdata/agent.py"}, "node": {"testdata/agent.mjs"}} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			name := "lamp-" + language
			startProcess(t, []string{"LMOSD_NODE=", "LMOSD_TOKEN=", "LMOSD_DATA_DIR=" + h.dir}, testprogram.Path(t, language), argv[0], name)
			if out, _, err := h.client.Call(t.Context(), name, "add", "", []byte(`{"a":1}`)); err != nil || string(out) != "2" {
				t.Errorf("got %s, %v", out, err)
			}
		})
	}
}

// TestCannotServe: the first failure to register is an error with a hint.
func TestCannotServe(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	nobody := newWire(t, h.api)
	nobody.cut()
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"no node":    {[]string{"LMOSD_NODE=" + nobody.api(), "LMOSD_TOKEN=x"}, "LMOS-3001"},
		"no address": {[]string{"LMOSD_NODE=nowhere", "LMOSD_TOKEN=x"}, "LMOS-2000"},
		"no token":   {[]string{"LMOSD_NODE=" + h.api, "LMOSD_TOKEN="}, "LMOS-1401"},
		"no name":    {h.env(h.api), "LMOS-2011"},
		"too large":  {h.env(h.api), "LMOS-1413"},
	} {
		for language, file := range map[string]string{"python3": "testdata/agent.py", "node": "testdata/agent.mjs"} {
			t.Run(name+" "+language, func(t *testing.T) {
				t.Parallel()
				title := map[string]string{"no name": "", "too large": strings.Repeat("x", 1<<17-100)}[name]
				if title == "" && name != "no name" {
					title = "lamp"
				}
				out, err := command(t, c.env, testprogram.Path(t, language), file, title)
				if err == nil || !strings.Contains(out, c.want) {
					t.Errorf("got %v\n%.2000s", err, out)
				}
			})
		}
	}
}
