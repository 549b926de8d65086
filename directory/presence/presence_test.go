package presence

import (
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory"
)

// Peers without a DID, and lost peers that host no known Things, are not contacted: the monitor has no host to dial with.
func TestUnknownPeersAreNotContacted(t *testing.T) {
	t.Parallel()
	dir, err := directory.New(directory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := New(Options{Directory: dir})
	for _, id := range []peer.ID{"", "garbage"} {
		m.onConnected(t.Context(), id)
		m.redial(t.Context(), id)
	}
	key := didtest.NewKey()
	m.redial(t.Context(), peer.ID(key.Peer()))
}

func TestRequests(t *testing.T) {
	t.Parallel()
	r, now := &New(Options{}).requests, time.Now()
	if !r.begin("did:x:a", requestPause, now) || r.begin("did:x:a", requestPause, now.Add(requestPause-1)) || !r.begin("did:x:a", requestPause, now.Add(requestPause)) {
		t.Error("want one request per pause")
	}
	if wait, first := r.wait("did:x:a", now.Add(requestPause)); wait != requestPauseMin || !first {
		t.Errorf("after a failed call: wait %v, first %t", wait, first)
	}
	if _, first := r.wait("did:x:a", now); first {
		t.Error("two requests are scheduled for one host")
	}
	r.waited("did:x:a", now.Add(2*requestPause))
	if _, first := r.wait("did:x:a", now.Add(2*requestPause)); !first || r.begin("did:x:a", requestPause, now.Add(2*requestPause)) {
		t.Error("want the scheduled request recorded when it is sent")
	}
	for i := range 2 * maxRequested {
		r.begin(did.DID(fmt.Sprint(i)), requestPause, now)
	}
	if len(r.last) > maxRequested {
		t.Errorf("%d hosts are recorded", len(r.last))
	}
}

func TestNewcomers(t *testing.T) {
	t.Parallel()
	var c newcomers
	now := time.Now()
	asked := func(what string, node did.DID, known, want bool) {
		t.Helper()
		if c.begin(node, known, now) != want {
			t.Errorf("%s: asked %t, want %t", what, !want, want)
		}
	}
	c.join(now)
	asked("a known host, this node has just joined", "a", true, true)
	asked("the same, by a second connection", "a", true, false)
	now = now.Add(joinTime)
	asked("a known host, this node has joined long ago", "a", true, false)
	asked("a peer without known Things", "b", false, true)
	asked("the same again", "b", false, false)
	c.failed("b")
	asked("it did not answer", "b", true, true)
	c.down("a")
	asked("a known host that was down", "a", true, true)
	asked("the same again", "a", true, false)
	c.join(now)
	asked("a second peer does not begin a new time to join", "c", true, false)
	c.leave()
	c.join(now)
	asked("a known host, this node was alone", "b", true, true)
	for i := range 2 * maxRequested {
		node := did.DID(fmt.Sprint(i))
		c.begin(node, false, now)
		c.down(node)
	}
	if len(c.fetched) > maxRequested || len(c.missed) > maxRequested {
		t.Errorf("%d and %d hosts are recorded", len(c.fetched), len(c.missed))
	}
}
