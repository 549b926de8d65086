package trust

import "github.com/lmosd/lmosd/did/webvh"

// Unconfirmed returns the name of the partner with a SCID, or of any partner for "*", if the operator has not compared its check words;
// otherwise "" (rules.Options.Unconfirmed). A nil Trust has no partners.
func (t *Trust) Unconfirmed(scid string) string {
	if t == nil {
		return ""
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.book.Partners {
		if !p.Confirmed && !p.IsRemoved() && (scid == "*" || webvh.SCID(p.DID) == scid) {
			return p.Name
		}
	}
	return ""
}
