package group

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/trust/invitation"
)

// List returns the groups of this node, and those that invite it, without their members.
func (g *Groups) List() []api.Group {
	g.mu.RLock()
	defer g.mu.RUnlock()
	all := []api.Group{}
	for _, id := range slices.SortedFunc(maps.Keys(g.groups), func(a, b string) int { return strings.Compare(g.groups[a].Name, g.groups[b].Name) }) {
		all = append(all, g.describeLocked(g.groups[id], false))
	}
	for _, o := range g.offers {
		all = append(all, api.Group{ID: o.ID, Name: o.Name, Title: o.Name, State: api.GroupInvited, Inviter: o.From, Changed: o.At})
	}
	return all
}

// Get returns a group with its members.
func (g *Groups) Get(ref string) (*api.Group, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	one, err := g.findLocked(ref)
	if err != nil {
		return nil, err
	}
	d := g.describeLocked(one, true)
	return &d, nil
}

// Log returns the log of a group, on the branch that counts.
func (g *Groups) Log(ref string) ([]byte, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	one, err := g.findLocked(ref)
	if err != nil {
		return nil, err
	}
	return one.Bytes(), nil
}

func (g *Groups) describeLocked(one *group, whole bool) api.Group {
	s := one.State()
	d := describe(one.Chain, whole)
	d.Name, d.State = one.Name, one.stateFor(g.self)
	if m, ok := s.Member(g.self); ok {
		d.Role = m.Role
	}
	if whole {
		lost := one.Lost()
		for i, m := range s.Members {
			d.Members[i].Problem = g.problemLocked(one, m, lost)
		}
	}
	return d
}

// ReadLog verifies the log of a group, as [Groups.Log] returns it, and returns what it states. The error is an [*interact.Error].
func ReadLog(log []byte, now time.Time) (*api.Group, error) {
	c, err := chain.Read(log, now)
	if err != nil {
		return nil, interact.Errorf(interact.BadSignature, "get the log again", "this is not the log of a group: %v", err)
	}
	d := describe(c, true)
	return &d, nil
}

// describe returns what a log states, to a reader that may be no member.
func describe(c *chain.Chain, whole bool) api.Group {
	s, head := c.State(), c.Head()
	d := api.Group{ID: c.Group(), Name: s.Name, Title: s.Name, State: api.GroupActive, Labels: s.Labels, Threshold: s.Threshold, Count: len(s.Members),
		Entries: head.Number, Head: head.ID, Changed: head.Time}
	if s.Dissolved {
		d.State = api.GroupDissolved
	}
	if !whole {
		return d
	}
	for _, m := range s.Members {
		d.Members = append(d.Members, api.GroupMember{DID: m.DID, Node: m.Node, Org: m.Org, Role: m.Role, Until: m.Until, Since: m.Since})
	}
	for _, f := range s.Former {
		d.Former = append(d.Former, api.GroupFormer{DID: f.DID, Node: f.Node, Until: f.Until, Removed: f.Removed})
	}
	for _, r := range s.Join {
		d.Join = append(d.Join, api.GroupRule{Issuer: string(r.Issuer), Role: r.Role, As: r.As})
	}
	for _, p := range s.Pending {
		d.Pending = append(d.Pending, api.GroupChange{Kind: string(p.Op.Kind), Member: p.Op.Member.DID, Role: p.Op.Member.Role, Approved: len(p.Approved), Needed: s.Needed()})
	}
	for _, split := range c.Splits() {
		d.Splits = append(d.Splits, api.GroupSplit{After: split.Before, Entries: split.IDs, Signer: split.Signer})
	}
	return d
}

// stateFor returns the state of the group for a node.
func (one *group) stateFor(self did.DID) string {
	s := one.State()
	switch {
	case s.Dissolved:
		return api.GroupDissolved
	case one.Left:
		return api.GroupLeft
	case len(s.At(self)) == 0:
		return api.GroupRemoved
	}
	return api.GroupActive
}

// Create creates a group, whose first admin is this node.
func (g *Groups) Create(q api.GroupCreate) (*api.Group, error) {
	o := chain.Op{Name: q.Name, Labels: q.Labels, Threshold: max(q.Threshold, 1), Member: chain.Member{Node: g.self, Org: g.o.Principal(g.self).Org}}
	if !chain.ValidName(q.Name) {
		return nil, interact.Errorf(interact.Usage, "use letters, digits, and . _ -", "%q cannot be the name of a group", interact.Excerpt(q.Name, 80))
	}
	if q.Threshold < 0 || q.Threshold > chain.MaxThreshold {
		return nil, interact.Errorf(interact.Usage, "", "the threshold is a number from 1 to %d", chain.MaxThreshold)
	}
	for _, r := range q.Join {
		issuer, err := g.issuer(r.Issuer)
		if err != nil {
			return nil, err
		}
		rule := chain.Rule{Issuer: issuer, Role: r.Role, As: r.As}
		if rule.As == "" {
			rule.As = chain.Plain
		}
		o.Join = append(o.Join, rule)
	}
	c, err := chain.New(o, g.o.Signer, g.o.Now())
	if err != nil {
		return nil, interact.Errorf(interact.Usage, "", "the group cannot be created: %v", err)
	}
	if err := g.put(c, stored{ID: c.Group(), Name: q.Name, Joined: true}); err != nil {
		return nil, err
	}
	g.o.Record(fmt.Sprintf("group %s created: %s", q.Name, c.Group()))
	return g.Get(c.Group())
}

// issuer returns the DID of a rule's issuer.
func (g *Groups) issuer(name string) (did.DID, error) {
	if id, ok := g.o.Organization(name); ok {
		return id, nil
	}
	id, err := did.Parse(name)
	if err != nil {
		return "", interact.Errorf(interact.Usage, "give the name of a partner, own, or a DID", "unknown issuer %q", interact.Excerpt(name, 200))
	}
	return id, nil
}

// put stores a new group. A name that has another group, or had, is an error.
func (g *Groups) put(c *chain.Chain, s stored) error {
	g.writing.Lock()
	g.mu.RLock()
	old, taken := g.names[s.Name]
	count, before := len(g.groups), g.groups[s.ID]
	g.mu.RUnlock()
	err := error(nil)
	switch {
	case taken && old != s.ID:
		err = interact.Errorf(interact.Usage, "choose another name for it at this node", "the name %q is that of another group of this node, or was", s.Name)
	case before == nil && count >= maxGroups:
		err = interact.Errorf(interact.TooLarge, "", "this node knows %d groups already", count)
	}
	var entries [][]byte
	for _, e := range c.Missing(nil) {
		if before == nil || !before.Has(e.ID) {
			entries = append(entries, e.Raw)
		}
	}
	if err == nil {
		err = g.append(s.ID, entries)
	}
	if err == nil {
		one := newGroup(c, s)
		for _, e := range c.Path() {
			one.arrived[e.ID] = g.o.Now()
		}
		g.mu.Lock()
		if before != nil && before.Name != s.Name {
			delete(g.names, before.Name)
		}
		g.groups[s.ID], g.names[s.Name] = one, s.ID
		g.offers = slices.DeleteFunc(g.offers, func(o offer) bool { return o.ID == s.ID })
		g.mu.Unlock()
		err = g.save()
	}
	g.writing.Unlock()
	if err != nil {
		return err
	}
	g.remember()
	g.o.OnNames()
	return nil
}

// sign adds an entry of this node, durably, and sends it to the members, and to the node of the member that it concerns.
func (g *Groups) sign(one *group, o chain.Op) error {
	g.writing.Lock()
	now := g.o.Now()
	g.mu.Lock()
	var also []did.DID
	if m, ok := one.State().Member(o.Member.DID); ok && m.Node != g.self {
		also = append(also, m.Node)
	}
	raw, err := one.Sign(one.approval(o, g.self), g.o.Signer, now)
	if err == nil {
		_, err = one.Add(raw, now)
	}
	if err == nil {
		one.mine[one.Head().ID], one.arrived[one.Head().ID] = true, now
	}
	g.mu.Unlock()
	if err == nil {
		err = g.append(one.ID, [][]byte{raw})
	}
	g.writing.Unlock()
	if err != nil {
		return userError(err)
	}
	text := string(o.Kind)
	if o.Member.DID != "" {
		text += " " + string(o.Member.DID)
	}
	g.o.Record("group " + one.Name + ": " + text)
	g.changed(one)
	g.spread(one, also...)
	return nil
}

// approval returns the approval of a change that another admin has proposed; else the change.
func (one *group) approval(o chain.Op, self did.DID) chain.Op {
	for _, p := range one.State().Pending {
		if p.Op.Kind == o.Kind && p.Op.Member.DID == o.Member.DID && p.Op.Member.Role == o.Member.Role && !slices.Contains(p.Approved, self) {
			return chain.Op{Kind: chain.Approve, Entry: p.Entry}
		}
	}
	return o
}

// administered returns a group of which this node is an admin.
func (g *Groups) administered(ref string) (*group, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	one, err := g.findLocked(ref)
	if err == nil {
		err = one.active(g.self)
	}
	if err != nil {
		return nil, err
	}
	if m, _ := one.State().Member(g.self); m.Role != chain.Admin {
		return nil, interact.Errorf(interact.Forbidden, "ask an admin of the group", "this node is not an admin of the group %s", one.Name)
	}
	return one, nil
}

// Change changes a group. A change that needs more admins is proposed, or approved if another admin has proposed it.
func (g *Groups) Change(ctx context.Context, ref string, q api.GroupChange) (*api.Group, error) {
	if q.Kind == api.GroupLeave {
		return g.leave(ctx, ref, q.Statement)
	}
	one, err := g.administered(ref)
	if err != nil {
		return nil, err
	}
	o := chain.Op{Kind: chain.Kind(q.Kind), Member: chain.Member{DID: q.Member, Role: q.Role}}
	switch o.Kind {
	case chain.Role:
		g.mu.RLock()
		m, is := one.State().Member(q.Member)
		g.mu.RUnlock()
		if is && m.DID != m.Node && q.Role == chain.Admin {
			return nil, interact.Errorf(interact.Usage, "make its node a member, and an admin", "an agent cannot be an admin: its node, which changes the group, does not have its key")
		}
	case chain.Remove:
		o.Member.Role = ""
	case chain.Dissolve:
		o.Member = chain.Member{}
	default:
		return nil, interact.Errorf(interact.Usage, "", "unknown change %q: expected role, remove, leave or dissolve", interact.Excerpt(q.Kind, 40))
	}
	if err := g.sign(one, o); err != nil {
		return nil, err
	}
	return g.Get(one.ID)
}

// Invite issues an invitation, or sends it to the node that may use it.
func (g *Groups) Invite(ctx context.Context, ref string, q api.GroupInvite) (*api.GroupInvitation, error) {
	one, err := g.administered(ref)
	if err != nil {
		return nil, err
	}
	life := invitation.Life
	if q.Life != "" {
		if life, err = time.ParseDuration(q.Life); err != nil {
			return nil, interact.Errorf(interact.Usage, "write it as 24h", "the life of the invitation: %v", err)
		}
	}
	role := q.Role
	if role == "" {
		role = chain.Plain
	}
	if role == chain.Admin {
		return nil, interact.Errorf(interact.Usage, "invite it as a member, and change its role then", "nodes do not join as admins")
	}
	addrs := g.o.Addrs()
	g.mu.RLock()
	i := invitation.Invitation{Network: g.o.Network, Organization: g.self, For: q.For, Kind: invitation.Group, Roles: []string{role}, Expires: g.o.Now().Add(life),
		Addresses: addrs[:min(len(addrs), invitation.MaxAddresses)], Group: one.ID, Head: one.Head().ID}
	title := one.State().Name
	g.mu.RUnlock()
	made, text, err := invitation.New(i, g.o.Signer, g.o.Now())
	if err != nil {
		return nil, err
	}
	if err := g.invites.Add(made, max(q.Uses, 1)); err != nil {
		return nil, err
	}
	g.o.Record("group " + one.Name + ": invitation " + made.ID()[:12] + " issued")
	out := &api.GroupInvitation{Invitation: text, Expires: made.Expires}
	if !q.Offer {
		return out, nil
	}
	if q.For == "" {
		return nil, interact.Errorf(interact.Usage, "name the node", "an invitation can be sent to one node only")
	}
	if err := g.reach(ctx, q.For, func() error {
		_, err := g.ask(ctx, q.For, &request{Op: opOffer, Group: one.ID, Text: text, Secret: []byte(interact.Excerpt(title, 64))})
		return err
	}); err != nil {
		return nil, interact.Errorf(interact.Unreachable, "give the invitation to its operator", "the invitation was not sent to %s: %v", q.For.Short(), err)
	}
	out.Invitation = ""
	return out, nil
}

// StandingChanged states that the standing of a node has changed. If it is barred, its memberships do not count here. If its organization revoked
// it, the node of an admin removes its members.
func (g *Groups) StandingChanged(p *did.Principal) {
	if g == nil {
		return
	}
	node, barred := p.Node, p.Barred != ""
	g.mu.Lock()
	old, was := g.barred[node]
	if barred {
		g.barred[node] = p.IsRevoked()
	} else {
		delete(g.barred, node)
	}
	concerns := false
	for _, one := range g.groups {
		for _, m := range one.State().Members {
			concerns = concerns || m.Node == node || m.DID == node || m.By == node
		}
	}
	g.mu.Unlock()
	if was == barred && (!barred || old == p.IsRevoked()) || !concerns {
		return
	}
	g.background(func(context.Context) {
		g.remember()
		for _, one := range g.joined() {
			g.settle(one)
		}
	})
}

// Times between the attempts of admins' nodes, which act by themselves, in the order of their membership.
const (
	turn     = 150 * time.Millisecond
	maxTurns = 8
)

// settle does what the node of an admin does by itself: it signs what it had signed on a branch that does not count, removals of others on such
// branches, and removals of members whose organization revoked them.
func (g *Groups) settle(one *group) {
	g.mu.Lock()
	place := -1
	admins := 0
	if one.active(g.self) == nil {
		for _, m := range one.State().Members {
			if m.Role != chain.Admin {
				continue
			}
			if m.DID == g.self {
				place = admins
			}
			admins++
		}
	}
	if place < 0 || one.working || len(g.dueLocked(one)) == 0 {
		g.mu.Unlock()
		return
	}
	one.working = true
	g.mu.Unlock()
	g.background(func(ctx context.Context) {
		_ = backoff.Sleep(ctx, backoff.Jitter(turn*time.Duration(min(place, maxTurns))+turn/2, 0.5))
		for range maxRounds {
			g.mu.Lock()
			due := g.dueLocked(one)
			if len(due) == 0 || ctx.Err() != nil {
				one.working = false
				g.mu.Unlock()
				return
			}
			next := due[0]
			if next.again != "" {
				one.mine[next.again] = false
			}
			g.mu.Unlock()
			if err := g.sign(one, next.op); err != nil {
				g.o.Log.Debug("entry of a group not signed again", "group", one.Name, "kind", next.op.Kind, "err", err)
				if next.again == "" {
					break
				}
			}
		}
		g.mu.Lock()
		one.working = false
		g.mu.Unlock()
	})
}

// A due is an entry that an admin's node signs by itself.
type due struct {
	op    chain.Op
	again string // the ID of its own entry that does not count; empty: none
}

// dueLocked returns the entries that this node signs by itself.
func (g *Groups) dueLocked(one *group) (all []due) {
	if one.active(g.self) != nil {
		return nil
	}
	for _, e := range one.Lost() {
		all = append(all, due{op: chain.Op{Kind: chain.Remove, Member: chain.Member{DID: e.Op.Member.DID}, Statement: e.Op.Statement}})
	}
	for _, m := range one.State().Members {
		if (g.barred[m.Node] || g.barred[m.DID]) && m.DID != g.self {
			all = append(all, due{op: chain.Op{Kind: chain.Remove, Member: chain.Member{DID: m.DID}}})
		}
	}
	for id, wanted := range one.mine {
		if e := one.Entry(id); wanted && e != nil && !one.Counts(id) && e.Op.Kind != chain.Approve {
			all = append(all, due{e.Op, id})
		}
	}
	return slices.DeleteFunc(all, func(d due) bool {
		return slices.ContainsFunc(one.State().Pending, func(p chain.Pending) bool {
			return p.Op.Kind == d.op.Kind && p.Op.Member.DID == d.op.Member.DID && slices.Contains(p.Approved, g.self)
		})
	})
}
