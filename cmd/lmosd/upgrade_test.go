package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/api"
)

// An upgradeVerdict is the document of lmosd upgrade check.
type upgradeVerdict struct {
	Kind, Version string
	OK            bool
	Items         []api.DoctorCheck
}

// of returns the status and the text of a check.
func (v *upgradeVerdict) of(name string) string {
	for _, i := range v.Items {
		if i.Name == name {
			return i.Status + ": " + i.Text
		}
	}
	return ""
}

// left returns what a check has left next to the data folder.
func (x *user) left() []string {
	found, _ := filepath.Glob(filepath.Join(x.home, ".lmosd-upgrade-*"))
	return found
}

// The new version is tried on a copy while the node runs. Its peers see nothing of it.
func TestUpgradeCheckOfARunningNode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	other := x.node("other")
	n := x.node("n", "--mesh.bootstrap", other.P2P[0])
	x.at(n).ok("publish", x.weather())
	eventually(t, "the nodes are connected", func() bool { return len(decode[api.PeerList](t, x.at(other).ok("peers", "-o", "json")).Items) == 1 })
	if code := n.stop(); code != 0 { // it stores its peers, and dials them again by itself
		t.Fatal(code)
	}
	n = x.node("n")
	peers := func() []api.NodeEvent {
		list, err := dialed(t, other).Events(t.Context(), api.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	eventually(t, "the nodes are connected", func() bool { return len(decode[api.PeerList](t, x.at(other).ok("peers", "-o", "json")).Items) == 1 })
	eventually(t, "the other node knows the agent", func() bool { return decode[api.Status](t, x.at(other).ok("status", "-o", "json")).Agents.Known == 1 })
	before := len(peers())
	if before == 0 {
		t.Error("the other node reports no events of its peers")
	}
	v := decode[upgradeVerdict](t, x.at(n).ok("upgrade", "check", thisProgram(t), "-o", "json"))
	if !v.OK || v.Kind != "UpgradeCheck" || v.of("agents") != "pass: 1 stored agent" || v.of("identity") != "pass: "+n.DID.Short() ||
		!strings.HasPrefix(v.of("way back"), "pass: ") || len(v.Items) != 8 {
		t.Errorf("got %+v", v)
	}
	if after := len(peers()); after != before {
		t.Errorf("the other node has %d events, had %d: %+v", after, before, peers()[before:])
	}
	if s := decode[api.Status](t, x.at(n).ok("status", "-o", "json")); s.Agents.Local != 1 || s.Peers.Total != 1 {
		t.Errorf("the node has changed: %+v", s)
	}
	if left := x.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// A connection of the copy would be one of the node, if that has stopped.
	if code := n.stop(); code != 0 {
		t.Fatal(code)
	}
	eventually(t, "the node is gone", func() bool { return len(decode[api.PeerList](t, x.at(other).ok("peers", "-o", "json")).Items) == 0 })
	before = len(peers())
	text := x.at(n).ok("upgrade", "check", thisProgram(t))
	if after := len(peers()); after != before {
		t.Errorf("the other node has %d events, had %d: %+v", after, before, peers()[before:])
	}
	if !strings.Contains(text, "pass\tnew version\tstarts on the copy with 1 agent in ") {
		t.Errorf("got %s", text)
	}
}

// thisProgram returns the path of this program.
func thisProgram(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("lmosd")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// version writes a program that may be another version: a shell script in which LMOSD is this program. It returns the path.
func (x *user) version(name, text string) string {
	x.t.Helper()
	x.script(name, strings.ReplaceAll(text, "LMOSD", thisProgram(x.t)))
	return filepath.Join(x.home, name)
}

// What a new version cannot do is reported, with exit code 1, and the copy is removed.
func TestUpgradeCheckFails(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	if code := n.stop(); code != 0 {
		t.Fatal(code)
	}
	for name, c := range map[string]struct{ program, check, want string }{
		"not there":         {filepath.Join(x.home, "gone"), "program", "does not run: no such file"},
		"another program":   {x.version("other", "echo {}"), "program", "it is not lmosd"},
		"an unknown key":    {x.version("strict", `case "$1" in config) exec LMOSD config validate -o json --config /nowhere;; esac; exec LMOSD "$@"`), "configuration", "(LMOS-2003)"},
		"it does not start": {x.version("broken", `[ "$1" = run ] && { echo "panic: no" >&2; exit 3; }; exec LMOSD "$@"`), "new version", "exit status 3: panic: no"},
		"another identity": {x.version("amnesia", `for a; do [ "$a" = --data-dir ] && next=1 || { [ "$next" ] && rm -f "$a/identity.pem"; next=; }; done; exec LMOSD "$@"`),
			"identity", "the DID was " + string(n.DID) + " and is did:key:"},
		"it leaves a newer store": {x.version("newer", `for a; do [ "$a" = --data-dir ] && next=1 || { [ "$next" ] && dir=$a; next=; }; done
[ "$1" = run ] || exec LMOSD "$@"
LMOSD "$@" & child=$!
trap 'kill $child; wait $child; touch $dir/store/marker.format-version.999999.999; exit 0' TERM
wait $child; wait $child`), "way back", "warn: this version does not start after the new one: a newer version of lmosd wrote the store"},
	} {
		t.Run(name, func(t *testing.T) {
			r := x.at(n).lmosd("upgrade", "check", c.program, "-o", "json")
			v := decode[upgradeVerdict](t, r.out)
			if wanted := map[bool]int{true: 0, false: 1}[strings.HasPrefix(c.want, "warn")]; r.code != wanted || v.OK != (wanted == 0) || !strings.Contains(v.of(c.check), c.want) {
				t.Errorf("exit code %d, %+v", r.code, v)
			}
			if left := x.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}

	// A newer version wrote the data folder: neither version can be tried.
	newer := filepath.Join(n.dir, "store", "marker.format-version.999999.999")
	if err := os.WriteFile(newer, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := x.at(n).lmosd("upgrade", "check", thisProgram(t), "-o", "json")
	if v := decode[upgradeVerdict](t, r.out); r.code != 1 || !strings.Contains(v.of("this version"), "a newer version of lmosd wrote the store") || !strings.Contains(v.of("this version"), "LMOS-3022") {
		t.Errorf("exit code %d, %+v", r.code, v)
	}
	if text := x.at(n).fails(1, "run", "--profile", "test"); !strings.Contains(text, "LMOS-3022") {
		t.Errorf("the start: %s", text)
	}
	if !exists(newer) {
		t.Error("the store was moved aside")
	}
	x.at(n).fails(2, "upgrade", "check")
	x.env = append(x.env, "LMOSD_DATA_DIR="+filepath.Join(x.home, "none"))
	if r := x.lmosd("upgrade", "check", thisProgram(t), "-o", "json"); r.code != 1 || !strings.Contains(r.out, "there is no data folder") {
		t.Errorf("got %+v", r)
	}
}

// A trial makes no connections, starts no agents, and uses copies of the files that the configuration names.
func TestUpgradeCheckIsAlone(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns atomic.Int32
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
	})
	addr := l.Addr().String()
	text, err := os.ReadFile("testdata/weather.td.json")
	if err != nil {
		t.Fatal(err)
	}
	description := x.file("weather.td.json", strings.ReplaceAll(string(text), "127.0.0.1:9", addr))
	keys := filepath.Join(x.home, "keys")
	key, rules := filepath.Join(keys, "node.pem"), x.file("rules.yaml", "apiVersion: lmosd/v1\nrules: []\n")
	n := x.node("n", "--node.key", "file:"+key, "--trust.policy_file", rules)
	x.at(n).ok("publish", description)
	eventually(t, "the node probes the agent", func() bool {
		x.at(n).ok("find")
		return conns.Load() > 0
	})
	if code := n.stop(); code != 0 {
		t.Fatal(code)
	}
	conns.Store(0)

	marker := filepath.Join(x.home, "started")
	agent := x.version("agent", "touch "+marker+"; cat")
	host, port, _ := net.SplitHostPort(addr)
	x.env = append(x.env, "LMOSD_CONFIG="+x.file("lmosd.yaml", `apiVersion: lmosd/v1
node: {key: "file:`+key+`"}
trust: {policy_file: "`+rules+`", audit: {forward: "json+tcp://`+addr+`"}}
mesh: {bootstrap: [/ip4/`+host+`/tcp/`+port+`/p2p/`+n.PeerID+`]}
search: {method: vector, embeddings: {url: "http://`+addr+`/v1", model: m}}
telemetry: {traces: {endpoint: "http://`+addr+`"}}
agents: ["exec:`+agent+` --name one", "mcp:http://`+addr+`/mcp --name two"]
`))
	// The new version is asked for its agents, which makes a node probe them.
	program := x.version("new", `[ "$1" = run ] || exec LMOSD "$@"
for a; do [ "$last" = --ready-file ] && ready=$a; [ "$last" = --data-dir ] && dir=$a; [ "$last" = --node.key ] && key=$a; last=$a; done
LMOSD "$@" & child=$!
end() {
	LMOSD find --node "$(sed 's/.*"api":"\([^"]*\).*/\1/' "$ready")" >`+x.home+`/found 2>&1
	echo "$key" >`+x.home+`/key; stat -c %a "${key#file:}" >>`+x.home+`/key
	kill $child; wait $child
}
trap 'end; exit $?' TERM
wait $child; wait $child`)
	before := files(t, keys)
	v := decode[upgradeVerdict](t, x.at(n).ok("upgrade", "check", program, "-o", "json"))
	if !v.OK || v.of("agents") != "pass: 1 stored agent" || v.of("identity") != "pass: "+n.DID.Short() {
		t.Errorf("got %+v", v)
	}
	if n := conns.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
	if exists(marker) {
		t.Error("an agent was started")
	}
	if after := files(t, keys); !maps.Equal(before, after) {
		t.Errorf("the folder of the key has changed: %v, %v", before, after)
	}
	if found, err := os.ReadFile(filepath.Join(x.home, "found")); err != nil || !strings.Contains(string(found), "Weather") {
		t.Errorf("the trial has no agent: %v %s", err, found)
	}
	if used, err := os.ReadFile(filepath.Join(x.home, "key")); err != nil || !strings.HasPrefix(string(used), "file:"+x.home+"/.lmosd-upgrade-") || !strings.HasSuffix(string(used), "\n600\n") {
		t.Errorf("the key of the trial: %v %s", err, used)
	}
	if left := x.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	// Without its key, a version would make another one.
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	r := x.at(n).lmosd("upgrade", "check", thisProgram(t), "-o", "json")
	if v := decode[upgradeVerdict](t, r.out); r.code != 1 || v.of("copy") != "fail: there is no key "+key || exists(key) || len(x.left()) > 0 {
		t.Errorf("without a key: exit code %d, %+v, left %v", r.code, v, x.left())
	}
}

// files returns the files of a folder with their modes, sizes and times.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
	}
	return all
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
