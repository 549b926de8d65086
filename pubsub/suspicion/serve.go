package suspicion

import (
	"errors"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of the messages that other nodes send.
const (
	service    = "lmos.suspicion"
	maxServing = 256 // concurrent: when many hosts fail, all peers report them at the same time
)

func (d *Detector) newServer() *streamserver.Server {
	return streamserver.New(streamserver.Options{Service: service, Total: maxServing, PerPeer: maxServing, Deadline: sendTimeout,
		Admit: d.admit, Done: d.done, Log: d.log})
}

// handle receives one message.
func (d *Detector) handle(st network.Stream) {
	d.server.Serve(st, func(st network.Stream) error {
		body, release, err := streamserver.ReadAll(st, st.Scope(), maxMessage)
		if err != nil {
			return err
		}
		defer release()
		d.counts.in.Add(uint64(len(body)))
		hosts, err := decode(body)
		if err != nil {
			return err
		}
		d.receive(st.Conn().RemotePeer(), hosts, time.Now())
		return nil
	})
}

func (d *Detector) admit(c network.Conn) network.StreamErrorCode {
	if !d.peers.allow(c.RemotePeer(), time.Now()) {
		return network.StreamRateLimited
	}
	return network.StreamNoError
}

func (d *Detector) done(p peer.ID, err error) {
	switch {
	case err == nil:
		return
	case err == streamserver.ErrPanic:
		d.counts.panics.Add(1)
	case errors.Is(err, streamserver.ErrViolation):
		d.peers.ban(p, time.Now())
		d.log.Warn("malformed suspicion message received", "peer", did.ShortPeer(p), "err", err)
	}
	d.counts.rejected.Add(1)
}

// Close rejects new messages, ends those being received, and returns after the last one. Call it after Run has returned, and before the
// host is closed.
func (d *Detector) Close() error {
	d.host.RemoveStreamHandler(d.proto)
	d.server.Close()
	return nil
}
