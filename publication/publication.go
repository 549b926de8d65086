// Package publication manages the Things that a node offers: sequence numbers, tombstones, storage and announcements.
//
// The [Publisher] is the only writer of the sequence numbers of the node. It stores each change durably before it announces it. The
// [Index] finds publications; the DHT, the directory and the chain of incoming calls read it. After a start loading.go publishes again what is stored. Agents that attach themselves to the node are
// in attached.go, Things of other owners that have granted them to this node in hosted.go; liveness.go probes the agents that are called over forms.
package publication

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/td"
)

// Lifetimes of records of withdrawn Things.
const (
	tombstoneLifetime = 25 * time.Hour      // longer than any record that was signed before
	movedLifetime     = 30 * 24 * time.Hour // the maximum of a record
)

// A Publication is a Thing that this node offers, or has withdrawn and still announces as withdrawn. It is stored as JSON, and is never
// changed after it is in the index.
type Publication struct {
	Thing     string     `json:"thing"` // id
	Seq       uint64     `json:"seq"`
	Signed    *td.Signed `json:"signed"`
	Withdrawn time.Time  `json:"withdrawn,omitzero"`
	Moved     did.DID    `json:"moved,omitempty"` // the new owner of a Thing that moved
	// Owner is that of a Thing of another owner, which has granted it to this node (hosted.go); else empty. Grant is what it has signed.
	Owner did.DID `json:"owner,omitempty"`
	Grant []byte  `json:"grant,omitempty"`
	// Registration is the Thing's registration in the W3C directory.
	Registration Registration `json:"registration,omitzero"`
	// For are the callers that may find and call the Thing in addition to those of the access rules, by their names in rules.
	For []string `json:"for,omitempty"`
	// Roles are those of the node that the agent of another owner, with a key of its own, has when it calls others through the node.
	Roles []string `json:"roles,omitempty"`
	// Attached marks a Thing of an agent in another process that is attached to this node. Only the mark and the capabilities of the record
	// are stored. After a restart the Thing is withdrawn unless the agent attaches again in time ([Publisher.Run]).
	Attached     bool     `json:"attached,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
	// Audience is that of the record. Only public records are announced.
	Audience td.Visibility `json:"audience,omitempty"`
	// Public is the public tombstone of a Thing that is restricted now and was public before. It is announced in place of the Thing.
	Public *td.Signed `json:"public,omitempty"`

	Description *td.Description `json:"-"` // nil when withdrawn
	Agent       interact.Thing  `json:"-"` // that of Options.Bind; nil when withdrawn

	live     *liveness // of Agent; nil when withdrawn
	grant    *td.Grant // decoded; nil without Grant
	followed time.Time // when a newer grant was adopted from another host
	waiting  uint64    // the number of a newer grant that the operator must bring; 0: none

	handler interact.Thing // the agent in this process, or an attached one; nil for an agent that is called over the forms of its TD
}

// isAgent reports whether the owner of p is the key of the agent itself, which calls others through this node.
func (p *Publication) isAgent() bool {
	return p.Owner != "" && p.Description != nil && (p.handler != nil || len(p.Roles) > 0)
}

// isRestricted reports whether the record of p is not for all nodes, so that it is not announced.
func (p *Publication) isRestricted() bool { return p.Audience != td.Public }

// describe returns the description for the directory: that of the tombstone for a withdrawn Thing.
func (p *Publication) describe(ctx context.Context, v *td.Verifier, now time.Time) (*td.Description, error) {
	if p.Description != nil {
		return p.Description, nil
	}
	return p.Signed.Verify(ctx, v, now)
}

// hasExpired reports whether p is a tombstone, or the record of a move, that need not be announced any longer.
func (p *Publication) hasExpired(now time.Time) bool {
	return !p.Withdrawn.IsZero() && now.After(p.Withdrawn.Add(withdrawalLifetime(p.Moved)))
}

// withdrawalLifetime is the life of the record that withdraws a Thing; moved is its new owner, or empty.
func withdrawalLifetime(moved did.DID) time.Duration {
	if moved != "" {
		return movedLifetime
	}
	return tombstoneLifetime
}

// validate checks a stored publication.
func (p *Publication) validate() error {
	if !p.Attached && (p.Signed == nil || len(p.Signed.Record) == 0 || p.Withdrawn.IsZero() && p.Signed.TD == nil) {
		return errors.New("incomplete entry")
	}
	return nil
}

// Newer reports whether the stored publication a is a later state than b, or b is unreadable. It chooses among copies after damage.
func Newer(a, b []byte) bool {
	var x, y struct{ Seq uint64 }
	if json.Unmarshal(a, &x) != nil {
		return false
	}
	return json.Unmarshal(b, &y) != nil || x.Seq > y.Seq
}

// ThingOf returns the id of a stored publication, which may be damaged.
func ThingOf(entry []byte) string { return storage.Salvage(entry, "thing") }
