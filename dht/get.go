package dht

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

const (
	getTime  = 10 * time.Second // of Get, if ctx has no deadline
	quorum   = 3                // the library stops after one more response
	settle   = 250 * time.Millisecond
	bodyTime = 5 * time.Second // of one host's TD
)

// errBody means that a host sent a TD that does not match the record.
var errBody = errors.New("the TD does not match the record")

// Get returns the record of a Thing, and its TD unless it is inside the record. It selects the best of the first responses, and waits
// 250 ms after the first one for a better: a response may be outdated, so the caller keeps the record with the higher sequence
// number. The result may be a tombstone.
//
// The error wraps [did.ErrNotFound] if no peer that answered has a valid record, and also [ErrNoPeers] if there are no peers. The
// default deadline is 10 s.
func (d *DHT) Get(ctx context.Context, owner did.DID, thing string) (*td.Signed, error) {
	s, err := d.get(ctx, owner, thing)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", thing, err)
	}
	return s, nil
}

func (d *DHT) get(ctx context.Context, owner did.DID, thing string) (*td.Signed, error) {
	ctx, cancel := withDefault(ctx, getTime)
	defer cancel()
	raw, err := d.search(ctx, valueKeyOf(owner, thing), settle)
	switch {
	case raw != nil:
	case err != nil:
		return nil, err
	case d.Size() == 0:
		return nil, fmt.Errorf("%w: %w", did.ErrNotFound, ErrNoPeers)
	default:
		return nil, did.ErrNotFound
	}
	rec, err := d.o.Verifier.Record(raw, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", did.ErrNotFound, err) // expired in between
	}
	s := &td.Signed{Record: raw}
	if rec.Kind != td.KindTD || len(rec.Inline) > 0 {
		return s, nil
	}
	s.TD, err = d.Body(ctx, rec)
	return s, err
}

// search returns the best valid value under key of those received until the quorum, the end of ctx, or settle after the first; nil
// if there is none.
func (d *DHT) search(ctx context.Context, key string, settle time.Duration) (best []byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	found, err := d.kad.SearchValue(ctx, key, kad.Quorum(quorum))
	if err != nil {
		cancel()
		return nil, err
	}
	defer func() {
		cancel()
		for range found { // ends with ctx, after the goroutine of the library
		}
	}()
	var settled <-chan time.Time
	for {
		select {
		case v, ok := <-found:
			if !ok {
				return best, ctxError(ctx, best)
			}
			best = v // the library yields only better values
			if settled == nil {
				t := time.NewTimer(settle)
				defer t.Stop()
				settled = t.C
			}
		case <-settled:
			return best, nil
		}
	}
}

// ctxError returns the error of ctx if it ended the search.
func ctxError(ctx context.Context, best []byte) error {
	if best != nil {
		return nil
	}
	return context.Cause(ctx)
}

// Body returns the TD of a record by its hash, from this node or one of the hosts of the record: connected ones first, each for at
// most 5 s. The TD is checked against the record; it has at most [td.MaxTD] bytes.
func (d *DHT) Body(ctx context.Context, r *td.Record) ([]byte, error) {
	if r.Kind != td.KindTD || r.Size <= 0 || r.Size > td.MaxTD {
		return nil, fmt.Errorf("fetch %s: the record has no TD", r.Thing)
	}
	if b, ok := d.o.Local.Body(did.AsProcess(ctx), r.Hash); ok {
		return b, checkBody(r, b)
	}
	errs := []error{errors.New("no host is reachable")}
	for _, ai := range d.hostsOf(r) {
		b, err := d.bodyFrom(ctx, ai, r)
		if err == nil {
			return b, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", ai.ID, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("fetch %s: %w", r.Thing, errors.Join(errs...))
}

func (d *DHT) bodyFrom(ctx context.Context, ai peer.AddrInfo, r *td.Record) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bodyTime)
	defer cancel()
	d.stats.queried.Add(1)
	d.host.Peerstore().AddAddrs(ai.ID, ai.Addrs, peerstore.TempAddrTTL)
	b, err := d.fetchBody(ctx, ai.ID, r.Hash)
	if err == nil {
		err = checkBody(r, b)
	}
	if err != nil {
		d.stats.queriesFailed.Add(1)
		return nil, err
	}
	return b, nil
}

func checkBody(r *td.Record, b []byte) error {
	if sum := sha256.Sum256(b); len(b) != r.Size || !bytes.Equal(sum[:], r.Hash[:]) {
		return errBody
	}
	return nil
}

// hostsOf returns the hosts of r that may be queried, connected ones first, with their addresses for the address book: an untrusted
// record must not make a public node dial private addresses.
func (d *DHT) hostsOf(r *td.Record) []peer.AddrInfo {
	var near, far []peer.AddrInfo
	for _, h := range r.Hosts {
		id, err := h.Node.Peer()
		if err != nil || peer.ID(id) == d.host.ID() || !d.admits(peer.ID(id)) {
			continue
		}
		ai := peer.AddrInfo{ID: peer.ID(id), Addrs: d.o.filterAddrs(multiaddrs(h.Addrs))}
		if d.host.Network().Connectedness(ai.ID) == network.Connected {
			near = append(near, ai)
		} else {
			far = append(far, ai)
		}
	}
	return slices.Concat(near, far)
}

func multiaddrs(texts []string) []ma.Multiaddr {
	var addrs []ma.Multiaddr
	for _, t := range texts {
		if a, err := ma.NewMultiaddr(t); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// withDefault limits ctx if it has no deadline.
func withDefault(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
