package dht

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
)

const (
	faultTag   = "lmos-dht-fault"
	faultScore = -20
	worstScore = -100
	faultTime  = 10 * time.Minute // exclusion from the routing table
	faultPause = time.Minute      // between two log lines
	maxFaulty  = 1024             // excluded peers
)

// faults excludes peers that send malformed replies (S12). It is safe for concurrent use.
type faults struct {
	host host.Host
	log  *slog.Logger
	kad  atomic.Pointer[kad.IpfsDHT] // nil until the library is open

	// The following fields are owned by mu. until is the end of the exclusion of each peer.
	mu     sync.Mutex
	until  map[peer.ID]time.Time
	logged time.Time
	silent int // faults since then
}

// note excludes p for a while, lowers its score, and logs with a limited rate.
func (f *faults) note(p peer.ID, err error) {
	others, log := f.remember(p, time.Now())
	f.host.ConnManager().UpsertTag(p, faultTag, func(score int) int { return max(score+faultScore, worstScore) })
	if k := f.kad.Load(); k != nil {
		k.RoutingTable().RemovePeer(p)
	}
	if log {
		f.log.Warn("peer sends malformed DHT replies", "peer", did.ShortPeer(p), "err", err, "others", others)
	}
}

func (f *faults) remember(p peer.ID, now time.Time) (others int, log bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	boundedmap.Put(&f.until, p, now.Add(faultTime), maxFaulty, now.After)
	if now.Sub(f.logged) < faultPause {
		f.silent++
		return 0, false
	}
	others, f.silent, f.logged = f.silent, 0, now
	return others, true
}

// has reports whether p is excluded. The library would add it again after any valid reply.
func (f *faults) has(p peer.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	end, ok := f.until[p]
	return ok && time.Now().Before(end)
}

// sweep removes excluded peers from the routing table, which a late valid reply may have added again.
func (f *faults) sweep() {
	table := f.kad.Load().RoutingTable()
	for _, p := range table.ListPeers() {
		if f.has(p) {
			table.RemovePeer(p)
		}
	}
}
