package dht

import (
	"context"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// askBody fetches the TD with the hash from p. The caller checks it.
func (d *DHT) askBody(ctx context.Context, p peer.ID, hash [32]byte) ([]byte, error) {
	var body []byte
	_, err := d.ask(ctx, p, &question{Op: opBody, Hash: hash[:]}, func(s *td.Signed) (bool, error) {
		if s.Record != nil || body != nil {
			return false, fmt.Errorf("%w: want one TD", errWire)
		}
		body = s.TD
		return true, nil
	})
	if err == nil && body == nil {
		err = fmt.Errorf("%w: no TD", errWire)
	}
	return body, err
}

// ask sends one query to p, and calls take with each part of the answer until it returns false or an error. truncated means that p
// has more results. ask has released everything when it returns, at the latest when ctx ends.
func (d *DHT) ask(ctx context.Context, p peer.ID, q *question, take func(*td.Signed) (bool, error)) (truncated bool, err error) {
	from, _ := did.FromPeer([]byte(p)) // the host accepts only Ed25519 keys
	return d.exchange(ctx, p, q, func(a *answer) (bool, error) {
		if len(a.States) > 0 {
			return false, fmt.Errorf("%w: unexpected states", errWire)
		}
		return take(&td.Signed{Record: a.Record, TD: a.TD, From: from})
	})
}

// exchange is ask for answers that are not records.
func (d *DHT) exchange(ctx context.Context, p peer.ID, q *question, take func(*answer) (bool, error)) (truncated bool, err error) {
	frame, err := encodeMessage(q, maxQuestion)
	if err != nil {
		return false, err
	}
	// A small exchange may use a relayed connection.
	st, err := d.host.NewStream(network.WithAllowLimitedConn(ctx, "lmos records"), p, d.records)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	truncated, err = converse(st, frame, take)
	if !stop() {
		return false, context.Cause(ctx)
	}
	_ = st.Reset() // the answer is complete; unlike Close, Reset never waits
	return truncated, err
}

func converse(st network.Stream, frame []byte, take func(*answer) (bool, error)) (truncated bool, err error) {
	if _, err := st.Write(frame); err != nil {
		return false, fmt.Errorf("ask: %w", err)
	}
	if err := st.CloseWrite(); err != nil {
		return false, fmt.Errorf("ask: %w", err)
	}
	for range maxResults + 1 {
		a, release, err := readAnswer(st, st.Scope())
		if err != nil {
			return false, err
		}
		if a.End {
			release()
			return a.Truncated, nil
		}
		more, err := take(a)
		release()
		if !more || err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("%w: more than %d records", errWire, maxResults)
}

// readAnswer reads one frame of an answer. release frees its memory.
func readAnswer(r io.Reader, m streamserver.Memory) (a *answer, release func(), err error) {
	frame, release, err := streamserver.ReadFrame(r, m, maxAnswer)
	if err != nil {
		return nil, nil, fmt.Errorf("read answer: %w", err)
	}
	if a, err = decodeAnswer(frame); err != nil {
		release()
		return nil, nil, err
	}
	return a, release, nil
}
