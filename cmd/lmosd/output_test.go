package main

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
)

func TestReached(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]api.Publication{
		"gossip 1 peer, dht 3/3":                                     {GossipPeers: 1, Replicas: 3, Wanted: 3},
		"pending: no peers yet; it is announced when there are some": {Pending: true},
	} {
		if got := reached(&p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestVersionIsNeverEmpty(t *testing.T) {
	t.Parallel()
	if v := buildInfo(); v.Version == "" || v.Go == "" || !strings.Contains(v.Platform, "/") || v.Version != version() {
		t.Errorf("got %+v", v)
	}
}
