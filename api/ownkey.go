package api

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// OwnGrantLife is the life of a grant whose signer signs the next one itself. The former node of an agent that has moved can be called for that long at
// most, by nodes that do not receive the newer grant.
const OwnGrantLife = 24 * time.Hour

// A KeyHolder signs what an agent with a key of its own gives to the node through which it is reached: its TD, and a grant that names this node only.
// Key is required. It is not safe for concurrent use.
type KeyHolder struct {
	Key        did.Signer
	Visibility td.Visibility // of a TD that states none
	Life       time.Duration // of a grant; zero: [OwnGrantLife]
	// Number is that of the last grant, also of another node. The next one is higher.
	Number uint64

	draft string // the last TD, node and result
	node  did.DID
	grant *HostingGrant
	due   time.Time
}

// Grant returns the grant of a TD for a node, and when the next one is due: at half of its life. It is the last one again as long as TD and node are the
// same and the next is not due: a node that hosts the agent no longer must not get a newer one. The errors are those of [td.Complete] and
// [td.SignGrant].
func (h *KeyHolder) Grant(draft []byte, node did.DID, now time.Time) (g *HostingGrant, due time.Time, err error) {
	if h.grant != nil && h.draft == string(draft) && h.node == node && now.Before(h.due) {
		return h.grant, h.due, nil
	}
	t, err := td.Complete(draft, h.Key.DID())
	if err == nil {
		t, err = td.Restrict(t, h.Visibility, h.Key.DID())
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	life := h.Life
	if life == 0 {
		life = OwnGrantLife
	}
	number := max(uint64(now.UnixMilli()), h.Number+1)
	g, _, err = SignHostingGrant(t, h.Key, td.GrantLease{Number: number, Now: now, Lifetime: life, Nodes: []did.DID{node}})
	if err != nil {
		return nil, time.Time{}, err
	}
	h.draft, h.node, h.grant, h.due, h.Number = string(draft), node, g, now.Add(life/2), number
	return g, h.due, nil
}

// Follow reads the number of the newest grant of the Thing of a TD that a node knows: before the first grant, because the host before may have had a
// clock that is ahead. Later, a higher number than that of the last grant is an error of code RolledBack: the agent is at another node.
func (h *KeyHolder) Follow(ctx context.Context, c *Client, draft []byte) error {
	t, err := td.Complete(draft, h.Key.DID())
	if err != nil {
		return interact.AsError(err)
	}
	d, err := c.Agent(ctx, td.ExactRef(t.ID, h.Key.DID()))
	switch {
	case err != nil || d.Agent.Grant == nil || d.Agent.Grant.Number <= h.Number:
		return nil // the node may not know it; Host verifies the grant
	case h.grant == nil:
		h.Number = d.Agent.Grant.Number
		return nil
	}
	return interact.Errorf(interact.RolledBack, "start one of them again, and end the other", "the agent %s is offered through another node: its key has signed grant %d there",
		t.ID, d.Agent.Grant.Number)
}
