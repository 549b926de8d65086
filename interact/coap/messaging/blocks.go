package messaging

import (
	"net/netip"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
)

const (
	maxStored   = 32 << 20 // bytes of a store; a host may use half of them
	maxItems    = 256      // likewise
	storeLife   = time.Minute
	tooBusy     = "try again in a while, or send less at once"
	itemsWeight = 512 // bytes that an item counts in addition to its data
)

// A BlockStore stores the bodies of block-wise transfers in one direction. It stores at most 256 bodies and 32 MiB, of which one host may have
// half, each for one minute after its last use. The zero value works. It is safe
// for concurrent use.
type BlockStore struct {
	// Evict replaces the oldest body by a new one; otherwise a full store rejects it.
	Evict bool

	mu    sync.Mutex // guards the rest, and the items
	items map[string]*item
	bytes int
}

// An item is one body, or one complete response.
type item struct {
	key    string
	host   netip.Addr
	data   []byte
	answer *Packet
	used   time.Time
}

func (i *item) weight() int { return len(i.data) + itemsWeight }

// Keep stores a response and replaces the one with its key. The error is [interact.Overloaded].
func (s *BlockStore) Keep(key string, host netip.Addr, answer *Packet, now time.Time) error {
	return s.put(&item{key: key, host: host, data: answer.Payload, answer: answer}, now)
}

func (s *BlockStore) put(i *item, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(now)
	s.removeLocked(s.items[i.key])
	if err := s.roomLocked(i.host, i.weight(), 1); err != nil {
		return err
	}
	if s.items == nil {
		s.items = make(map[string]*item)
	}
	i.used = now
	s.items[i.key] = i
	s.bytes += i.weight()
	return nil
}

// Get returns the response with a key, or nil. The caller must not change it.
func (s *BlockStore) Get(key string, now time.Time) *Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.items[key]
	if i == nil || now.Sub(i.used) > storeLife {
		return nil
	}
	i.used = now
	return i.answer
}

// roomLocked makes room for n more bytes and items of host. It evicts the oldest items of the host, then, with Evict, of all hosts.
func (s *BlockStore) roomLocked(host netip.Addr, bytes, items int) error {
	own, mine := 0, 0
	for _, i := range s.items {
		if i.host == host {
			own, mine = own+i.weight(), mine+1
		}
	}
	for own+bytes > maxStored/2 || mine+items > maxItems/2 {
		i := s.oldestLocked(func(i *item) bool { return i.host == host })
		if i == nil {
			return tooMuch()
		}
		own, mine = own-i.weight(), mine-1
		s.removeLocked(i)
	}
	for s.bytes+bytes > maxStored || len(s.items)+items > maxItems {
		i := s.oldestLocked(func(*item) bool { return s.Evict })
		if i == nil {
			return tooMuch()
		}
		s.removeLocked(i)
	}
	return nil
}

func tooMuch() error {
	return interact.Errorf(interact.Overloaded, tooBusy, "too many bodies are on their way in blocks")
}

func (s *BlockStore) oldestLocked(of func(*item) bool) *item {
	var oldest *item
	for _, i := range s.items {
		if of(i) && (oldest == nil || i.used.Before(oldest.used)) {
			oldest = i
		}
	}
	return oldest
}

func (s *BlockStore) removeLocked(i *item) {
	if i != nil && s.items[i.key] == i {
		delete(s.items, i.key)
		s.bytes -= i.weight()
	}
}

func (s *BlockStore) sweepLocked(now time.Time) {
	for _, i := range s.items {
		if now.Sub(i.used) > storeLife {
			s.removeLocked(i)
		}
	}
}

// ErrGap means that blocks are missing: 4.08 (RFC 7959 §2.9.2).
var ErrGap = &Reject{codes.RequestEntityIncomplete, "the blocks before this one are not here; begin with block 0"}

// Gather adds the block b of a body with a key. It returns the complete body; done is false while blocks are missing. A
// duplicate block is ignored. The limit is the size of the body in bytes. The error is a [*Reject], or [interact.Overloaded].
func (s *BlockStore) Gather(key string, host netip.Addr, b Block, part []byte, limit int, now time.Time) (
	body []byte, done bool, err error) {
	if b.SZX > SZX1024 || b.More && !b.Full(len(part)) || len(part) > b.Size() {
		return nil, false, &Reject{codes.BadRequest, "a block has not the size that it says (RFC 7959 §2.2)"}
	}
	if b.Offset()+len(part) > limit {
		return nil, false, &Reject{codes.RequestEntityTooLarge, "the body is too large"}
	}
	if b.Num == 0 {
		if !b.More {
			return part, true, nil
		}
		return nil, false, s.put(&item{key: key, host: host, data: append([]byte(nil), part...)}, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.items[key]
	switch {
	case i == nil || now.Sub(i.used) > storeLife || b.Offset() > len(i.data):
		return nil, false, ErrGap
	case b.Offset() < len(i.data):
		if !b.More {
			return nil, false, ErrGap
		}
		return nil, false, nil
	}
	i.used = now
	if !b.More {
		s.removeLocked(i)
		return append(i.data, part...), true, nil
	}
	// The room of this body is counted first, so that it is not evicted.
	s.removeLocked(i)
	if err := s.roomLocked(host, i.weight()+len(part), 1); err != nil {
		return nil, false, err
	}
	i.data = append(i.data, part...)
	s.items[key] = i
	s.bytes += i.weight()
	return nil, false, nil
}

// TransferKey identifies a transfer by sender and request options (RFC 7959 §2.4, §2.5; RFC 9175 §3.3), never by token.
func TransferKey(from netip.AddrPort, p *Packet) string {
	b := append([]byte(from.String()), 0, byte(p.Code))
	for _, o := range p.Options {
		switch o.ID {
		case message.URIHost, message.URIPort, message.URIPath, message.URIQuery, message.Accept, requestTag:
			b = append(b, byte(o.ID>>8), byte(o.ID), byte(len(o.Value)>>8), byte(len(o.Value)))
			b = append(b, o.Value...)
		}
	}
	return string(b)
}
