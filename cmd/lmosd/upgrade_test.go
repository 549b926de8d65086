package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	lmosd, err := exec.LookPath("lmosd")
	if err != nil {
		t.Fatal(err)
	}
	v := decode[upgradeVerdict](t, x.at(n).ok("upgrade", "check", lmosd, "-o", "json"))
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
	text := x.at(n).ok("upgrade", "check", lmosd)
	if after := len(peers()); after != before {
		t.Errorf("the other node has %d events, had %d: %+v", after, before, peers()[before:])
	}
	if !strings.Contains(text, "pass\tnew version\tstarts on the copy with 1 agent in ") {
		t.Errorf("got %s", text)
	}
}

// What a new version cannot do is reported, with exit code 1, and the copy is removed.
func TestUpgradeCheckFails(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	if code := n.stop(); code != 0 {
		t.Fatal(code)
	}
	lmosd, err := exec.LookPath("lmosd")
	if err != nil {
		t.Fatal(err)
	}
	script := func(name, text string) string {
		file := x.file(name, "#!/bin/sh\n"+strings.ReplaceAll(text, "LMOSD", lmosd)+"\n")
		if err := os.Chmod(file, 0o700); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for name, c := range map[string]struct{ program, check, want string }{
		"not there":         {filepath.Join(x.home, "gone"), "program", "does not run: no such file"},
		"another program":   {script("other", "echo {}"), "program", "it is not lmosd"},
		"an unknown key":    {script("strict", `case "$1" in config) exec LMOSD config validate -o json --config /nowhere;; esac; exec LMOSD "$@"`), "configuration", "(LMOS-2003)"},
		"it does not start": {script("broken", `[ "$1" = run ] && { echo "panic: no" >&2; exit 3; }; exec LMOSD "$@"`), "new version", "exit status 3: panic: no"},
		"another identity": {script("amnesia", `for a; do [ "$a" = --data-dir ] && next=1 || { [ "$next" ] && rm -f "$a/identity.pem"; next=; }; done; exec LMOSD "$@"`),
			"identity", "the DID was " + string(n.DID) + " and is did:key:"},
		"it leaves a newer store": {script("newer", `for a; do [ "$a" = --data-dir ] && next=1 || { [ "$next" ] && dir=$a; next=; }; done
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
	r := x.at(n).lmosd("upgrade", "check", lmosd, "-o", "json")
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
	if r := x.lmosd("upgrade", "check", lmosd, "-o", "json"); r.code != 1 || !strings.Contains(r.out, "there is no data folder") {
		t.Errorf("got %+v", r)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
