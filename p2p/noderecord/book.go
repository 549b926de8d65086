package noderecord

import (
	"errors"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
)

const (
	maxTimes = 1 << 14 // nodes whose last record is known; at most twice as many, of about 120 bytes each
	maxKept  = 1 << 13 // nodes whose addresses are kept, of about 1 kB each
	// maxOthers limits the kept records of nodes that are not wanted: the first Thing of a node may arrive after its record.
	maxOthers = 1 << 10
)

// ErrOld means that a record is not newer than the last one of its node by [MinInterval].
var ErrOld = errors.New("not the newest record of a node")

// A Book has the newest records of other nodes. It is safe for concurrent use.
type Book struct {
	network string
	wants   func(did.DID) bool

	mu sync.Mutex // owns what follows
	// recent and old have the time of the newest record of each node, in two generations: a flood of keys removes those that are not renewed.
	recent, old map[peer.ID]time.Time
	kept        map[peer.ID]*Record
	others      map[peer.ID]*Record // of nodes that are not wanted
}

// NewBook returns a book for the records of a network. It keeps the addresses of the nodes for which wants returns true, and of a few others.
func NewBook(network string, wants func(did.DID) bool) *Book {
	return &Book{network: network, wants: wants}
}

// Network returns the network whose records are in the book.
func (b *Book) Network() string { return b.network }

// Add adds a record that others forward, and keeps raw. The error is one of [Parse], or [ErrOld].
func (b *Book) Add(raw []byte, now time.Time) (*Record, error) {
	r, w, err := decode(raw, b.network)
	if err != nil {
		return nil, err
	}
	if !b.isNew(r) { // before the signature, which costs more
		return nil, ErrOld
	}
	if err := r.check(w, now); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.lastLocked(r.Peer); ok && r.Issued.Before(last.Add(MinInterval)) { // meanwhile
		return nil, ErrOld
	}
	b.setLocked(r.Peer, r.Issued)
	if b.wants(r.Node) {
		b.keepLocked(r)
	} else {
		boundedmap.Put(&b.others, r.Peer, r, maxOthers, nil)
	}
	return r, nil
}

// Keep keeps the addresses of a verified record, unless it has newer ones.
func (b *Book) Keep(r *Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keepLocked(r)
}

func (b *Book) keepLocked(r *Record) {
	if known := b.kept[r.Peer]; known == nil || r.Issued.After(known.Issued) {
		boundedmap.Put(&b.kept, r.Peer, r, maxKept, nil)
	}
}

// Addrs returns the addresses that a node has signed; nil if they are not known, or have expired.
func (b *Book) Addrs(id peer.ID, now time.Time) []ma.Multiaddr {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.kept[id]
	if o := b.others[id]; r == nil || o != nil && o.Issued.After(r.Issued) {
		r = o
	}
	if r == nil || r.expired(now) {
		return nil
	}
	return r.Addrs
}

func (b *Book) isNew(r *Record) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, ok := b.lastLocked(r.Peer)
	return !ok || !r.Issued.Before(last.Add(MinInterval))
}

func (b *Book) lastLocked(id peer.ID) (time.Time, bool) {
	if at, ok := b.recent[id]; ok {
		return at, true
	}
	at, ok := b.old[id]
	return at, ok
}

func (b *Book) setLocked(id peer.ID, at time.Time) {
	if _, ok := b.recent[id]; !ok && len(b.recent) >= maxTimes {
		b.old, b.recent = b.recent, nil
	}
	if b.recent == nil {
		b.recent = map[peer.ID]time.Time{}
	}
	b.recent[id] = at
}
