package bridge

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/lmosd/lmosd/interact"
)

// maxClaims is the default limit of recorded names.
const maxClaims = 20_000

// Claims records which principal owns each name that an agent assigned, of a task or a conversation: the agent itself sees all
// callers as one, the node. A name without an owner is free for any caller that knows it. When the limit is reached, the oldest
// claim of the principal with the most claims is dropped. The zero value is ready. Claims is safe for concurrent use.
type Claims struct {
	mu    sync.Mutex
	whose map[claimed]owner
	order map[string][]claimed // by principal, oldest first
	limit int                  // 0 means maxClaims
}

// A claimed name is stored as a hash, because agents choose its length.
type claimed [sha256.Size]byte

// An owner is the principal of a claim.
type owner struct {
	principal string
	again     bool // claimed more than once: releasing the first claim does not end the ownership
}

// Claim records principal as the owner of name, unless the name has another owner. It reports whether principal owns the name, and
// whether the claim is new. An empty name is free for all callers.
func (c *Claims) Claim(name, principal string) (own, fresh bool) {
	if name == "" {
		return true, false
	}
	key := claimed(sha256.Sum256([]byte(name)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, known := c.whose[key]; known {
		if o.principal == principal && !o.again {
			c.whose[key] = owner{principal, true}
		}
		return o.principal == principal, false
	}
	if c.whose == nil {
		c.whose, c.order = map[claimed]owner{}, map[string][]claimed{}
	}
	if len(c.whose) >= cmp.Or(c.limit, maxClaims) {
		c.forgetLocked()
	}
	c.whose[key] = owner{principal: principal}
	c.order[principal] = append(c.order[principal], key)
	return true, true
}

// forgetLocked drops the oldest claim of the principal with the most claims.
func (c *Claims) forgetLocked() {
	most := ""
	for principal, all := range c.order {
		if len(all) > len(c.order[most]) {
			most = principal
		}
	}
	c.dropLocked(most, 0)
}

func (c *Claims) dropLocked(principal string, i int) {
	all := c.order[principal]
	delete(c.whose, all[i])
	if c.order[principal] = slices.Delete(all, i, i+1); len(all) == 1 {
		delete(c.order, principal)
	}
}

// Release removes a fresh claim of a principal. A claim that was repeated in between stays.
func (c *Claims) Release(name, principal string) {
	key := claimed(sha256.Sum256([]byte(name)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.whose[key].again {
		return
	}
	for i, have := range slices.Backward(c.order[principal]) { // a fresh claim is near the end
		if have == key {
			c.dropLocked(principal, i)
			return
		}
	}
}

// Allows reports whether a principal may use a name: it owns the name, or the name has no owner.
func (c *Claims) Allows(name, principal string) bool {
	owner, known := c.owner(name)
	return !known || owner.principal == principal
}

// Owns reports whether a principal owns a name.
func (c *Claims) Owns(name, principal string) bool {
	owner, known := c.owner(name)
	return known && owner.principal == principal
}

func (c *Claims) owner(name string) (o owner, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, known = c.whose[sha256.Sum256([]byte(name))]
	return o, known
}

// Names are the claims on the names of one agent. Equal names of two agents are distinct.
type Names struct {
	all   *Claims
	agent string
}

// Of returns the claims on the names of one agent.
func (c *Claims) Of(agent string) Names { return Names{c, agent} }

func (n Names) in(name string) string {
	if name == "" {
		return ""
	}
	return n.agent + "\x00" + name
}

// Claim is [Claims.Claim].
func (n Names) Claim(name, principal string) (own, fresh bool) {
	return n.all.Claim(n.in(name), principal)
}

// Release is [Claims.Release].
func (n Names) Release(name, principal string) { n.all.Release(n.in(name), principal) }

// Allows is [Claims.Allows].
func (n Names) Allows(name, principal string) bool { return n.all.Allows(n.in(name), principal) }

// Owns is [Claims.Owns].
func (n Names) Owns(name, principal string) bool { return n.all.Owns(n.in(name), principal) }

// Refused reports whether an agent rejected a request without starting it, so that a claim made for it may be released.
func Refused(err error) bool {
	e := interact.AsError(err)
	return err != nil && !e.Begun && e.Code != interact.Cancelled && e.Code != interact.Timeout
}
