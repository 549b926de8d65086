package directory

import (
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Seq returns the highest known sequence number of a Thing, also of a withdrawn or expired one; 0 if there is none. The next record of its
// owner must have a higher one.
func (d *Directory) Seq(owner did.DID, thing string) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[td.Key(owner, thing)]; e != nil {
		return e.seq
	}
	return 0
}
