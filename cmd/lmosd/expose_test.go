package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// script writes a shell script into the home folder and returns how it is run.
func (x *user) script(name, body string) string {
	x.t.Helper()
	if err := os.Chmod(x.file(name, "#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		x.t.Fatal(err)
	}
	return "exec:./" + name
}

// exposed runs lmosd expose until the agent is there.
func (x *user) exposed(args ...string) *program {
	x.t.Helper()
	p := x.start(append([]string{"expose"}, args...)...)
	eventually(x.t, "the agent is exposed", func() bool {
		select {
		case <-p.ended:
			x.t.Fatalf("expose ended with exit code %d\n%s%s", p.wait(), p.out.String(), p.talk.String())
		default:
		}
		return strings.Contains(p.out.String(), "exposed ") || strings.HasPrefix(p.out.String(), "{")
	})
	return p
}

const sunny = `read question; echo "sunny in $question, says $LMOSD_AGENT/$LMOSD_ACTION"`

func TestExposeACommand(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	x = x.at(n)
	p := x.exposed(x.script("weather.sh", sunny), "--capability", "urn:x:weather", "--description", "Knows the weather.", "--action", "ask")
	p.prints("exposed weather@z6Mk", " · until this command ends\n", "id\turn:lmos:did:key:z6Mk", "capability\turn:x:weather\n", "action\task\n")
	eventually(t, "it says what comes next", func() bool { return strings.Contains(p.talk.String(), " ask …\n") })
	contains(t, p.talk.String(), "next: lmosd call weather@z6Mk")
	if out := x.ok("call", "weather", "ask", "Bonn"); out != "sunny in Bonn, says weather/ask\n" {
		t.Errorf("the agent answers %q", out)
	}
	call := decode[callResult](t, x.ok("call", "weather", "ask", "Bonn", "-o", "json"))
	if call.Path != "local" || call.Timings.Agent <= 0 || call.Timings.Total < call.Timings.Agent {
		t.Errorf("the times are %+v by %s", call.Timings, call.Path)
	}
	contains(t, x.ok("find", "--capability", "urn:x:weather"), "weather@")
	contains(t, x.ok("show", "weather"), "about\tKnows the weather.", "for WoT\t"+n.API+"/things/urn:lmos:did:key:")

	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.talk.String())
	}
	eventually(t, "it is withdrawn", func() bool { return x.lmosd("call", "weather", "ask", "Bonn").code == cli.ExitNotFound })
}

// What a command puts out reaches the caller on another node while the command still runs.
func TestExposedPartialOutputs(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	body := "echo one; while [ ! -e '" + filepath.Join(x.home, "go-on") + "' ]; do sleep 0.05; done; echo two"
	x.at(a).exposed(x.script("count.sh", body), "--name", "counter", "--delimiter", `\n`)
	eventually(t, "the other node finds it", func() bool { return x.at(b).lmosd("show", "counter").code == 0 })
	call := x.at(b).start("call", "counter", "run", "--stream")
	call.prints("one\n")
	if strings.Contains(call.out.String(), "two") {
		t.Error("the second part came before it was made")
	}
	x.file("go-on", "")
	if code := call.wait(); code != 0 || call.out.String() != "one\ntwo\n" {
		t.Errorf("exit code %d, %q %s", code, call.out.String(), call.talk.String())
	}
	// As a whole it is what the command wrote.
	for more, want := range map[string]string{"": "one\ntwo\n", "--accept text/plain": "one\ntwo\n",
		"--jq .output|tojson": `"one\ntwo\n"` + "\n"} {
		if out := x.at(b).ok(append([]string{"call", "counter", "run"}, strings.Fields(more)...)...); out != want {
			t.Errorf("%s: the whole output is %q", more, out)
		}
	}
	contains(t, x.at(b).ok("trace", "counter", "run"), "\nnetwork\t", "\tmesh", "\nhost\t", "\nagent\t", "\ntotal\t")
	contains(t, x.at(b).ok("trace", "counter"), "mesh\tup\t")
	ping := decode[api.Ping](t, x.at(b).ok("ping", "counter", "-n", "2", "-o", "json"))
	if ping.Node != a.DID || len(ping.RTT) != 2 || ping.RTT[0] <= 0 {
		t.Errorf("the ping is %+v", ping)
	}
}

func TestExposedBytesAreUnchanged(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	x.exposed("exec:cat", "--name", "mirror")
	picture := bytes.Repeat([]byte{0, 0xff, '"', '\n', 0x1b}, 40_000)
	x.file("picture", string(picture))
	for _, more := range [][]string{nil, {"--stream"}, {"--accept", "image/png"}, {"--accept", "image/png", "--stream"}} {
		out := x.ok(append([]string{"call", "mirror", "run", "@picture", "--content-type", "image/png"}, more...)...)
		if out != string(picture) {
			t.Errorf("%v: %d bytes came back of %d", more, len(out), len(picture))
		}
	}
}

func TestExposedCommandFails(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	x.exposed(x.script("broken.sh", "echo 'out of paper' >&2; exit 3"))
	contains(t, x.fails(cli.ExitAgent, "call", "broken", "run"), "LMOS-1502", "exit status 3: out of paper")
}

// An agent that was killed is away; if it does not come back, it is withdrawn.
func TestExposedAgentIsKilled(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	agent := x.script("weather.sh", sunny)
	p := x.exposed(agent)
	p.signal(syscall.SIGKILL)
	p.wait()
	eventually(t, "the agent is away", func() bool { // at first its connection may only have ended
		r := x.lmosd("call", "weather", "run", "Bonn")
		return r.code == cli.ExitTimeout && strings.Contains(r.errors, "is away")
	})

	again := x.exposed(agent)
	x.ok("call", "weather", "run", "Bonn")
	if testing.Short() {
		return // the grace is 15 s
	}
	watch := x.start("find", "--watch", "-o", "jsonl")
	eventually(t, "the watch lists the agent", func() bool { return strings.Contains(watch.out.String(), `"change":"ready"`) })
	again.signal(syscall.SIGKILL)
	again.wait()
	eventually(t, "the watch reports the withdrawal", func() bool { return strings.Contains(watch.out.String(), `"change":"removed"`) })
	watch.stop()
	eventually(t, "the agent is withdrawn", func() bool { return x.lmosd("call", "weather", "run", "Bonn").code == cli.ExitNotFound })
}

// A running call of another node finishes when the node of the attached agent, or the agent, is terminated.
func TestExposedAgentIsDrained(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"the node", "the agent"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			x := newUser(t)
			n := x.node("n")
			other := x.at(x.node("other", "--mesh.bootstrap", n.P2P[0]))
			free := filepath.Join(x.home, "free")
			if err := syscall.Mkfifo(free, 0o600); err != nil {
				t.Fatal(err)
			}
			agent := x.at(n).exposed(x.script("slow.sh", `: >asked; read answer <free; echo "$answer"`), "--name", "slow")
			eventually(t, "the other node knows it", func() bool { return other.lmosd("show", "slow").code == 0 })
			call := other.start("call", "slow", "run", "x")
			eventually(t, "the call runs", func() bool { return !gone(filepath.Join(x.home, "asked")) })
			leaving := agent
			if who == "the node" {
				leaving = n.program
			}
			leaving.signal(syscall.SIGTERM)
			eventually(t, "it takes no new calls", func() bool { return other.start("call", "slow", "run", "y").wait() == cli.ExitUnavailable })
			if err := os.WriteFile(free, []byte("at last\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if code := call.wait(); code != 0 || call.out.String() != "at last\n" {
				t.Errorf("the call ends with %d, %q\n%s", code, call.out.String(), call.talk.String())
			}
			if code := leaving.wait(); code != 0 {
				t.Errorf("%s ends with %d\n%s", who, code, leaving.talk.String())
			}
			if who == "the agent" {
				eventually(t, "it is withdrawn", func() bool { return other.lmosd("call", "slow", "run", "z").code == cli.ExitNotFound })
			}
		})
	}
}

// When the node is back, the agent is, too.
func TestExposedAgentOutlivesItsNode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	p := x.at(n).exposed(x.script("weather.sh", sunny))
	n.signal(syscall.SIGKILL)
	n.wait()
	n = x.node("n")
	eventually(t, "the agent is attached again", func() bool { return x.at(n).lmosd("call", "weather", "run", "Bonn").code == 0 })
	if code := n.stop(); code != 0 {
		t.Errorf("the node ends with %d\n%s", code, n.talk.String())
	}
	if code := p.stop(); code != 0 { // there is no node to withdraw from
		t.Errorf("expose ends with %d\n%s", code, p.talk.String())
	}
	if strings.Count(p.out.String(), "exposed") != 1 {
		t.Errorf("it printed %s", p.out.String())
	}
}

// A second expose with the same name replaces the first.
func TestExposeReplacesTheFirst(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	first := x.exposed("exec:echo first", "--name", "echo")
	second := x.exposed("exec:echo second", "--name", "echo", "-o", "json")
	if doc := decode[exposure](t, second.out.String()); !doc.Attached || doc.Name != "echo" || doc.Target != "exec:echo second" {
		t.Errorf("got %+v", doc)
	}
	if code := first.stop(); code != 0 {
		t.Errorf("the first ends with %d\n%s", code, first.talk.String())
	}
	if out := x.ok("call", "echo", "run"); out != "second\n" {
		t.Errorf("the agent answers %q", out)
	}
}

func TestExposeNeedsTheToken(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	contains(t, x.fails(cli.ExitRefused, "expose", "exec:cat", "--node", n.API), "hint")
	token, err := os.ReadFile(filepath.Join(n.dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	with := *x
	with.env = append(append([]string{}, x.env...), "LMOSD_TOKEN="+strings.TrimSpace(string(token)))
	with.exposed("exec:cat", "--node", n.API)
}

const petsYAML = "openapi: 3.0.3\ninfo: {title: Pets, version: '1'}\npaths:\n" +
	"  /actions/getWeather: {post: {operationId: ask, requestBody: {content: {application/json: {schema: {type: object}}}},\n" +
	"    responses: {'200': {description: ok, content: {application/json: {schema: {type: string}}}}}}}\n"

// TestExposeExamples runs the examples of the help page.
func TestExposeExamples(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	x.weather()
	x.script("weather.sh", sunny)
	x.file("pets.yaml", petsYAML)
	x.file("log.txt", "a\nb\n")
	for line := range strings.SplitSeq(newExposeCommand(newApp(nil, nil, nil, nil)).Example, "\n") {
		words := strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(line), "lmosd "), "127.0.0.1:8080", x.addr)
		if strings.Contains(line, ".example") {
			continue // it is not here: the tests of interop have one
		}
		if !strings.Contains(line, "exec:") {
			r := x.typed("lmosd " + words)
			if r.code != 0 || !strings.HasPrefix(r.out, "exposed ") {
				t.Errorf("%s: exit code %d\n%s%s", line, r.code, r.out, r.errors)
			}
			continue
		}
		p := x.typing("exec lmosd " + words)
		p.prints("exposed ")
		if code := p.stop(); code != 0 {
			t.Errorf("%s: exit code %d\n%s", line, code, p.talk.String())
		}
	}
	if out := x.ok("call", "pets", "ask", "question=Rain?", "interactionMode=text"); out == "" {
		t.Errorf("the web server answers %q", out)
	}
}

func TestAgentsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x.script("weather.sh", sunny)
	x.file("lamp.td.json", strings.ReplaceAll(petsTD, "Pets", "Lamp"))
	config := x.file("lmosd.yaml", "agents:\n  - \"exec:./weather.sh --name weather --capability urn:x:weather\"\n"+
		"  - \"'exec:tr a-z A-Z' --name upper --action shout\"\n  - lamp.td.json\n  - http://127.0.0.1:1\n")
	n := x.node("n", "-c", config)
	n.prints("agents\tweather, upper, lamp of the configuration\n")
	contains(t, n.talk.String(), "an agent of the configuration cannot be offered now", "http://127.0.0.1:1")
	if out := x.at(n).ok("call", "weather", "run", "Bonn"); out != "sunny in Bonn, says weather/run\n" {
		t.Errorf("the agent answers %q", out)
	}
	if out := x.at(n).ok("call", "upper", "shout", "not so loud"); out != "NOT SO LOUD\n" {
		t.Errorf("the agent answers %q", out)
	}
	contains(t, x.at(n).ok("show", "lamp"), "action\ttoggle")
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	again := x.node("n")
	again.prints("agents\t1 agent offered again\n") // those of the configuration were of that process
	x.at(again).ok("show", "lamp")
}

const petsTD = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Pets", "securityDefinitions": {"n": {"scheme": "nosec"}},
	"security": "n", "actions": {"toggle": {"forms": [{"href": "http://127.0.0.1:9/toggle"}]}}}`

func TestWrongAgentsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	for line, says := range map[string]string{
		"exec:./nothing.sh":           "nothing.sh does not exist",
		"exec:cat --fast":             "expected a target with flags, got: exec:cat --fast",
		"nothing.td.json":             "the file nothing.td.json cannot be read",
		"exec:cat --name 'a":          "a quote is not closed",
		"mcp:./server":                "server does not exist",
		"exec:cat --delimiter x -d y": "flag provided but not defined: -d",
	} {
		config := x.file("lmosd.yaml", "agents: [\"exec:cat --name first\", \""+line+"\"]\n")
		said := x.fails(cli.ExitUsage, "run", "--profile", "test", "--data-dir", filepath.Join(x.home, "n"), "-c", config)
		contains(t, said, "LMOS-2002", "agents[1] ("+config+":1)", says, "\n  hint   ")
	}
	config := x.file("lmosd.yaml", "agents: [\"exec:cat --fast\"]\n")
	contains(t, x.fails(cli.ExitUsage, "config", "validate", config), "agents[0]")
}

// A node whose WebSocket does not answer is one that does not run.
func TestExposeWithoutANode(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := lmosd(t.Context(), home(t), "", "expose", "exec:cat", "--node", "http://"+addr)
	if r.code != cli.ExitNoNode || r.out != "" {
		t.Errorf("exit code %d, %q %q", r.code, r.out, r.errors)
	}
}

// The declared inputs of a command are shown and checked, and each call has a line.
func TestExposeACommandWithInputs(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	p := x.exposed("exec:cat", "--name", "mirror", "--action", "look", "--input", "city:string", "--input", "days:integer=3")
	contains(t, x.ok("show", "mirror"), "action\tlook city=… [days=INTEGER]\n", "input\tlook city · string · required\n",
		"input\tlook days · integer · default 3\n", "example\tlmosd call mirror")
	if out := x.ok("call", "mirror", "look", "city=Bonn", "days=2"); out != `{"city":"Bonn","days":2}`+"\n" {
		t.Errorf("the agent answers %q", out)
	}
	contains(t, x.fails(cli.ExitUsage, "call", "mirror", "look", "citi=Bonn"), `the action has no input "citi"`, `did you mean "city"? lmosd call mirror look city=Bonn`)
	contains(t, x.fails(cli.ExitUsage, "call", "mirror", "look"), `"city" is missing`, "lmosd call mirror look city=…")
	x.exposed("exec:cat", "--name", "two", "--action", "look", "--action", "save", "--input", "look.city:string", "--input", "save.text:string?")
	contains(t, x.ok("show", "two"), "input\tlook city · string · required\n", "input\tsave text · string\n", "action\tsave [text=…]\n")
	contains(t, x.fails(cli.ExitUsage, "expose", "exec:cat", "--name", "b c", "--action", "look", "--input", "lok.city:string"),
		"no action is called lok: the actions are look", `did you mean "look.city:string"? `, " expose exec:cat --name 'b c' --action look --input look.city:string\n")
	eventually(t, "the call has a line", func() bool {
		return strings.Contains(p.talk.String(), "  look  ") && strings.Contains(p.talk.String(), "  ok\n")
	})
}
