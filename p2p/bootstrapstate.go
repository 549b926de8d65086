package p2p

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

// An entry is an entry of mesh.bootstrap, and what became of it. Bootstrap.mu owns its state.
type entry struct {
	id    peer.ID      // of the peer; empty for a name
	addr  ma.Multiaddr // without /p2p; nil for a name
	state api.BootstrapState
}

// addEntry adds an entry that was parsed.
func (b *Bootstrap) addEntry(text string, info *peer.AddrInfo) {
	e := &entry{state: api.BootstrapState{Addr: text, State: api.BootstrapWaiting}}
	if info != nil {
		e.id, e.state.DID = info.ID, did.OfPeer(info.ID)
		if len(info.Addrs) > 0 {
			e.addr = info.Addrs[0]
		}
	}
	b.entries = append(b.entries, e)
}

// Dialed receives the result of each dial of a bootstrap peer, and the time after which a failed one is repeated. It logs what has changed for the
// entries of mesh.bootstrap with this peer.
func (b *Bootstrap) Dialed(id peer.ID, err error, retry time.Duration) {
	if errors.Is(err, context.Canceled) {
		return
	}
	own, _ := b.host.(*Host)
	isRefused := isRefusal(err) || own != nil && own.Refused(id)
	for _, e := range b.entries {
		if e.id == "" || e.id != id {
			continue
		}
		switch {
		case isRefused:
			b.note(e, api.BootstrapRefused, "the policy of the node there refuses this node", retry)
		case err != nil:
			b.note(e, api.BootstrapUnreachable, dialReason(err, e.addr), retry)
		default:
			b.note(e, api.BootstrapReached, "", 0)
		}
	}
}

// resolvedName receives the result of each lookup of a name.
func (b *Bootstrap) resolvedName(text string, err error, retry time.Duration) {
	for _, e := range b.entries {
		switch {
		case e.id != "" || e.state.Addr != text:
		case err != nil:
			b.note(e, api.BootstrapUnreachable, dialReason(err, nil), retry)
		default:
			b.note(e, api.BootstrapReached, "", 0)
		}
	}
}

// note sets the state of an entry, and logs a change.
func (b *Bootstrap) note(e *entry, state, reason string, retry time.Duration) {
	now := time.Now().UTC()
	b.mu.Lock()
	s := &e.state
	isNew := s.State != state || s.Reason != reason
	if s.Next = (time.Time{}); retry > 0 {
		s.Next = now.Add(retry)
	}
	if isNew {
		s.State, s.Reason, s.Since = state, reason, now
	}
	addr, node := s.Addr, s.DID
	b.mu.Unlock()
	if !isNew {
		return
	}
	log := b.log.With("addr", addr)
	if node != "" {
		log = log.With("peer", node.Short())
	}
	switch state {
	case api.BootstrapReached:
		log.Info("bootstrap address reached")
	case api.BootstrapRefused:
		log.Warn("bootstrap address refused this node", "reason", reason, "retry_in", retry)
	default:
		log.Warn("bootstrap address not reached", "reason", reason, "retry_in", retry)
	}
}

// State returns the entries of mesh.bootstrap, in their order, and what became of them. A nil Bootstrap has none.
func (b *Bootstrap) State() (all []api.BootstrapState) {
	if b == nil {
		return nil
	}
	for _, e := range b.entries {
		if e.id != "" && b.host.Network().Connectedness(e.id) == network.Connected { // the peer may have dialed this node
			b.note(e, api.BootstrapReached, "", 0)
		}
		b.mu.Lock()
		all = append(all, e.state)
		b.mu.Unlock()
	}
	return all
}

// dialReason returns why the dial of an address failed, in the words of the user: the library lists all addresses of the peer with nested causes.
func dialReason(err error, addr ma.Multiaddr) string {
	if dial, ok := errors.AsType[*swarm.DialError](err); ok {
		for _, one := range dial.DialErrors {
			if err = one.Cause; addr != nil && one.Address.Equal(addr) {
				break
			}
		}
	}
	if other, ok := errors.AsType[sec.ErrPeerIDMismatch](err); ok {
		return "another node has this address: " + did.ShortPeer(other.Actual)
	}
	name, isName := errors.AsType[*net.DNSError](err)
	switch {
	case isName:
		return "the name " + name.Name + " is not resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: no program listens there"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to the host"
	case forClocks(err):
		return "the clocks of both nodes differ by more than an hour"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), os.IsTimeout(err), isTimeout(err):
		return "no answer"
	}
	return oneLine(err.Error())
}

// isTimeout reports whether err of a QUIC dial is a timeout, which the library passes on as text.
func isTimeout(err error) bool {
	text := err.Error()
	return strings.Contains(text, "deadline exceeded") || strings.Contains(text, "timeout: no recent network activity") || strings.Contains(text, "handshake did not complete in time")
}
