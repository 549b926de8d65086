package reconcile

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of sessions that other nodes begin.
const (
	service    = "lmos.sync"
	maxServing = 8 // concurrent sessions, one per peer
)

func (r *Reconciler) newServer() *streamserver.Server {
	return streamserver.New(streamserver.Options{Service: service, Total: maxServing, PerPeer: 1, Deadline: sessionTime,
		Admit: r.admit, Done: r.done, Log: r.log})
}

// handle serves a session that another node began.
func (r *Reconciler) handle(st network.Stream) {
	r.server.Serve(st, func(st network.Stream) error {
		report, err := r.runSession(st, (*session).respond)
		r.addCounts(st.Conn().RemotePeer(), report)
		return err
	})
}

func (r *Reconciler) admit(c network.Conn) network.StreamErrorCode {
	if p, now := c.RemotePeer(), time.Now(); r.peers.isBanned(p, now) || !r.peers.allow(p, now) {
		return network.StreamRateLimited
	}
	return network.StreamNoError
}

func (r *Reconciler) done(p peer.ID, err error) {
	switch err {
	case nil:
		r.counts.served.Add(1)
		return
	case streamserver.ErrRefused:
		r.counts.refused.Add(1)
		return
	case streamserver.ErrPanic:
		r.counts.panics.Add(1)
	}
	r.penalize(p, err)
}

// Close rejects new sessions, ends the served ones, and returns after the last one. Call it after Run has returned, and before the host is
// closed.
func (r *Reconciler) Close() error {
	r.host.RemoveStreamHandler(r.proto)
	r.server.Close()
	return nil
}
