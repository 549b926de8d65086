package runlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

const (
	self = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	peer = did.DID("did:key:z6MkiG7AnTmVKuAYe7cioq14TeRxM7mNgQdjCciLC3T5MHsQ")
)

// written returns the lines for the events of one window.
func written(events ...api.NodeEvent) string {
	var out bytes.Buffer
	h := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
	r := &recorder{self: self, log: slog.New(h), names: func() map[did.DID]string { return map[did.DID]string{peer: "lab\x1b 2"} }}
	r.write(events)
	return out.String()
}

func TestLinesOfAWindow(t *testing.T) {
	t.Parallel()
	agent := func(kind, name string, owner did.DID) api.NodeEvent {
		return api.NodeEvent{Kind: kind, Thing: "urn:x:" + name, Name: name, DID: owner}
	}
	var many []api.NodeEvent
	for i := range 12 {
		many = append(many, agent(api.EventAgentAdded, fmt.Sprintf("a%d", i), peer))
	}
	for name, test := range map[string]struct {
		events []api.NodeEvent
		want   string
	}{
		"a peer with a name":              {[]api.NodeEvent{{Kind: api.EventPeerConnected, DID: peer}}, `msg="peer joined" peer="lab� 2 (z6MkiG7A…)"` + "\n"},
		"a peer without a name":           {[]api.NodeEvent{{Kind: api.EventPeerDisconnected, DID: peer}}, `msg="peer left" peer=z6MkiG7A…` + "\n"},
		"a peer that came and went":       {[]api.NodeEvent{{Kind: api.EventPeerConnected, DID: peer}, {Kind: api.EventPeerDisconnected, DID: peer}}, ""},
		"own agents are logged elsewhere": {[]api.NodeEvent{agent(api.EventAgentAdded, "weather", self)}, ""},
		"an agent":                        {[]api.NodeEvent{agent(api.EventAgentUnreachable, "weather", peer)}, `msg="agent unreachable" agent=weather@z6MkiG7AnTmV` + "\n"},
		"many agents":                     {many, `msg="agents found" count=12 agents="a0@z6MkiG7AnTmV, a1@z6MkiG7AnTmV, a2@z6MkiG7AnTmV and 9 more"` + "\n"},
		"a relay":                         {[]api.NodeEvent{{Kind: api.EventRelayLost, DID: peer, Name: "gate"}}, `msg="relay lost" relay="gate (z6MkiG7A…)"` + "\n"},
		"warnings": {[]api.NodeEvent{{Kind: api.EventWarningRaised, Code: "LMOS-W001", Name: "no-peers", Text: "this node is alone"}, {Kind: api.EventWarningCleared, Code: "LMOS-W001", Name: "no-peers"}},
			`msg="this node is alone" code=LMOS-W001` + "\n" + `msg="warning ended" code=LMOS-W001 warning=no-peers` + "\n"},
		"a gap and tasks": {[]api.NodeEvent{{Kind: api.EventGap, From: 1, To: 9}, {Kind: api.EventTaskEnded}}, ""},
	} {
		if got := written(test.events...); got != test.want {
			t.Errorf("%s:\n got %swant %s", name, got, test.want)
		}
	}
}

// A window ends with the events, and however many there are, a kind has few lines.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	events := make(chan api.NodeEvent, 2000)
	for i := range cap(events) {
		events <- api.NodeEvent{Kind: api.EventAgentAdded, Thing: fmt.Sprint("urn:x:", i), Name: "a", DID: peer}
	}
	close(events)
	var out bytes.Buffer
	(&recorder{self: self, log: slog.New(slog.NewTextHandler(&out, nil)), names: func() map[did.DID]string { return nil }}).run(events)
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "count=2000") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}
