package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
)

func TestRunPrintsItsAddresses(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	if n.DID.PeerText() != n.PeerID || len(n.P2P) == 0 || !strings.HasSuffix(n.P2P[0], "/p2p/"+n.PeerID) {
		t.Errorf("the ready file has %+v", n.Ready)
	}
	status := decode[api.Status](t, x.at(n).ok("status", "-o", "json"))
	if status.DID != n.DID || status.API != n.API || status.State != "ready" || status.DataDir != n.dir {
		t.Errorf("status is %+v, the ready file %+v", status, n.Ready)
	}
	if r := x.lmosd("status", "--node", n.API, "--jq", ".did"); r.out != string(n.DID)+"\n" {
		t.Errorf("the API of the ready file gives %+v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(x.home, "*.ready*")); len(left) != 1 {
		t.Errorf("beside the ready file are %v", left)
	}
	n.prints("did\t"+string(n.DID)+"\n", "p2p\t/ip4/127.0.0.1/udp/", "api\t"+n.API+"\n", "data\t"+n.dir+"\n",
		"mesh\tlmos, waiting for others to connect\n", "ready\t")

	if code := n.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, n.talk.String())
	}
	if !gone(n.dir+".ready") || !gone(filepath.Join(n.dir, "lmosd.sock")) {
		t.Error("after the end the ready file or the socket are still there")
	}
	if n.talk.String() != "" {
		t.Errorf("a day without events has a log: %s", n.talk.String())
	}
}

func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	x := newUser(t, "LMOSD_FORCE_TTY=100", "NO_COLOR=1")
	n := x.node("n", "--mesh.bootstrap", "/ip4/127.0.0.1/udp/9/quic-v1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB")
	n.prints("lmosd ", "  "+n.DID.Short()+" "+string(n.DID)+"\n", "\n  p2p      /ip4/127.0.0.1/udp/", "\n           /ip4/127.0.0.1/tcp/",
		"\n  mesh     lmos, joining via 1 bootstrap peer\n",
		"\n  callers  any peer that reaches this node may call its agents (trust.untrusted)\n", "\nready in ")
	n.signal(syscall.SIGINT)
	if code := n.wait(); code != 0 {
		t.Errorf("SIGINT: exit code %d", code)
	}
	contains(t, n.talk.String(), "next: lmosd publish FILE --data-dir "+n.dir+"   ·   lmosd find --data-dir "+n.dir+"   ·   lmosd console --data-dir "+n.dir+"\n",
		"stopping: calls that run may finish; Ctrl-C again ends at once\nstopped\n")
	if strings.Contains(n.talk.String(), "processloop") || strings.Contains(n.talk.String(), "{") {
		t.Errorf("noise on the terminal: %s", n.talk.String())
	}
}

func TestRunForPrograms(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n", "-o", "json")
	eventually(t, "the document is complete", func() bool { return strings.HasSuffix(n.out.String(), "\n") })
	doc := decode[started](t, n.out.String())
	if doc.Kind != "Node" || doc.DID != n.DID || doc.API != n.API || len(doc.P2P) != 2 || doc.Took <= 0 {
		t.Errorf("got %+v", doc)
	}
	x.at(n).ok("publish", x.weather())
	eventually(t, "the publication is logged", func() bool { return strings.Contains(n.talk.String(), `"msg":"agent published","agent":"weather"`) })
	for line := range strings.Lines(n.talk.String()) {
		var record struct {
			Msg  string
			Took float64 `json:"took_ms"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Msg == "agent published" && record.Took <= 0 {
			t.Errorf("a line of the log is not JSON, or has no time: %v %s", err, line)
		}
	}
}

func TestRestartKeepsIdentityAndPublications(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather()
	first := x.node("n")
	x.at(first).ok("publish", file)
	token, err := os.ReadFile(filepath.Join(first.dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	first.signal(syscall.SIGKILL)
	first.wait()

	second := x.node("n")
	if second.DID != first.DID {
		t.Errorf("the node came back as %s, was %s", second.DID, first.DID)
	}
	second.prints("agents\t1 agent offered again\n")
	if again, _ := os.ReadFile(filepath.Join(second.dir, "api.token")); string(again) != string(token) {
		t.Error("the token of the API is another one")
	}
	if out := x.at(second).ok("call", "weather", "getWeather", "question=Rain in Bonn?", "interactionMode=text"); out != "Light rain, 12 °C, until 16:00.\n" {
		t.Errorf("the agent answers %q", out)
	}
}

// dialed returns a client of the API of a node with the rights of its operator.
func dialed(t *testing.T, n *nodeProcess) *api.Client {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(n.dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := api.Dial(n.API, strings.TrimSpace(string(token)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A node that ends while it loads its Things loses none, and serves those that are not loaded yet.
func TestKilledWhileLoading(t *testing.T) {
	t.Parallel()
	const agents = 200
	x := newUser(t)
	id := func(i int) string { return fmt.Sprint("urn:example:killed:", i) }
	n := x.node("n")
	c := dialed(t, n)
	for i := range agents {
		td := fmt.Sprintf(`{"@context":"https://www.w3.org/2022/wot/td/v1.1","id":%q,"title":"Killed %d","security":["none"],
"securityDefinitions":{"none":{"scheme":"nosec"}},"actions":{"act":{"forms":[{"href":"http://127.0.0.1:1/act"}]}}}`, id(i), i)
		if _, err := c.Publish(t.Context(), []byte(td)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		n.signal(syscall.SIGKILL)
		n.wait()
		n = x.node("n")
		c = dialed(t, n)
		for i := range agents {
			if _, err := c.Agent(t.Context(), id(agents-1-i)); err != nil {
				t.Fatal(err)
			}
			if i == 20 {
				break // the next end finds some that are not loaded
			}
		}
	}
	eventually(t, "all agents are offered", func() bool {
		s, err := c.Status(t.Context())
		return err == nil && s.Agents.Local == agents && s.State == "ready"
	})
}

func TestOneProcessAtATimeHasADataFolder(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	said := x.fails(cli.ExitConflict, "run", "--profile", "test", "--data-dir", n.dir)
	contains(t, said, "LMOS-3011", "process "+strconv.Itoa(n.cmd.Process.Pid), "lmosd run --data-dir DIR")
	x.at(n).ok("status") // the first is not disturbed
}

func TestPortsInUse(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	_, tcp, _ := net.SplitHostPort(l.Addr().String())
	_, udp, _ := net.SplitHostPort(u.LocalAddr().String())
	for name, test := range map[string]struct{ flag, value, says string }{
		"API":  {"--http.listen", l.Addr().String(), l.Addr().String() + " is in use"},
		"TCP":  {"--listen.p2p", "/ip4/127.0.0.1/tcp/" + tcp, "/ip4/127.0.0.1/tcp/" + tcp},
		"QUIC": {"--listen.p2p", "/ip4/127.0.0.1/udp/" + udp + "/quic-v1", "/ip4/127.0.0.1/udp/" + udp},
	} {
		said := x.fails(cli.ExitConflict, "run", "--profile", "test", "--data-dir", filepath.Join(x.home, name), test.flag, test.value)
		contains(t, said, "LMOS-3010", test.says, "\n  hint   ")
		if strings.Contains(said, `"level"`) {
			t.Errorf("%s: noise beside the error: %s", name, said)
		}
	}
}

// The first signal lets calls finish, the second does not.
func TestSignals(t *testing.T) {
	t.Parallel()
	signals(t, nil, map[string]signalStory{
		"one":  {syscall.SIGINT, 0, 0, 0},
		"two":  {syscall.SIGINT, syscall.SIGINT, -1, cli.ExitNoNode},
		"term": {syscall.SIGTERM, 0, 0, 0},
	})
}

// A signalStory has the signals that a node receives, and the exit codes of it and of a running call.
type signalStory struct {
	first, second syscall.Signal
	node, call    int
}

// signals runs stories. prepare changes the program of the node before it starts, unless it is nil.
func signals(t *testing.T, prepare func(*testing.T, *exec.Cmd), stories map[string]signalStory) {
	for name, test := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newUser(t)
			file, asked, release := x.slow()
			prepared := *x
			if prepare != nil {
				prepared.prepare = func(cmd *exec.Cmd) { prepare(t, cmd) }
			}
			n := prepared.node("n")
			x.at(n).ok("publish", file)
			call := x.at(n).start("call", "slow", "wait")
			<-asked
			n.signal(test.first)
			eventually(t, "the node drains", func() bool { return strings.Contains(x.at(n).lmosd("status").out, "draining") })
			x.at(n).fails(cli.ExitUnavailable, "call", "slow", "wait")
			if test.second != 0 {
				n.signal(test.second)
			}
			if test.node == 0 {
				release()
			}
			if code := n.wait(); code != test.node {
				t.Errorf("the node ends with %d, want %d\n%s", code, test.node, n.talk.String())
			}
			if code := call.wait(); code != test.call {
				t.Errorf("the call ends with %d, want %d\n%s%s", code, test.call, call.out.String(), call.talk.String())
			}
			if test.call == 0 && call.out.String() != "at last\n" {
				t.Errorf("the call gave %q", call.out.String())
			}
		})
	}
}

// A node under nohup outlives its terminal.
func TestNohup(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := filepath.Join(x.home, "ready.json")
	p := x.typing("trap '' HUP; exec lmosd run --profile test --data-dir n --ready-file " + file)
	eventually(t, "the node serves", func() bool { return !gone(file) })
	p.signal(syscall.SIGHUP)
	x.ok("status", "--data-dir", "n")
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestReasonsForAFailedStart(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.file("file", "")
	if err := os.MkdirAll(filepath.Join(x.home, "bad"), 0o700); err != nil {
		t.Fatal(err)
	}
	x.file("bad/identity.pem", "no key")
	long := filepath.Join(x.home, strings.Repeat("d", 100))
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no folder can be made":         {[]string{"--data-dir", file + "/x"}, cli.ExitUsage, "the data folder " + file + "/x cannot be made"},
		"a folder too deep for sockets": {[]string{"--data-dir", long}, cli.ExitUsage, "the path of the socket has"},
		"a key that is none":            {[]string{"--data-dir", filepath.Join(x.home, "bad")}, cli.ExitRefused, "identity.pem"},
		"no place for the ready file":   {[]string{"--ready-file", file + "/x"}, cli.ExitUsage, "the ready file " + file + "/x cannot be written"},
		"a ready file that is a folder": {[]string{"--ready-file", x.home}, cli.ExitUsage, "the path exists and is not a file"},
		"an unknown profile":            {[]string{"--profile", "tset"}, cli.ExitUsage, `did you mean "test"?`},
		"an open API":                   {[]string{"--http.listen", "0.0.0.0:0", "--http.auth", "none"}, cli.ExitUsage, "LMOS-2006"},
	} {
		r := x.lmosd(append([]string{"run", "--profile", "test"}, test.args...)...)
		if r.code != test.code || !strings.Contains(r.errors, test.says) || !strings.Contains(r.errors, "\n  hint   ") || r.out != "" {
			t.Errorf("%s: exit code %d, want %d with %q; %s%s", name, r.code, test.code, test.says, r.out, r.errors)
		}
	}
}

func TestTokenOfARunningNode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	file := x.weather()
	said := x.fails(cli.ExitRefused, "publish", file, "--node", n.API)
	contains(t, said, "LMOS-1401", "export LMOSD_TOKEN=$(cat "+filepath.Join(n.dir, "api.token")+")")
	with := *x
	with.env = append(append([]string{}, x.env...), "LMOSD_TOKEN=wrong")
	contains(t, with.fails(cli.ExitRefused, "publish", file, "--node", n.API), "LMOS-3003")
	token, err := os.ReadFile(filepath.Join(n.dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	with.env = append(append([]string{}, x.env...), "LMOSD_TOKEN="+strings.TrimSpace(string(token)))
	with.ok("publish", file, "--node", n.API)
}

func TestRelativeFolderIsMadeAbsolute(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := filepath.Join(x.home, "a.json")
	n := x.start("run", "--profile", "test", "--data-dir", "./a", "--ready-file", "./a.json")
	eventually(t, "the node serves", func() bool { return !gone(file) })
	x.ok("status", "--data-dir", "./a")
	x.ok("status", "--data-dir", "a/")
	x.ok("status", "--node", "./a/lmosd.sock")
	with := *x
	with.env = append(append([]string{}, x.env...), "LMOSD_DATA_DIR=a")
	if dir := with.ok("status", "--jq", ".data_dir"); dir != filepath.Join(x.home, "a")+"\n" {
		t.Errorf("the node says that its folder is %s", dir)
	}
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestFarthestComesFirst(t *testing.T) {
	t.Parallel()
	got := strings.Join(render.Addresses([]string{"/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip6/::1/udp/1/quic-v1", "/ip4/10.0.0.1/udp/1/quic-v1",
		"/dns4/x.example/tcp/1", "/ip4/192.0.2.1/udp/1/quic-v1", "/ip4/192.0.2.1/tcp/1", ""}), " ")
	const want = "/ip4/192.0.2.1/udp/1/quic-v1 /dns4/x.example/tcp/1 /ip4/192.0.2.1/tcp/1  /ip4/10.0.0.1/udp/1/quic-v1 /ip4/10.0.0.1/tcp/1 " +
		"/ip6/::1/udp/1/quic-v1 /ip4/127.0.0.1/tcp/1"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A command that waits for a node starts before it.
func TestWaitForANodeThatStarts(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	done := make(chan result, 1)
	go func() {
		done <- x.lmosd("wait", "--for", "ready", "--for", "agent=weather", "--data-dir", "n", "--timeout", "2m", "-o", "json", "--jq", ".met")
	}()
	n := x.node("n")
	x.at(n).ok("publish", x.weather())
	if r := <-done; r.code != 0 || r.out != "true\n" {
		t.Errorf("got %+v", r)
	}
}
