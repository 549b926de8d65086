package dht

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// Query yields the matching records that one peer hosts, up to q.Limit, or 256 if that is 0: a zero query matches all. The records
// are unverified. An error is the last element. The default deadline is 10 s.
func (d *DHT) Query(ctx context.Context, p peer.ID, q td.Query) iter.Seq2[*td.Signed, error] {
	return func(yield func(*td.Signed, error) bool) {
		ctx, cancel := withDefault(ctx, recordsTime)
		defer cancel()
		left := false
		d.stats.queried.Add(1)
		_, err := d.queryRecords(ctx, p, newFindRequest(q), func(s *td.Signed) (bool, error) {
			left = !yield(s, nil)
			return !left, nil
		})
		if err != nil && !left {
			d.stats.queriesFailed.Add(1)
			yield(nil, err)
		}
	}
}

// fetchBody fetches the TD with the hash from p. The caller checks it.
func (d *DHT) fetchBody(ctx context.Context, p peer.ID, hash [32]byte) ([]byte, error) {
	var body []byte
	_, err := d.queryRecords(ctx, p, &recordsRequest{Op: opBody, Hash: hash[:]}, func(s *td.Signed) (bool, error) {
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

// queryRecords sends one request to p, and calls take with each record of the response until it returns false or an error. truncated
// means that p has more results. All memory is released when it returns, at the latest when ctx ends.
func (d *DHT) queryRecords(ctx context.Context, p peer.ID, q *recordsRequest, take func(*td.Signed) (bool, error)) (truncated bool, err error) {
	from := did.OfPeer(p) // the host accepts only Ed25519 keys
	return d.exchange(ctx, p, q, func(a *recordsResponse) (bool, error) {
		if len(a.States) > 0 {
			return false, fmt.Errorf("%w: unexpected states", errWire)
		}
		return take(&td.Signed{Record: a.Record, TD: a.TD, From: from})
	})
}

// exchange is queryRecords for all kinds of responses.
func (d *DHT) exchange(ctx context.Context, p peer.ID, q *recordsRequest, take func(*recordsResponse) (bool, error)) (truncated bool, err error) {
	frame, err := encodeMessage(q, maxRecordsRequest)
	if err != nil {
		return false, err
	}
	// A small exchange may use a relayed connection.
	st, err := d.host.NewStream(network.WithAllowLimitedConn(ctx, "lmos records"), p, d.records)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	truncated, err = roundTripRecords(st, frame, take)
	if !stop() {
		return false, context.Cause(ctx)
	}
	_ = st.Reset() // the response is complete; unlike Close, Reset never waits
	return truncated, err
}

func roundTripRecords(st network.Stream, frame []byte, take func(*recordsResponse) (bool, error)) (truncated bool, err error) {
	if _, err := st.Write(frame); err != nil {
		return false, fmt.Errorf("send request: %w", err)
	}
	if err := st.CloseWrite(); err != nil {
		return false, fmt.Errorf("send request: %w", err)
	}
	for range maxResults + 1 {
		a, release, err := readRecordsResponse(st, st.Scope())
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

// readRecordsResponse reads one frame of a response. release frees its memory.
func readRecordsResponse(r io.Reader, m streamserver.Memory) (a *recordsResponse, release func(), err error) {
	frame, release, err := streamserver.ReadFrame(r, m, maxRecordsResponse)
	if err != nil {
		return nil, nil, fmt.Errorf("read response: %w", err)
	}
	if a, err = decodeRecordsResponse(frame); err != nil {
		release()
		return nil, nil, err
	}
	return a, release, nil
}
