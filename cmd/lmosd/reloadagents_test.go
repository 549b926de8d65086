package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// reloads reloads the configuration, and returns the states of agents as text. The exit code is 1 if an agent failed.
func (x *user) reloads() (states string, done api.ConfigReload) {
	x.t.Helper()
	r, want := x.lmosd("config", "reload", "-o", "json"), 0
	done = decode[api.ConfigReload](x.t, r.out)
	for _, one := range done.Agents {
		states += one.Name + " " + one.State + "\n"
		if one.State == api.AgentFailed || one.State == api.AgentKept {
			want = cli.ExitInternal
		}
	}
	if r.code != want {
		x.t.Errorf("exit code %d, want %d: %+v", r.code, want, done)
	}
	return states, done
}

// agentLines returns a configuration with agents.
func agentLines(lines ...string) string {
	text := "agents:\n"
	for _, line := range lines {
		text += "  - '" + line + "'\n"
	}
	return text
}

// The agent of a changed line continues while the new one does not start, however often the configuration is reloaded.
func TestAReloadKeepsTheAgentOfALineThatFails(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x.file("bad.json", `{"title": 5}`)
	x.file("broken.yaml", "openapi: [")
	first := "exec:cat --name echo --capability urn:x:first"
	n, edit := x.configured(agentLines("exec:cat --name other", first))
	x = x.at(n)
	for line, want := range map[string]string{
		"exec:./no-such-program --name echo":                      "no-such-program",
		x.home + "/bad.json":                                      "Invalid Thing Description",
		x.home + "/absent.json":                                   "absent.json",
		"openapi:" + x.home + "/broken.yaml --name echo":          "broken.yaml",
		"exec:cat --name echo --for no-such-partner":              "no-such-partner",
		"exec:cat --name echo --own-key --role none":              "none",
		"exec:cat --name another --key " + x.home + "/absent.pem": "absent.pem",
	} {
		edit(agentLines("exec:cat --name other", line))
		for range 2 {
			if states, done := x.reloads(); states != "echo kept\n" || !strings.Contains(done.Agents[0].Error, want) {
				t.Errorf("%s: %s%+v", line, states, done.Agents)
			}
		}
		if got := x.ok("call", "echo", "run", "hello"); !strings.Contains(got, "hello") {
			t.Errorf("%s: the agent answers %q", line, got)
		}
		contains(t, x.ok("find", "--capability", "urn:x:first"), "echo@")
	}
	if r := x.lmosd("config", "reload"); r.code != cli.ExitInternal || !strings.Contains(r.out, "kept as it was, because its changed line failed: ") {
		t.Errorf("for people: %+v", r)
	}
	edit(agentLines("exec:cat --name other", first))
	if states, _ := x.reloads(); states != "" {
		t.Errorf("its line again: %s", states)
	}
	edit(agentLines("exec:./no-such-program --name echo", "exec:cat --name other"))
	if states, _ := x.reloads(); states != "echo kept\n" {
		t.Errorf("at another place: %s", states)
	}
	edit(agentLines("exec:rev --name echo", "exec:cat --name other"))
	if states, _ := x.reloads(); states != "echo started\necho stopped\n" {
		t.Errorf("a good line: %s", states)
	}
	contains(t, x.ok("call", "echo", "run", "hello"), "olleh")
	edit(agentLines("exec:./no-such-program --name echo"))
	if states, _ := x.reloads(); states != "echo kept\nother stopped\n" {
		t.Errorf("a failed line and a removed one: %s", states)
	}
	edit(agentLines())
	if states, _ := x.reloads(); states != "echo stopped\n" {
		t.Errorf("no line: %s", states)
	}
	x.fails(cli.ExitNotFound, "call", "echo", "run", "hello")
}

// When one of two agents with the same name is removed, the other one answers.
func TestAReloadRemovesOneOfTwoAgentsWithAName(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n, edit := x.configured(agentLines("exec:cat --name echo", "exec:rev --name echo"))
	x = x.at(n)
	contains(t, x.ok("call", "echo", "run", "hello"), "olleh")
	edit(agentLines("exec:cat --name echo"))
	x.reloads()
	contains(t, x.ok("call", "echo", "run", "hello"), "hello")
}

// A call that runs ends well when its agent is replaced or removed, and calls meanwhile have answers.
func TestCallsEndAfterTheirAgentIsReplaced(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x.script("slow.sh", `read name; echo yes > $name.started; read line < $name.fifo; echo "$line"`)
	line := "exec:" + x.home + "/slow.sh --dir " + x.home + " --name "
	n, edit := x.configured(agentLines(line+"one", line+"two"))
	x = x.at(n)
	var calls []*program
	var fifos []*os.File
	for _, name := range []string{"one", "two"} {
		path := filepath.Join(x.home, name)
		if err := syscall.Mkfifo(path+".fifo", 0o600); err != nil {
			t.Fatal(err)
		}
		fifo, err := os.OpenFile(path+".fifo", os.O_RDWR, 0) // does not wait for a reader
		if err != nil {
			t.Fatal(err)
		}
		defer fifo.Close()
		fifos, calls = append(fifos, fifo), append(calls, x.start("call", name, "run", name))
		eventually(t, "the call runs", func() bool { _, err := os.Stat(path + ".started"); return err == nil })
	}
	stop, answered := make(chan struct{}), make(chan string)
	edit(agentLines("exec:cat --name one"))
	if states, _ := x.reloads(); states != "one started\none stopped\ntwo stopped\n" {
		t.Errorf("%s", states)
	}
	go func() {
		defer close(answered)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if r := x.lmosd("call", "one", "run", "again"); r.code != 0 || !strings.Contains(r.out, "again") {
				answered <- r.out + r.errors
				return
			}
		}
	}()
	for _, capability := range []string{"urn:x:a", "urn:x:b", "urn:x:c"} {
		edit(agentLines("exec:cat --name one --capability " + capability))
		x.reloads()
	}
	close(stop)
	if failure := <-answered; failure != "" {
		t.Errorf("a call during reloads: %s", failure)
	}
	for i, call := range calls {
		if _, err := fifos[i].WriteString("at last\n"); err != nil {
			t.Fatal(err)
		}
		if code := call.wait(); code != 0 || !strings.Contains(call.out.String(), "at last") {
			t.Errorf("call %d ended with exit code %d\n%s%s", i, code, call.out.String(), call.talk.String())
		}
	}
	x.fails(cli.ExitNotFound, "call", "two", "run", "hello")
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Reloads that come at once are applied one after the other: the last file is in force.
func TestReloadsAtOnce(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	asked, free := make(chan struct{}, 9), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-free:
		case <-r.Context().Done():
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(slow.Close)
	n, edit := x.configured(agentLines("exec:cat --name echo"))
	x = x.at(n)
	edit(agentLines(slow.URL+"/td --name echo", "exec:cat --name more"))
	first := x.start("config", "reload", "-o", "json")
	<-asked
	contains(t, x.ok("call", "echo", "run", "hello"), "hello")
	edit(agentLines("exec:rev --name echo", "exec:cat --name more"))
	second := x.start("config", "reload", "-o", "json")
	n.signal(syscall.SIGHUP)
	close(free)
	if first.wait() != cli.ExitInternal || second.wait() != 0 { // the first one keeps an agent
		t.Fatalf("%s%s", first.talk.String(), second.talk.String())
	}
	eventually(t, "the last configuration is in force", func() bool { return strings.Contains(x.ok("call", "echo", "run", "hello"), "olleh") })
	contains(t, first.out.String(), `"state":"kept"`)
	if states, _ := x.reloads(); states != "" {
		t.Errorf("one more reload: %s", states)
	}
}

// A node that stops does not wait for the agents that a reload starts, and withdraws none.
func TestAStopEndsAReload(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	asked := make(chan struct{}, 9)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nothing was written
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			t.Cleanup(func() { _ = c.Close() }) // nothing was written
			asked <- struct{}{}
		}
	}()
	var lines []string
	for _, name := range []string{"a", "b", "c", "d"} {
		lines = append(lines, "http://"+l.Addr().String()+"/"+name)
	}
	n, edit := x.configured(agentLines("exec:cat --name echo"))
	x = x.at(n)
	edit(agentLines(lines...))
	x.start("config", "reload")
	<-asked
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if text := n.talk.String(); strings.Contains(text, "agent withdrawn") || strings.Contains(text, "was not withdrawn") {
		t.Errorf("the node ended an agent:\n%s", text)
	}
}
