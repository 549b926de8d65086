package render

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

var update = flag.Bool("update", false, "write the golden files anew")

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

const (
	alpha = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	beta  = did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
)

// screens are what people see of the main commands.
var screens = map[string]func(*terminal.Screen){
	"peers": func(s *terminal.Screen) {
		Peers([]api.Peer{
			{DID: alpha, PeerID: alpha.PeerText(), Addr: "/ip4/192.0.2.7/udp/4667/quic-v1", Direction: "outbound", Transport: "quic", RTT: 1.24, Since: 11520},
			{DID: beta, PeerID: beta.PeerText(), Addr: "/ip4/198.51.100.23/tcp/4667/p2p/" + alpha.PeerText() + "/p2p-circuit", Direction: "inbound",
				Transport: "tcp", Since: 40, Relay: alpha},
		}, false).Write(s)
	},
	"find": func(s *terminal.Screen) {
		list := api.AgentList{Items: []api.Agent{
			{Name: "weather", Owner: alpha, Ref: "urn:x:weather@" + alpha.Multibase(), Title: "Weather", State: api.StateReachable, Hosts: []did.DID{alpha},
				Capabilities: []string{"urn:example:weather:forecast", "urn:example:geo"}, Actions: []string{"getWeather", "getForecast", "getReport"},
				LastSeen: noon.Add(-3 * time.Second), Organization: &api.OrganizationClaim{DID: "did:webvh:QmT4:globex.example", Name: "globex.example", State: "verified"}},
			{Name: "meteo", Owner: beta, Ref: "urn:x:meteo@" + beta.Multibase(), State: api.StateUnreachable, Hosts: []did.DID{beta},
				Capabilities: []string{"urn:example:weather"}, Actions: []string{"forecast"}, LastSeen: noon.Add(-2 * time.Minute)},
		}, Took: 14, Coverage: td.Coverage{Asked: 3, Answered: 3, Oldest: noon.Add(-2 * time.Minute)}}
		Agents(list.Items, false, noon).Write(s)
		s.Item("", 0, Coverage(&list, noon))
	},
	"status": func(s *terminal.Screen) {
		st := &api.Status{State: "degraded", DID: alpha, Name: "alpha", Version: "0.1.0", Uptime: 11520, Profile: "default", Network: "lmos",
			DataDir: "/var/lib/lmosd", API: "http://127.0.0.1:4668", Callers: "permitted", Reachability: api.ReachablePrivate, Relays: 2,
			Warnings: []api.Warning{{Code: "LMOS-W031", Title: "clock-skew", Text: "peer clocks differ by 41 s; signatures may be refused",
				Hint: "timedatectl set-ntp true"}}}
		st.DHT.Mode, st.DHT.Table, st.Peers.Total, st.Peers.Direct, st.Peers.Relayed = "server", 61, 14, 12, 2
		st.Gossip.Peers, st.Gossip.Topics = 6, 3
		st.Agents.Local, st.Agents.Known, st.Calls.Total, st.Calls.P50, st.Calls.P99 = 3, 212, 18200, 2.1, 19
		Status(s, st, &api.Organization{Name: "acme.example", State: api.OrganizationConfirmed, Roles: []string{"node"}, Issuer: true},
			[]api.Partner{{Name: "globex", State: api.PartnerActive, Connected: 1}}, "", func(hint string, _ []interact.Step) string { return hint })
	},
	"task-ls": func(s *terminal.Screen) {
		Tasks([]api.Task{
			{ID: "3f2a0000-0000-4000-8000-000000000000", Name: "weather", Thing: "urn:x:weather", Action: "getReport", Status: "running", Requested: noon.Add(-time.Minute)},
			{ID: "5d020000-0000-4000-8000-000000000000", Name: "invoices-of-the-whole-company", Thing: "urn:x:invoices", Action: "collectEverythingOfTheYear",
				Status: "completed", Requested: noon.Add(-2 * time.Hour), Ended: noon.Add(-time.Hour)},
			{ID: "77770000-0000-4000-8000-000000000000", Name: "weather", Thing: "urn:x:weather", Action: "getReport", Status: api.UnknownTask, LastStatus: "running",
				LastSeen: noon.Add(-3 * time.Hour), Requested: noon.Add(-4 * time.Hour)},
		}, noon).Write(s)
	},
}

// The screens of the main commands are files of testdata/screens, at 80 and 120 columns, with and without colors; -update writes them.
func TestScreens(t *testing.T) {
	t.Parallel()
	for name, print := range screens {
		for _, columns := range []string{"80", "120"} {
			for _, kind := range []string{"color", "plain"} {
				env := map[string]string{"LMOSD_FORCE_TTY": columns, "TERM": "xterm", "NO_COLOR": map[string]string{"plain": "1"}[kind]}
				compare(t, fmt.Sprintf("%s-%s-%s", name, columns, kind), on(env, print))
			}
		}
		compare(t, name+"-80-ascii", on(map[string]string{"LMOSD_FORCE_TTY": "80", "NO_COLOR": "1", "LC_ALL": "C"}, print))
	}
}

// on returns what print writes to a screen of an environment.
func on(env map[string]string, print func(*terminal.Screen)) string {
	var b bytes.Buffer
	print(terminal.NewScreen(&b, func(name string) string { return env[name] }))
	return b.String()
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "screens", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s differs (go test ./cmd/lmosd/internal/render -update): %v\n%s", file, err, got)
	}
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

// No line of a screen is wider than the terminal, except for one word, which is copied.
func TestScreensFit(t *testing.T) {
	t.Parallel()
	for name, print := range screens {
		for _, columns := range []int{20, 40, 60, 80, 120} {
			for line := range strings.Lines(on(map[string]string{"LMOSD_FORCE_TTY": fmt.Sprint(columns)}, print)) {
				line = escape.ReplaceAllString(strings.TrimSuffix(line, "\n"), "")
				if n := terminal.Columns(line); n > columns && len(strings.Fields(line)) > 1 {
					t.Errorf("%s: %d columns on a terminal of %d: %s", name, n, columns, line)
				}
			}
		}
	}
}

// A locale without UTF-8 gets ASCII, a pipe gets the values as they are.
func TestASCIIScreens(t *testing.T) {
	t.Parallel()
	for _, print := range screens {
		for _, locale := range []string{"C", "POSIX", "en_US.ISO-8859-1"} {
			for i, r := range on(map[string]string{"LMOSD_FORCE_TTY": "80", "LC_ALL": locale}, print) {
				if r > 126 {
					t.Fatalf("%q at %d in the locale %s", r, i, locale)
				}
			}
		}
		if pipe := on(map[string]string{"LC_ALL": "C"}, print); pipe != on(nil, print) || strings.Contains(pipe, "\x1b") {
			t.Error("the locale or a color changes the values in a pipe")
		}
	}
}

func TestOutside(t *testing.T) {
	t.Parallel()
	own := []string{"/ip4/127.0.0.1/udp/4667/quic-v1", "/ip6/::1/tcp/4667"}
	if got := Outside(own); len(got) != 2 {
		t.Errorf("got %q, want all: there are no others", got)
	}
	if got := Outside(append([]string{"/ip4/192.168.1.7/tcp/4667", "/dns/a.example/tcp/1"}, own...)); len(got) != 2 || !strings.Contains(got[0], "192.168.1.7") {
		t.Errorf("got %q", got)
	}
}
