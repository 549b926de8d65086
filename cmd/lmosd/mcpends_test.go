package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// endless is a program: an MCP server of both eras whose tool "wait" says that it is at work, if somebody wants to hear that, and never
// answers. Each call adds the number of the process to the file calls of the folder in which it runs.
func endless() {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := protocol.Parse(bytes.TrimSpace(line))
		if err != nil {
			continue
		}
		for _, r := range endlessReplies(m) {
			fmt.Println(string(r.Bytes()))
		}
		if m.Method() == protocol.CallTool {
			note(fmt.Sprintln(os.Getpid()))
		}
	}
}

func note(line string) {
	f, err := os.OpenFile("calls", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line); err != nil {
		panic(err)
	}
}

// endlessReplies are the immediate responses of the server.
func endlessReplies(m *protocol.Message) []*protocol.Message {
	reply := func(v map[string]any) []*protocol.Message {
		v["resultType"], v["ttlMs"], v["cacheScope"] = "complete", 0, "public"
		return []*protocol.Message{protocol.Respond(m.ID(), v)}
	}
	switch token := m.ProgressToken(); {
	case m.Method() == protocol.Discover:
		return reply(map[string]any{"supportedVersions": []string{protocol.Modern}, "capabilities": map[string]any{"tools": struct{}{}}})
	case m.Method() == protocol.Initialize:
		return reply(map[string]any{"protocolVersion": protocol.Legacy, "capabilities": map[string]any{"tools": struct{}{}},
			"serverInfo": protocol.Implementation{Name: "endless", Version: "1"}})
	case m.Method() == "tools/list":
		return reply(map[string]any{"tools": []any{map[string]any{"name": "wait", "inputSchema": map[string]string{"type": "object"}}}})
	case m.Method() == protocol.CallTool && token != nil:
		return []*protocol.Message{protocol.Request("", protocol.Progress, map[string]any{"progressToken": token, "progress": 1})}
	case m.IsRequest() && m.Method() != protocol.CallTool:
		return []*protocol.Message{protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "no"))}
	}
	return nil
}

// breaking is the same server of the old era over HTTP, which ends the stream of a call without an answer when it is let to.
func breaking(t *testing.T, end <-chan struct{}) (url string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m, bad := protocol.Parse(body)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case err != nil || bad != nil || m.IsModern():
			w.WriteHeader(http.StatusBadRequest)
		case !m.IsRequest():
			w.WriteHeader(http.StatusAccepted)
		case m.Method() == protocol.CallTool:
			w.Header().Set("Content-Type", "text/event-stream")
			for _, e := range endlessReplies(m) {
				fmt.Fprintf(w, "data: %s\n\n", e.Bytes())
			}
			w.(http.Flusher).Flush()
			select {
			case <-end:
			case <-r.Context().Done():
			}
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(endlessReplies(m)[0].Bytes())
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// An mcpCaller is a client of one revision that has started a call over one transport. Said are the messages that it received.
type mcpCaller struct {
	name  string
	said  *buffer
	leave func() // and wait
}

const callID = `"the call"`

// answers are the responses to the call.
func (c *mcpCaller) answers() (all []*protocol.Message) {
	for line := range strings.Lines(c.said.String()) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if m, err := protocol.Parse([]byte(line)); err == nil && m.IsResponse() && m.ID() == callID {
			all = append(all, m)
		}
	}
	return all
}

func (c *mcpCaller) progressed() bool { return strings.Contains(c.said.String(), protocol.Progress) }

// mcpRequest is one of an era.
func mcpRequest(id protocol.ID, method, era string, progress bool) *protocol.Message {
	meta := map[string]any{}
	if era == protocol.Modern {
		meta[protocol.MetaVersion], meta[protocol.MetaCapabilities] = era, struct{}{}
	}
	if progress {
		meta["progressToken"] = "p" + era
	}
	params := map[string]any{"_meta": meta}
	switch method {
	case protocol.CallTool:
		params["name"], params["arguments"] = "wait", struct{}{}
	case protocol.Initialize:
		params["protocolVersion"], params["capabilities"] = era, struct{}{}
		params["clientInfo"] = protocol.Implementation{Name: "test", Version: "1"}
	}
	return protocol.Request(id, method, params)
}

// overHTTP calls at url.
func overHTTP(t *testing.T, url, era string, progress bool) *mcpCaller {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	post := func(m *protocol.Message, session string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(m.Bytes()))
		if err != nil {
			return nil, err
		}
		for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Session-Id": session, "Mcp-Protocol-Version": era, "Mcp-Method": m.Method(), "Mcp-Name": "wait"} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		return client.Do(req)
	}
	session := ""
	if era != protocol.Modern {
		for _, m := range []*protocol.Message{mcpRequest("0", protocol.Initialize, era, false), protocol.Request("", protocol.Initialized, nil)} {
			resp, err := post(m, session)
			if err != nil || resp.StatusCode >= 300 {
				t.Fatal(resp, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			session += resp.Header.Get("Mcp-Session-Id")
		}
	}
	c := &mcpCaller{name: era + " over HTTP", said: &buffer{}}
	var work sync.WaitGroup
	work.Go(func() {
		resp, err := post(mcpRequest(callID, protocol.CallTool, era, progress), session)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			return
		}
		defer resp.Body.Close()
		if _, err := io.Copy(c.said, resp.Body); err != nil {
			t.Errorf("%s: the answer breaks off: %v", c.name, err)
		}
	})
	c.leave = func() {
		work.Wait()
		client.CloseIdleConnections()
	}
	return c
}

// piped runs a command whose input is written bit by bit.
func (x *user) piped(args ...string) (*program, io.WriteCloser) {
	x.t.Helper()
	cmd := x.command(args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		x.t.Fatal(err)
	}
	return x.run(cmd), in
}

// overStdio calls by lmosd mcp.
func overStdio(x *user, thing, era string, progress bool) *mcpCaller {
	x.t.Helper()
	p, in := x.piped("mcp", "--thing", thing)
	if era != protocol.Modern {
		fmt.Fprintf(in, "%s\n%s\n", mcpRequest("0", protocol.Initialize, era, false).Bytes(), protocol.Request("", protocol.Initialized, nil).Bytes())
		p.prints(`"protocolVersion"`)
	}
	fmt.Fprintf(in, "%s\n", mcpRequest(callID, protocol.CallTool, era, progress).Bytes())
	return &mcpCaller{name: era + " over stdio", said: &p.out, leave: func() {
		in.Close()
		p.wait()
	}}
}

// An endCase is what ends a call that will never be answered.
type endCase struct {
	progress bool
	upstream bool // the server is elsewhere, over HTTP
	cause    func(a, b *nodeProcess, pids []int, upstream func())
	want     string // in each answer
}

var endCases = map[string]endCase{
	"the host dies before progress": {false, false, func(a, _ *nodeProcess, _ []int, _ func()) { a.signal(syscall.SIGKILL) }, "LMOS-1503"},
	"the host dies after progress":  {true, false, func(a, _ *nodeProcess, _ []int, _ func()) { a.signal(syscall.SIGKILL) }, "LMOS-1503"},
	"the agent's server dies": {true, false, func(_, _ *nodeProcess, pids []int, _ func()) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone with another
		}
	}, "waiter ended before the response"},
	"the node stops": {true, false, func(_, b *nodeProcess, _ []int, _ func()) { b.signal(syscall.SIGTERM) }, `"retryable":true`},
	"the upstream's stream ends without an answer": {true, true, func(_, _ *nodeProcess, _ []int, end func()) { end() },
		"the server closed the connection before the response"},
}

// TestEveryStartedRequestEnds: whatever ends a call, its client gets one response or error with its id, in both eras, over HTTP and stdio.
func TestEveryStartedRequestEnds(t *testing.T) {
	t.Parallel()
	for name, c := range endCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

func (c endCase) run(t *testing.T) {
	x := newUser(t)
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	target, end := "mcp:endless", make(chan struct{})
	if c.upstream {
		target = "mcp:" + breaking(t, end)
	}
	x.at(a).exposed(target, "--name", "waiter")
	eventually(t, "the other node finds it", func() bool { return x.at(b).lmosd("show", "waiter").code == 0 })
	var callers []*mcpCaller
	for _, era := range []string{protocol.Modern, protocol.Legacy} {
		callers = append(callers, overHTTP(t, b.API+"/mcp/things/waiter", era, c.progress), overStdio(x.at(b), "waiter", era, c.progress))
	}
	pids := func() (all []int) {
		text, _ := os.ReadFile(filepath.Join(x.home, "calls")) // it may not be there yet
		for line := range strings.Lines(string(text)) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
		return all
	}
	eventually(t, "all calls have begun", func() bool {
		return (c.upstream || len(pids()) == len(callers)) && (!c.progress || !slices.ContainsFunc(callers, func(m *mcpCaller) bool { return !m.progressed() }))
	})
	c.cause(a, b, pids(), sync.OnceFunc(func() { close(end) }))
	for _, m := range callers {
		eventually(t, m.name+" is answered", func() bool { return len(m.answers()) > 0 })
		m.leave()
		all := m.answers()
		if len(all) != 1 {
			t.Errorf("%s: there are %d answers: %s", m.name, len(all), m.said.String())
		}
		text := string(all[0].Bytes())
		if e := all[0].Error(); e == nil && !strings.Contains(text, `"isError":true`) || e != nil && !json.Valid(e.Data) || !strings.Contains(text, c.want) {
			t.Errorf("%s: got %s, want %s", m.name, text, c.want)
		}
	}
}

// A client that starts lmosd mcp while the host of an agent is down has the agent as its description says it, hears why its calls fail, and
// goes on by itself when the host is back.
func TestClientStartedWhileTheHostIsDown(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	x.at(a).exposed("mcp:endless", "--name", "waiter")
	eventually(t, "the other node finds it", func() bool { return x.at(b).lmosd("show", "waiter").code == 0 })
	a.signal(syscall.SIGKILL)
	a.wait()
	p, in := x.at(b).piped("mcp", "--thing", "waiter")
	said := 0
	ask := func(method string) *protocol.Message {
		said++
		id := protocol.ID(strconv.Itoa(said))
		fmt.Fprintf(in, "%s\n", mcpRequest(id, method, protocol.Legacy, false).Bytes())
		var got *protocol.Message
		eventually(t, method+" is answered", func() bool {
			for line := range strings.Lines(p.out.String()) {
				if m, err := protocol.Parse([]byte(strings.TrimSpace(line))); err == nil && m.IsResponse() && m.ID() == id {
					got = m
				}
			}
			return got != nil
		})
		return got
	}
	contains(t, string(ask(protocol.Initialize).Bytes()), `"protocolVersion":"2025-11-25"`, `"title":"waiter"`)
	fmt.Fprintf(in, "%s\n", protocol.Request("", protocol.Initialized, nil).Bytes())
	contains(t, string(ask("tools/list").Bytes()), `"name":"wait"`, "LMOS-1503")
	contains(t, string(ask(protocol.CallTool).Bytes()), `"isError":true`, "LMOS-1503", "try again later")
	a = x.node("a", "--mesh.bootstrap", b.P2P[0])
	eventually(t, "the server itself answers", func() bool {
		list := string(ask("tools/list").Bytes())
		return strings.Contains(list, `"name":"wait"`) && !strings.Contains(list, "LMOS-1503")
	})
	in.Close()
	p.wait()
	a.stop()
}
