package dht

import (
	"context"
	"iter"

	"github.com/libp2p/go-libp2p/core/peer"

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
