package suspicion

import (
	"errors"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of the messages that other nodes send.
const (
	service    = "lmos.gone"
	maxServing = 256 // at once: when many hosts fail, all peers report them at once
)

func (r *Detector) newServer() *streamserver.Server {
	return streamserver.New(streamserver.Options{Service: service, Total: maxServing, PerPeer: maxServing, Deadline: sendTime,
		Admit: r.admit, Done: r.done, Log: r.log})
}

// handle receives one message and notes what it reports.
func (r *Detector) handle(st network.Stream) {
	r.server.Serve(st, func(st network.Stream) error {
		body, release, err := streamserver.ReadAll(st, st.Scope(), maxMessage)
		if err != nil {
			return err
		}
		defer release()
		r.counts.in.Add(uint64(len(body)))
		hosts, err := decode(body)
		if err != nil {
			return err
		}
		r.hear(st.Conn().RemotePeer(), hosts, time.Now())
		return nil
	})
}

func (r *Detector) admit(c network.Conn) network.StreamErrorCode {
	switch p := c.RemotePeer(); {
	case !r.admits(p):
		return network.StreamGated
	case !r.peers.may(p, time.Now()):
		return network.StreamRateLimited
	}
	return network.StreamNoError
}

func (r *Detector) done(p peer.ID, err error) {
	switch {
	case err == nil:
		return
	case err == streamserver.ErrPanic:
		r.counts.panics.Add(1)
	case errors.Is(err, streamserver.ErrViolation):
		r.peers.shun(p, time.Now())
		r.log.Warn("malformed suspicion message received", "peer", p, "err", err)
	}
	r.counts.refused.Add(1)
}

// Close refuses new messages, ends those that are read, and returns when the last has ended. It is called after Run has returned, and
// before the host is closed.
func (r *Detector) Close() error {
	r.host.RemoveStreamHandler(r.proto)
	r.server.Close()
	return nil
}
