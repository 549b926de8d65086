package bridge

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/lmosd/lmosd/interact"
)

// maxOwners is the default limit of recorded names.
const maxOwners = 20_000

// Owners records which principal owns each name that an agent assigned, of a task or a conversation: the agent itself sees all
// callers as one, the node. A name without an owner is free for any caller that knows it. When the limit is reached, the oldest
// claim of the principal with the most claims is dropped. The zero value is ready. Owners is safe for concurrent use.
type Owners struct {
	mu     sync.Mutex
	owners map[nameHash]owner
	order  map[string][]nameHash // by principal, oldest first
	limit  int                   // 0 means maxOwners
}

// A nameHash stands for a claimed name, because agents choose the length of names.
type nameHash [sha256.Size]byte

// An owner is the principal of a claim.
type owner struct {
	principal string
	again     bool // claimed more than once: releasing the first claim does not end the ownership
}

// claim implements [AgentOwners.Claim].
func (c *Owners) claim(name, principal string) (own, fresh bool) {
	if name == "" {
		return true, false
	}
	key := nameHash(sha256.Sum256([]byte(name)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, known := c.owners[key]; known {
		if o.principal == principal && !o.again {
			c.owners[key] = owner{principal, true}
		}
		return o.principal == principal, false
	}
	if c.owners == nil {
		c.owners, c.order = map[nameHash]owner{}, map[string][]nameHash{}
	}
	if len(c.owners) >= cmp.Or(c.limit, maxOwners) {
		c.forgetLocked()
	}
	c.owners[key] = owner{principal: principal}
	c.order[principal] = append(c.order[principal], key)
	return true, true
}

// forgetLocked drops the oldest claim of the principal with the most claims.
func (c *Owners) forgetLocked() {
	most := ""
	for principal, all := range c.order {
		if len(all) > len(c.order[most]) {
			most = principal
		}
	}
	c.dropLocked(most, 0)
}

func (c *Owners) dropLocked(principal string, i int) {
	all := c.order[principal]
	delete(c.owners, all[i])
	if c.order[principal] = slices.Delete(all, i, i+1); len(all) == 1 {
		delete(c.order, principal)
	}
}

// release implements [AgentOwners.Release].
func (c *Owners) release(name, principal string) {
	key := nameHash(sha256.Sum256([]byte(name)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners[key].again {
		return
	}
	for i, have := range slices.Backward(c.order[principal]) { // a fresh claim is near the end
		if have == key {
			c.dropLocked(principal, i)
			return
		}
	}
}

// allows implements [AgentOwners.Allows].
func (c *Owners) allows(name, principal string) bool {
	owner, known := c.owner(name)
	return !known || owner.principal == principal
}

// owns implements [AgentOwners.Owns].
func (c *Owners) owns(name, principal string) bool {
	owner, known := c.owner(name)
	return known && owner.principal == principal
}

func (c *Owners) owner(name string) (o owner, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, known = c.owners[sha256.Sum256([]byte(name))]
	return o, known
}

// AgentOwners are the claims on the names of one agent. Equal names of two agents are distinct.
type AgentOwners struct {
	all   *Owners
	agent string
}

// OfAgent returns the claims on the names of one agent.
func (c *Owners) OfAgent(agent string) AgentOwners { return AgentOwners{c, agent} }

func (n AgentOwners) qualify(name string) string {
	if name == "" {
		return ""
	}
	return n.agent + "\x00" + name
}

// Claim records principal as the owner of name, unless the name has another owner. It reports whether principal owns the name, and whether
// the claim is new. An empty name is free for all callers.
func (n AgentOwners) Claim(name, principal string) (own, fresh bool) {
	return n.all.claim(n.qualify(name), principal)
}

// Release removes a new claim of a principal. A claim that was repeated in between stays.
func (n AgentOwners) Release(name, principal string) { n.all.release(n.qualify(name), principal) }

// Allows reports whether a principal may use a name: it owns the name, or the name has no owner.
func (n AgentOwners) Allows(name, principal string) bool {
	return n.all.allows(n.qualify(name), principal)
}

// Owns reports whether a principal owns a name.
func (n AgentOwners) Owns(name, principal string) bool { return n.all.owns(n.qualify(name), principal) }

// Refused reports whether an agent rejected a request without starting it, so that a claim made for it may be released.
func Refused(err error) bool {
	e := interact.AsError(err)
	return err != nil && !e.Started && e.Code != interact.Cancelled && e.Code != interact.Timeout
}
