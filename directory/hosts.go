package directory

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
)

// Hosts reports whether a known Thing is reached through node.
func (d *Directory) Hosts(node did.DID) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.hosts[node] > 0
}

// countHostsLocked adds a live e to the counts of its hosts and its TD, or removes it.
func (d *Directory) countHostsLocked(e *entry, in bool) {
	by := 1
	switch {
	case in:
		d.hashes[e.view.record.Hash] = e
	default:
		by = -1
		if d.hashes[e.view.record.Hash] == e {
			delete(d.hashes, e.view.record.Hash)
		}
	}
	for _, h := range e.view.record.Hosts {
		if d.hosts[h.Node] += by; d.hosts[h.Node] == 0 {
			delete(d.hosts, h.Node)
		}
	}
}

// reportHost reports the Things of a host whose reachability has changed. Calls do not overlap.
func (d *Directory) reportHost(node did.DID) {
	d.updateTiers(node)
	d.mu.RLock()
	defer d.mu.RUnlock()
	now := time.Now()
	for e := range d.liveEntriesLocked(d.index.List(index.Host, string(node)).All(), now) {
		up, why := d.IsReachable(e.view.record, now), Unreachable
		if up {
			why = Reachable
		}
		if e.reportedDown.CompareAndSwap(up, !up) {
			d.changed.add(logEntry{kind: Changed, reason: why, thing: e.view})
		}
	}
}
