package bridge

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/lmosd/lmosd/interact"
)

// maxClaims is how many names are remembered.
const maxClaims = 20_000

// Claims remember whose names are that an agent gave, of tasks or of conversations, when the agent sees all of its callers as
// one: the node that asks it. A name that nobody has claimed is anybody's who knows it. When there is no more room, the oldest
// claim of whoever has the most is forgotten. The zero value is ready. Claims are safe for concurrent use.
type Claims struct {
	mu    sync.Mutex
	whose map[claimed]owner
	order map[string][]claimed // by principals, in the order in which they came
	limit int                  // 0 means maxClaims
}

// A claimed name, as a hash: it may be as long as an agent likes.
type claimed [sha256.Size]byte

// An owner of a claim.
type owner struct {
	principal string
	again     bool // it has claimed the name more than once: a first claim that comes to nothing is not all there is
}

// Claim notes that a name is of a principal, unless it is another's already. It reports whether it is that principal's, and
// whether that is new. An empty name is anybody's.
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

// forgetLocked forgets the oldest claim of who has the most.
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

// Release takes a fresh claim back, of the principal who has it. One that was made again meanwhile stays.
func (c *Claims) Release(name, principal string) {
	key := claimed(sha256.Sum256([]byte(name)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.whose[key].again {
		return
	}
	for i, have := range slices.Backward(c.order[principal]) { // it is one of the last
		if have == key {
			c.dropLocked(principal, i)
			return
		}
	}
}

// Allows reports whether a principal may use a name: it has claimed it, or nobody has.
func (c *Claims) Allows(name, principal string) bool {
	owner, known := c.owner(name)
	return !known || owner.principal == principal
}

// Owns reports whether a principal has claimed a name.
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

// Names are the claims on the names of one agent, among those of others: what two agents call alike has nothing in common.
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

// Refused reports whether an agent did not take what it was asked: a claim that was made for that may be released. One that may
// have begun before the error has taken it, as far as anybody knows.
func Refused(err error) bool {
	e := interact.AsError(err)
	return err != nil && !e.Begun && e.Code != interact.Cancelled && e.Code != interact.Timeout
}
