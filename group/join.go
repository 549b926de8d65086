package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/invitation"
)

// Join makes this node a member of a group: by an invitation, by one that an admin has sent, or by its credentials. Or it makes an agent with a key of its own
// a member, by an invitation and the statement of the agent.
func (g *Groups) Join(ctx context.Context, q api.GroupJoin) (*api.Group, error) {
	if q.Offer != "" {
		g.mu.RLock()
		at := slices.IndexFunc(g.offers, func(o offer) bool { return o.Name == q.Offer || o.ID == q.Offer })
		if at >= 0 {
			q.Invitation = g.offers[at].Text
		}
		g.mu.RUnlock()
		if at < 0 {
			return nil, interact.Errorf(interact.NotFound, "see the list of groups", "no group %q invites this node", interact.Excerpt(q.Offer, 80))
		}
	}
	if q.Invitation == "" {
		return g.joinByCredential(ctx, q)
	}
	i, err := invitation.Parse(q.Invitation)
	if err != nil {
		return nil, err
	}
	if i.Kind != invitation.Group {
		return nil, interact.Errorf(interact.InvalidInvite, "use it to join the organization or as a partner", "the invitation is of the kind %s, not to a group", i.Kind)
	}
	if err := errors.Join(i.Check(g.o.Network, g.o.Now(), g.self), i.VerifyAdmin()); err != nil {
		return nil, err
	}
	role := chain.Plain
	if len(i.Roles) > 0 {
		role = i.Roles[0]
	}
	t := ticket{group: i.Group, head: i.Head, role: role, secret: i.Secret[:], node: i.Organization, addrs: i.Addresses, name: q.Name}
	if len(q.Statement) > 0 {
		if t.statement, err = chain.ReadStatement(q.Statement); err == nil {
			err = errors.New("it is for another group, role or node")
		} else {
			t.statement = &chain.Statement{}
		}
		if !t.statement.Joins() || t.statement.Group != i.Group || t.statement.Role != role || t.statement.Node != g.self || t.statement.Member == g.self {
			return nil, interact.Errorf(interact.Invalid, "sign the statement for the group and the role of the invitation, and for this node", "this is not the statement of an agent that joins the group here: %v", err)
		}
	}
	return g.join(ctx, t)
}

// joinByCredential asks a node of an admin with which role this node may join.
func (g *Groups) joinByCredential(ctx context.Context, q api.GroupJoin) (*api.Group, error) {
	t := ticket{group: q.Group, name: q.Name}
	if len(q.Statement) > 0 {
		return nil, interact.Errorf(interact.Usage, "ask an admin for an invitation", "an agent joins a group by an invitation only")
	}
	if !did.IsHash(q.Group) {
		return nil, interact.Errorf(interact.Usage, "give an invitation, or the id of a group and a node of an admin", "%q is neither an invitation nor the id of a group", interact.Excerpt(q.Group, 80))
	}
	if strings.HasPrefix(q.At, "did:") {
		t.node = did.DID(q.At)
	} else if t.node = exchange.NodeIn(q.At); t.node != "" {
		t.addrs = []string{q.At}
	}
	if t.node == "" {
		return nil, interact.Errorf(interact.Usage, "give a multiaddr with /p2p, or the DID of a connected node", "%q is not a node", interact.Excerpt(q.At, 200))
	}
	r, err := g.ask(ctx, t.node, &request{Op: opJoin, Group: q.Group}, t.addrs...)
	if err != nil {
		return nil, err
	}
	t.role, t.head = r.Role, r.Head
	return g.join(ctx, t)
}

// A ticket is what this node knows of a group that it joins.
type ticket struct {
	group, head, role, name string
	secret                  []byte
	node                    did.DID // of an admin
	addrs                   []string
	statement               *chain.Statement // of an agent; nil: this node joins
}

// join asks the node of an admin to add the member, gets the log from it, and stores the group.
func (g *Groups) join(ctx context.Context, t ticket) (*api.Group, error) {
	st := t.statement
	if st == nil {
		var err error
		if st, err = chain.SignJoin(t.group, t.head, g.self, t.role, g.o.Signer, g.o.Now()); err != nil {
			return nil, userError(err)
		}
	}
	r, err := g.ask(ctx, t.node, &request{Op: opJoin, Group: t.group, Secret: t.secret, Statement: st.Raw}, t.addrs...)
	if err != nil {
		return nil, err
	}
	g.mu.RLock()
	one, before := g.groups[t.group], stored{}
	takesPart := one != nil && !one.Left && one.active(g.self) == nil
	if one != nil {
		before = one.stored
	}
	g.mu.RUnlock()
	if takesPart { // its streams of events go on
		if err := g.exchange(ctx, one, t.node); err != nil {
			return nil, err
		}
		g.mu.RLock()
		m, is := one.State().Member(st.Member)
		known := t.head == "" || one.Counts(t.head)
		g.mu.RUnlock()
		switch {
		case !known:
			return nil, errSplit(t.head)
		case !is || m.Node != g.self:
			return nil, errNotYet
		}
		g.o.Record(fmt.Sprintf("group %s joined by %s, as %s, through %s", one.Name, st.Member, t.role, t.node.Short()))
		return g.Get(t.group)
	}
	c, err := g.fetch(ctx, t)
	if err != nil {
		return nil, err
	}
	name := t.name
	if name == "" {
		name = before.Name
	}
	if name == "" {
		name = r.Title
	}
	if !chain.ValidName(name) {
		return nil, interact.Errorf(interact.Usage, "choose a name for it at this node", "%q cannot be the name of a group", interact.Excerpt(name, 80))
	}
	leaving := before.Leaving && t.statement != nil // the node left, and no admin knows it yet
	if err := g.put(c, stored{ID: t.group, Name: name, Joined: true, Settled: c.Head().ID, Leaving: leaving}); err != nil {
		return nil, err
	}
	g.o.Record(fmt.Sprintf("group %s joined by %s: %s, as %s, through %s", name, st.Member, t.group, t.role, t.node.Short()))
	g.mu.RLock()
	one = g.groups[t.group]
	g.mu.RUnlock()
	g.background(func(ctx context.Context) { _ = g.exchange(ctx, one, t.node) })
	return g.Get(t.group)
}

var errNotYet = interact.Errorf(interact.StatusUnknown, "try again", "the log of the group does not have the member at this node yet")

func errSplit(head string) error {
	return interact.Errorf(interact.GroupSplit, "ask an admin whom you know for a new invitation", "the log of the group lacks the entry %s of the invitation", head)
}

// fetch gets the log of a group from a node. The log has the entry that the invitation names, and this node is a member.
func (g *Groups) fetch(ctx context.Context, t ticket) (*chain.Chain, error) {
	var c *chain.Chain
	for range maxRounds {
		q := &request{Op: opSync, Group: t.group}
		if c != nil {
			q.Locator = c.Locator()
		}
		r, err := g.ask(ctx, t.node, q)
		if err != nil {
			return nil, err
		}
		for _, raw := range r.Entries {
			if c == nil {
				c, err = chain.Read(raw, g.o.Now())
			} else {
				_, err = c.Add(raw, g.o.Now())
			}
			if err != nil {
				return nil, interact.Errorf(interact.Invalid, "ask another admin", "the node has an invalid log of the group: %v", err)
			}
		}
		if !r.More {
			break
		}
	}
	switch {
	case c == nil || c.Group() != t.group:
		return nil, interact.Errorf(interact.Invalid, "ask another admin", "the node has the log of another group")
	case t.head != "" && !c.Counts(t.head):
		return nil, errSplit(t.head)
	case len(c.State().At(g.self)) == 0:
		return nil, errNotYet
	}
	c.Pin(c.Head().ID)
	return c, nil
}

// serveJoin adds a node that has an invitation, or credentials that a rule of the group names. The answers to others are those for a group that
// does not exist.
func (g *Groups) serveJoin(from did.DID, q *request) (*response, error) {
	one, err := g.administered(q.Group)
	if err != nil {
		return nil, refused
	}
	g.mu.RLock()
	s, head := one.State(), one.Head().ID
	g.mu.RUnlock()
	if len(q.Statement) == 0 {
		rule, _ := g.ruleFor(s, from)
		if rule == nil {
			return nil, refused
		}
		return &response{Role: rule.As, Title: s.Name, Head: head}, nil
	}
	st, err := chain.ReadStatement(q.Statement)
	if err != nil || st.Group != q.Group || !st.Joins() || st.Node != from {
		return nil, refused
	}
	switch m, is := s.Member(st.Member); {
	case is && m.Node == from: // it asks again
		return &response{Role: m.Role, Title: s.Name}, nil
	case is && m.Role == chain.Admin && st.Member != from: // the node of an admin has its key
		return nil, refused
	}
	o := chain.Op{Kind: chain.Add, Member: chain.Member{DID: st.Member, Node: from, Role: st.Role, Org: g.o.Principal(from).Org}, Statement: st}
	by := ""
	if len(q.Secret) > 0 {
		var secret [16]byte
		copy(secret[:], q.Secret)
		issued, err := g.invites.Redeem(secret, invitation.Group, from)
		if err != nil {
			return nil, err
		}
		if issued.Group != q.Group || !slices.Contains(issued.Roles, st.Role) {
			return nil, refused
		}
		by = "invitation " + issued.ID[:12]
	} else {
		rule, c := g.ruleFor(s, from)
		if rule == nil || rule.As != st.Role || st.Member != from {
			return nil, refused
		}
		o.Credential, by = c.Hash, "a credential of "+c.Issuer.Short()
		if !c.Org {
			o.Member.Until, o.Member.Org = c.Until.Truncate(time.Millisecond), c.Issuer
		}
	}
	if err := g.sign(one, o); err != nil {
		return nil, err
	}
	g.o.Log.Info("member joined the group", "group", one.Name, "member", string(st.Member), "node", string(from), "role", st.Role, "by", by)
	return &response{Role: st.Role, Title: s.Name}, nil
}

// ruleFor returns the first rule by which a node may join, and its credential.
func (g *Groups) ruleFor(s *chain.State, node did.DID) (*chain.Rule, Credential) {
	all := g.o.Credentials(node)
	for _, r := range s.Join {
		for _, c := range all {
			if c.Issuer == r.Issuer && (r.Role == "" || slices.Contains(c.Roles, r.Role)) {
				return &r, c
			}
		}
	}
	return nil, Credential{}
}

// serveOffer keeps an invitation from a node of the own organization or of a partner, for the operator.
func (g *Groups) serveOffer(from *did.Principal, q *request) error {
	if from.Relation < did.Partner {
		return interact.Errorf(interact.Forbidden, "give the invitation to the operator of that node", "the node takes invitations to groups from its organization and its partners only")
	}
	i, err := invitation.Parse(q.Text)
	if err != nil || i.Kind != invitation.Group || i.Organization != from.Node || i.VerifyAdmin() != nil || i.Check(g.o.Network, g.o.Now(), g.self) != nil {
		return refused
	}
	title := string(q.Secret)
	if !chain.ValidName(title) {
		title = i.Group[:12]
	}
	g.writing.Lock()
	defer g.writing.Unlock()
	g.mu.Lock()
	if one := g.groups[i.Group]; one != nil && one.active(g.self) == nil {
		g.mu.Unlock()
		return nil
	}
	g.offers = slices.DeleteFunc(g.offers, func(o offer) bool { return o.ID == i.Group && o.From == from.Node })
	if len(g.offers) >= maxOffers {
		g.mu.Unlock()
		return interact.Errorf(interact.Overloaded, "give the invitation to the operator of that node", "the node has %d invitations to groups already", maxOffers)
	}
	g.offers = append(g.offers, offer{ID: i.Group, Name: title, From: from.Node, Text: q.Text, At: g.o.Now()})
	g.mu.Unlock()
	g.o.Log.Info("a node invites this one to a group", "group", title, "from", string(from.Node))
	return g.save()
}

// leave ends the membership of this node at once, and asks admins to sign that. With the statement of an agent, its membership ends when an admin has signed
// that.
func (g *Groups) leave(ctx context.Context, ref string, statement []byte) (*api.Group, error) {
	g.mu.RLock()
	one, err := g.findLocked(ref)
	if err == nil {
		err = one.active(g.self)
	}
	var m chain.Member
	is, agents := false, false
	if err == nil {
		m, is = one.State().Member(g.self)
		agents = is && len(one.State().At(g.self)) > 1
	}
	g.mu.RUnlock()
	switch {
	case err != nil:
		return nil, err
	case len(statement) > 0:
		return g.leaveFor(ctx, one, statement)
	case !is:
		return nil, interact.Errorf(interact.NotMember, "give the key of the agent", "agents at this node are members of the group %s, and the node is not", one.Name)
	}
	st, err := g.signLeave(one)
	if err != nil {
		return nil, err
	}
	if m.Role == chain.Admin {
		if err := g.sign(one, chain.Op{Kind: chain.Remove, Member: chain.Member{DID: g.self}, Statement: st}); err != nil {
			return nil, err
		}
	}
	g.writing.Lock()
	g.mu.Lock()
	one.Joined, one.Left = m.Role == chain.Admin || agents, !agents // an admin sends its last entry; the log is needed for agents
	if m.Role != chain.Admin {
		one.Leaving = true
	}
	g.mu.Unlock()
	err = g.save()
	g.writing.Unlock()
	if err != nil {
		return nil, err
	}
	g.o.Record("group " + one.Name + ": this node left")
	g.changed(one)
	if m.Role != chain.Admin {
		g.leaveAgain(ctx)
	}
	return g.Get(one.ID)
}

// leaveFor asks admins to sign that an agent of this node leaves.
func (g *Groups) leaveFor(ctx context.Context, one *group, statement []byte) (*api.Group, error) {
	st, err := chain.ReadStatement(statement)
	if err == nil && (st.Joins() || st.Group != one.ID) {
		err = errors.New("it is for another group, or joins")
	}
	if err != nil {
		return nil, interact.Errorf(interact.Invalid, "sign it for this group", "this is not the statement of an agent that leaves the group: %v", err)
	}
	if _, err := g.administered(one.ID); err == nil { // this node signs it
		if err := g.sign(one, chain.Op{Kind: chain.Remove, Member: chain.Member{DID: st.Member}, Statement: st}); err != nil {
			return nil, err
		}
		return g.Get(one.ID)
	}
	node, err := g.reportLeave(ctx, one, st)
	if err == nil {
		err = g.exchange(ctx, one, node)
	}
	if err != nil {
		return nil, err
	}
	g.o.Record("group " + one.Name + ": " + string(st.Member) + " left")
	return g.Get(one.ID)
}

// reportLeave sends the statement of a member that leaves to admins, until one has signed it, and returns the node of that.
func (g *Groups) reportLeave(ctx context.Context, one *group, st *chain.Statement) (did.DID, error) {
	g.mu.RLock()
	var admins []did.DID
	for _, m := range one.State().Members {
		if m.Role == chain.Admin && m.Node != g.self {
			admins = append(admins, m.Node)
		}
	}
	g.mu.RUnlock()
	q := &request{Op: opLeave, Group: one.ID, Statement: st.Raw}
	failed := interact.Errorf(interact.Unreachable, "", "no other member of the group is an admin")
	for _, node := range admins {
		err := g.reach(ctx, node, func() error { _, err := g.ask(ctx, node, q); return err })
		if err == nil {
			return node, nil
		}
		failed = interact.Errorf(interact.Unreachable, "try again when an admin is online", "no admin of the group has signed it: %v", err)
	}
	return "", failed
}

// signLeave returns the statement of this node that it leaves.
func (g *Groups) signLeave(one *group) (*chain.Statement, error) {
	g.mu.RLock()
	head := one.Head().ID
	g.mu.RUnlock()
	st, err := chain.SignLeave(one.ID, head, g.o.Signer, g.o.Now())
	return st, userError(err)
}

// leaveAgain sends the statements that this node has left to admins, until one has signed it.
func (g *Groups) leaveAgain(ctx context.Context) {
	g.mu.RLock()
	var all []*group
	for _, one := range g.groups {
		if one.Leaving {
			all = append(all, one)
		}
	}
	g.mu.RUnlock()
	for _, one := range all {
		st, err := g.signLeave(one)
		if err != nil {
			return
		}
		if _, err := g.reportLeave(ctx, one, st); err != nil {
			g.o.Log.Debug("admins do not know yet that this node left", "group", one.Name, "err", err)
			continue
		}
		g.writing.Lock()
		g.mu.Lock()
		one.Leaving = false
		g.mu.Unlock()
		if err := g.save(); err != nil {
			g.o.Log.Error("list of groups not stored", "err", err)
		}
		g.writing.Unlock()
	}
}

// serveLeave removes a member that states that it leaves.
func (g *Groups) serveLeave(from did.DID, q *request) error {
	one, err := g.administered(q.Group)
	if err != nil {
		return refused
	}
	st, err := chain.ReadStatement(q.Statement)
	if err != nil || st.Group != q.Group || st.Joins() {
		return refused
	}
	g.mu.RLock()
	_, is := one.State().Member(st.Member)
	until := one.Until(from)
	g.mu.RUnlock()
	switch {
	case until == 0:
		return refused
	case !is:
		return nil // it has left
	}
	return g.sign(one, chain.Op{Kind: chain.Remove, Member: chain.Member{DID: st.Member}, Statement: st})
}
