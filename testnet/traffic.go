package testnet

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// A use is the purpose of a stream.
type use int

const (
	forGossip     use = iota
	forDHT            // DHT lookups
	forQuestions      // records and bodies, requested from one node
	forStates         // states of agents, requested from their hosts
	forSync           // reconciliation
	forSuspicions     // failed hosts
	forOthers
	uses
)

var useNames = [uses]string{"gossip", "DHT", "questions", "states", "sync", "suspicion", "others"}

func useOf(p protocol.ID) use {
	for u, part := range map[use]string{forGossip: "/meshsub/", forDHT: "/kad/", forQuestions: "/records/", forSync: "/sync/", forSuspicions: "/suspicion/"} {
		if strings.Contains(string(p), part) {
			return u
		}
	}
	return forOthers
}

// sent is the traffic of simulated nodes: bytes written to streams, without the handshakes of connections and streams.
type sent [uses]struct {
	bytes uint64
	// requests counts writes to streams that the node opened. Each is one message in the streams of the DHT, of questions and of states.
	requests uint64
}

func (s sent) plus(o sent) sent {
	for u := range s {
		s[u].bytes += o[u].bytes
		s[u].requests += o[u].requests
	}
	return s
}

// since returns what was sent after before.
func (s sent) since(before sent) sent {
	for u := range s {
		s[u].bytes -= before[u].bytes
		s[u].requests -= before[u].requests
	}
	return s
}

// bytes returns the bytes of all uses.
func (s sent) bytes() (sum uint64) {
	for _, u := range s {
		sum += u.bytes
	}
	return sum
}

// per returns bytes by use, each divided by n, in kB.
func (s sent) per(n float64) string {
	var b strings.Builder
	for u, name := range useNames {
		fmt.Fprintf(&b, "%s %.2f, ", name, float64(s[u].bytes)/n/1000)
	}
	return fmt.Sprintf("%sall %.2f kB", b.String(), float64(s.bytes())/n/1000)
}

// traffic counts sent. It is safe for concurrent use.
type traffic [uses]struct{ bytes, requests atomic.Uint64 }

func (t *traffic) now() (s sent) {
	for u := range t {
		s[u].bytes, s[u].requests = t[u].bytes.Load(), t[u].requests.Load()
	}
	return s
}

// counted is a host that counts its streams.
type counted struct {
	host.Host
	sent *traffic
}

func (h counted) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	st, err := h.Host.NewStream(ctx, p, ids...)
	if err != nil {
		return nil, err
	}
	return &countedStream{st, h.sent, useOf(st.Protocol()), true}, nil
}

func (h counted) SetStreamHandler(id protocol.ID, f network.StreamHandler) {
	h.Host.SetStreamHandler(id, h.count(f))
}

func (h counted) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, f network.StreamHandler) {
	h.Host.SetStreamHandlerMatch(id, match, h.count(f))
}

func (h counted) count(f network.StreamHandler) network.StreamHandler {
	return func(st network.Stream) { f(&countedStream{st, h.sent, useOf(st.Protocol()), false}) }
}

type countedStream struct {
	network.Stream
	sent *traffic
	use  use
	ours bool // this node opened it
}

// stateQuestion occurs in requests for states: the member "op" with the text "state", in CBOR.
var stateQuestion = []byte("\x62op\x65state")

func (s *countedStream) Write(p []byte) (int, error) {
	if s.use == forQuestions && s.ours && bytes.Contains(p, stateQuestion) {
		s.use = forStates // a request is the only write of a stream
	}
	n, err := s.Stream.Write(p)
	s.sent[s.use].bytes.Add(uint64(n))
	if s.ours {
		s.sent[s.use].requests.Add(1)
	}
	return n, err
}
