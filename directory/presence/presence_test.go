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
