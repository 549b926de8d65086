package directory

import "github.com/lmosd/lmosd/did"

// Hosts reports whether a known thing is reached through node.
func (d *Directory) Hosts(node did.DID) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.hosts[node] > 0
}

// countHostsLocked adds a living e to the counts of its hosts and its TD, or removes it.
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
