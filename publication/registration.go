package publication

import "time"

// A Registration is the part of an Enriched TD that a directory adds (WoT Discovery §7.1). Zero times are unknown.
type Registration struct {
	Created  time.Time `json:"created,omitzero"`
	Modified time.Time `json:"modified,omitzero"`
	// Expires is when the Thing is withdrawn. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
	// TTL is the life of the registration after each change, in seconds. Zero means that Expires is absolute.
	TTL float64 `json:"ttl,omitempty"`
}

// At returns r for a Thing that is registered or changed at now; was is its registration before, or zero. The directory computes
// Expires from TTL at creation and at every update, and ignores the Expires of the client.
func (r Registration) At(now time.Time, was Registration) Registration {
	r.Created, r.Modified = was.Created, now
	if r.Created.IsZero() {
		r.Created = now
	}
	if r.TTL > 0 {
		r.Expires = now.Add(time.Duration(r.TTL * float64(time.Second)))
	}
	return r
}

// Renewed is At for a Thing whose TD does not change.
func (r Registration) Renewed(now time.Time, was Registration) Registration {
	r = r.At(now, was)
	r.Modified = was.Modified
	return r
}

// HasExpired reports whether r has expired at now.
func (r Registration) HasExpired(now time.Time) bool {
	return !r.Expires.IsZero() && !now.Before(r.Expires)
}
