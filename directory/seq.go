package directory

import (
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Seq returns the highest sequence number that was seen of a thing, withdrawn or expired ones included; 0 if none was. Its
// owner's next record must have a higher one, or nobody who knows this one takes it.
func (d *Directory) Seq(owner did.DID, thing string) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[td.Key(owner, thing)]; e != nil {
		return e.seq
	}
	return 0
}
