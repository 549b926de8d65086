// Package group has the groups of a node: members of any organization that trust each other for one purpose.
//
// The log of a group ([github.com/lmosd/lmosd/group/chain]) states its members. Each member keeps it, and they exchange new entries (sync.go).
// admin.go changes groups, join.go makes this node a member, events.go carries messages between members. There are no group keys: an event goes
// to each member of the newest entry that its sender knows, over a stream that both ends have authenticated. Who was removed gets nothing that
// follows.
//
// Sources: LMOS protocol, group management and digital identity; docs/decisions/0053-groups.md.
package group

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/trust/invitation"
)

// Limits of a node.
const (
	maxGroups = 256 // that it is or was in
	maxOffers = 16
)

// A Credential of a node by which a rule of a group may let it join.
type Credential struct {
	Issuer did.DID
	Roles  []string
	Hash   string // [did.Hash] of its bytes
	Until  time.Time
	Org    bool // of an organization: it is renewed, and its end is not that of the membership
}

// Options configure [Groups]. All but Dir, Log and Now are required.
type Options struct {
	Dir     string // the data directory, in which groups/ is
	Signer  did.Signer
	Network string
	// Ask sends a request to a connected node, or to one at addresses, and returns its response (trust.Trust.AskGroup).
	Ask func(ctx context.Context, node did.DID, body []byte, addrs ...string) ([]byte, error)
	// Connect connects to a node that is not connected.
	Connect func(ctx context.Context, node did.DID) error
	Addrs   func() []string // of this node, with /p2p, for invitations
	// Credentials returns what a connected node has shown.
	Credentials func(node did.DID) []Credential
	// Sender returns the name by which other nodes know a consumer of this node; empty: none. The consumer may be nil.
	Sender func(*did.Principal) string
	// Principal returns the standing of a node.
	Principal func(node did.DID) *did.Principal
	// Organization returns the DID of an organization by its name at this node.
	Organization func(name string) (did.DID, bool)
	// OnChange is called with the nodes whose memberships have changed, OnNames after the names of groups have changed. They may block.
	OnChange func(nodes []did.DID)
	OnNames  func()
	// Record receives each change as a sentence.
	Record func(change string)
	Now    func() time.Time
	Log    *slog.Logger
}

// Groups are the groups of a node. They are safe for concurrent use.
type Groups struct {
	o       Options
	self    did.DID
	invites *invitation.Store

	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	// snapshot has the memberships that count, by node, for [Groups.Of], which must not block.
	snapshot atomic.Pointer[map[did.DID]memberships]

	// writing is held while a group changes, durably. It is locked before mu, and not held while a request is sent.
	writing sync.Mutex
	// mu owns what follows. Changes need writing, too.
	mu     sync.RWMutex
	groups map[string]*group // by id
	names  map[string]string // the ids of names, of former groups, too: a name never changes its meaning
	offers []offer
	barred map[did.DID]bool // nodes without rights: true: their organization revoked them; false: only this node distrusts them
	closed bool
	unwell map[did.DID]*pause // nodes that could not be reached
}

// memberships are those of a node, and of the agents that are reached through it.
type memberships struct {
	own    []did.Membership
	agents []did.AgentMembership
}

func (m memberships) equal(other memberships) bool {
	return slices.Equal(m.own, other.own) && slices.Equal(m.agents, other.agents)
}

// A pause is how long a node is not dialed.
type pause struct {
	backoff backoff.Backoff
	until   time.Time
}

// A group is one group of this node. Groups.mu owns it.
type group struct {
	*chain.Chain
	stored
	arrived  map[string]time.Time // when entries came that are not pinned yet
	mine     map[string]bool      // entries that this node has signed since its start; false: it has signed them again
	watchers map[*watcher]struct{}
	seen     map[string]time.Time // ids of events
	working  bool                 // a goroutine does what admins do by themselves
	asked    map[string]bool      // heads for which a node was asked
}

// stored is what the list of groups has of one.
type stored struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Joined  bool   `json:"joined"`            // this node takes part
	Left    bool   `json:"left,omitempty"`    // it has left
	Settled string `json:"pin,omitempty"`     // the entry that is pinned
	Leaving bool   `json:"leaving,omitempty"` // and admins do not know it yet
}

// An offer is an invitation that an admin has sent.
type offer struct {
	ID   string    `json:"id"`
	Name string    `json:"name"`
	From did.DID   `json:"from"`
	Text string    `json:"invitation"`
	At   time.Time `json:"at"`
}

// list is the content of the file groups.json.
type list struct {
	Version int      `json:"version"` // 1
	Groups  []stored `json:"groups"`
	Offers  []offer  `json:"offers,omitempty"`
}

// Open opens the groups of a node.
func Open(o Options) (*Groups, error) {
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().Round(0) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Groups{o: o, self: o.Signer.DID(), groups: map[string]*group{}, names: map[string]string{}, barred: map[did.DID]bool{}, unwell: map[did.DID]*pause{}}
	g.ctx, g.end = context.WithCancel(context.Background())
	g.snapshot.Store(&map[did.DID]memberships{})
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("open the groups: %w", err)
	}
	for _, one := range g.groups {
		for _, m := range one.State().Members {
			for _, id := range []did.DID{m.Node, m.DID} {
				if p := o.Principal(id); p.Barred != "" {
					g.barred[id] = p.IsRevoked()
				}
			}
		}
	}
	g.remember()
	return g, nil
}

func (g *Groups) path(name string) string { return filepath.Join(g.o.Dir, "groups", name) }

func (g *Groups) open() (err error) {
	if err := os.MkdirAll(g.path(""), 0o700); err != nil {
		return err
	}
	if g.invites, err = invitation.OpenStore(g.path("invitations.json"), g.o.Now); err != nil {
		return err
	}
	raw, err := os.ReadFile(g.path("groups.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var l list
	if err := json.Unmarshal(raw, &l); err != nil || l.Version != 1 {
		return interact.Errorf(interact.StoreCorrupt, "restore groups/groups.json from a backup, or remove it to forget the groups", "groups.json is damaged, or of version %d: %v", l.Version, err)
	}
	g.offers = l.Offers
	for _, s := range l.Groups {
		g.names[s.Name] = s.ID
		c, err := g.read(s.ID)
		if err != nil { // one damaged file costs one group
			g.o.Log.Error("group not loaded: its log cannot be read", "name", s.Name, "id", s.ID, "err", err)
			continue
		}
		c.Pin(s.Settled)
		g.groups[s.ID] = newGroup(c, s)
	}
	return nil
}

func newGroup(c *chain.Chain, s stored) *group {
	return &group{Chain: c, stored: s, arrived: map[string]time.Time{}, mine: map[string]bool{}, watchers: map[*watcher]struct{}{}, seen: map[string]time.Time{}, asked: map[string]bool{}}
}

// read reads the log of a group. A last line that was not written whole is left out.
func (g *Groups) read(id string) (*chain.Chain, error) {
	raw, err := os.ReadFile(g.path(id + ".jsonl"))
	if err != nil {
		return nil, err
	}
	c, err := chain.Read(raw[:bytes.LastIndexByte(raw, '\n')+1], g.o.Now())
	if err == nil && c.Group() != id {
		err = errors.New("it is the log of another group")
	}
	return c, err
}

// save writes the list of groups. writing is held.
func (g *Groups) save() error {
	g.mu.RLock()
	l := list{Version: 1, Offers: g.offers}
	for _, id := range slices.Sorted(maps.Keys(g.groups)) {
		one := g.groups[id]
		one.Settled = one.Pinned()
		l.Groups = append(l.Groups, one.stored)
	}
	for name, id := range g.names { // of groups that could not be loaded
		if g.groups[id] == nil {
			l.Groups = append(l.Groups, stored{ID: id, Name: name})
		}
	}
	g.mu.RUnlock()
	raw, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(g.path("groups.json"), raw, 0o600)
}

// append adds entries to the file of a group, durably. writing is held.
func (g *Groups) append(id string, entries [][]byte) error {
	if len(entries) == 0 {
		return nil
	}
	f, err := os.OpenFile(g.path(id+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if end, err := f.Seek(0, 2); err == nil && end > 0 { // the last line may be incomplete since a crash
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, end-1); err == nil && last[0] != '\n' {
			b.WriteByte('\n')
		}
	}
	for _, e := range entries {
		b.Write(e)
		b.WriteByte('\n')
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Sync(), f.Close())
}

// Close ends the work in the background, and the streams of events.
func (g *Groups) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.end()
	g.work.Wait()
	return nil
}

// background runs f until it returns, with a context that ends with Close.
func (g *Groups) background(f func(ctx context.Context)) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.closed {
		g.work.Go(func() { f(g.ctx) })
	}
}

// Of returns the memberships that count here: those of a node, and those of the agents that are reached through it. It does not block.
func (g *Groups) Of(node did.DID) ([]did.Membership, []did.AgentMembership) {
	m := (*g.snapshot.Load())[node]
	return m.own, m.agents
}

// Named returns the id of the group that rules call name, or that has the id. Nil Groups have none.
func (g *Groups) Named(name string) (id string, ok bool) {
	if g == nil {
		return "", false
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if id, ok = g.names[name]; !ok && g.groups[name] != nil {
		return name, true
	}
	return id, ok
}

// problemLocked returns why a member has no rights here, or "".
func (g *Groups) problemLocked(one *group, m chain.Member, lost []*chain.Entry) string {
	_, barredBy := g.barred[m.By]
	switch {
	case !m.Until.IsZero() && g.o.Now().After(m.Until):
		return "the credential by which it joined has ended"
	case slices.ContainsFunc(lost, func(e *chain.Entry) bool { return e.Op.Member.DID == m.DID }):
		return "an admin has removed it on a branch that does not count; an admin must do it again"
	case g.isBarredLocked(m.Node) || g.isBarredLocked(m.DID):
		return "it, or its node, is revoked or distrusted"
	case barredBy && m.By != m.DID:
		return "the admin who added it is revoked or distrusted here"
	}
	return ""
}

func (g *Groups) isBarredLocked(node did.DID) bool { _, ok := g.barred[node]; return ok }

// remember computes the memberships that count, and reports the nodes whose memberships have changed. Neither lock is held.
func (g *Groups) remember() {
	g.mu.Lock()
	next := map[did.DID]memberships{}
	for _, id := range slices.Sorted(maps.Keys(g.groups)) {
		one := g.groups[id]
		s := one.State()
		if !one.Joined || s.Dissolved {
			continue
		}
		lost := one.Lost()
		for _, m := range s.Members {
			if g.problemLocked(one, m, lost) != "" || m.DID == g.self && one.Leaving {
				continue
			}
			at, has := next[m.Node], did.Membership{Group: id, Role: m.Role, Org: m.Org}
			if m.DID == m.Node {
				at.own = append(at.own, has)
			} else {
				at.agents = append(at.agents, did.AgentMembership{Agent: m.DID, Membership: has})
			}
			next[m.Node] = at
		}
	}
	before := *g.snapshot.Load()
	g.snapshot.Store(&next)
	g.mu.Unlock()
	var changed []did.DID
	for node := range maps.Keys(merge(before, next)) {
		if !before[node].equal(next[node]) {
			changed = append(changed, node)
		}
	}
	if len(changed) > 0 && g.o.OnChange != nil {
		g.o.OnChange(changed)
	}
}

func merge[K comparable, V any](a, b map[K]V) map[K]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// refused is the answer to a request about a group that the caller may not know of, and for one that does not exist.
var refused = interact.Errorf(interact.NotFound, "", "there is no such group")

// findLocked returns a group by its name, its id, or the beginning of its id.
func (g *Groups) findLocked(ref string) (*group, error) {
	if one := g.groups[cmp.Or(g.names[ref], ref)]; one != nil {
		return one, nil
	}
	var found *group
	for id, one := range g.groups {
		if len(ref) >= 6 && strings.HasPrefix(id, ref) {
			if found != nil {
				return nil, interact.Errorf(interact.Ambiguous, "give more of the id", "several groups have ids that begin with %q", ref)
			}
			found = one
		}
	}
	if found == nil {
		return nil, interact.Errorf(interact.NotFound, "see the list of groups", "this node has no group %q", interact.Excerpt(ref, 80))
	}
	return found, nil
}

// active returns an error unless this node takes part in a group.
func (one *group) active(self did.DID) error {
	s := one.State()
	switch {
	case s.Dissolved:
		return interact.Errorf(interact.GroupDissolved, "create another group", "the group %s was dissolved on %s", one.Name, one.Head().Time.Format(time.RFC3339))
	case !one.Joined || len(s.At(self)) == 0:
		return interact.Errorf(interact.NotMember, "ask an admin of the group for an invitation", "this node is not a member of the group %s", one.Name)
	}
	return nil
}

// userError returns the error of an entry that this node signs.
func userError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, chain.ErrDissolved):
		return interact.Errorf(interact.GroupDissolved, "create another group", "the group is dissolved")
	case errors.Is(err, chain.ErrFull):
		return interact.Errorf(interact.TooLarge, "", "%v", err)
	case errors.Is(err, chain.ErrTime):
		return interact.Errorf(interact.ClockSkew, "set the clock", "%v", err)
	case errors.Is(err, chain.ErrInvalid):
		return interact.Errorf(interact.Forbidden, "see the members and their roles", "%v", err)
	}
	return err
}
