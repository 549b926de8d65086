package render

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// Organization returns the sheet of the organization of a node.
func Organization(o *api.Organization, now time.Time) *terminal.Sheet {
	s := &terminal.Sheet{}
	name := o.Name
	if o.Auto {
		name += " (made by the first run)"
	}
	s.Add("organization", name)
	s.Add("did", string(o.DID))
	s.Add("scid", o.SCID)
	s.Add("state", organizationState(o))
	s.Add("roles", strings.Join(o.Roles, ", "))
	s.Add("until", deadline(o.Until, now))
	s.Add("keys", Join(", ", mark(o.Issuer, "issuing key"), mark(o.Root, "root key")))
	for _, i := range o.Issuers {
		s.Add("issuer", issuer(i, now))
	}
	for _, addr := range o.Bootstrap {
		s.Add("bootstrap", addr)
	}
	if len(o.Members) > 0 {
		s.Add("members", memberCount(o.Members))
	}
	s.Add("head", o.Head)
	return s
}

// organizationLine describes the organization of a node on one line.
func organizationLine(o *api.Organization) string {
	members := ""
	if len(o.Members) > 1 {
		members = memberCount(o.Members)
	}
	state := ""
	if o.State != api.OrganizationConfirmed {
		state = o.State
	}
	return terminal.OneLine(Join(" · ", o.Name+mark(o.Auto, " (made by the first run)"), state, strings.Join(o.Roles, ", "), mark(o.Issuer, "issuer"),
		members))
}

// mark returns text if on.
func mark(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

func organizationState(o *api.Organization) string {
	switch o.State {
	case api.OrganizationUnconfirmed:
		return o.State + ": since the start of this node, no issuer has confirmed which members are revoked"
	case api.OrganizationExpired:
		return o.State + ": the credential of this node has ended, and no issuer has renewed it"
	case api.OrganizationEnded:
		return o.State + ": its log accepts no further version, and no credential of it is valid"
	}
	return o.State
}

// deadline returns a time and how far off it is.
func deadline(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	if now.Before(t) {
		return Stamp(t) + " (in " + terminal.Span(t.Sub(now)) + ")"
	}
	return Stamp(t) + " (" + terminal.Ago(t, now) + " ago)"
}

func issuer(i api.Issuer, now time.Time) string {
	list := "no status list yet"
	if i.ListVersion > 0 {
		list = "status list of " + terminal.Ago(i.ListFrom, now) + " ago"
	}
	node := i.Node.Short()
	if i.This {
		node = "this node"
	}
	return Join(" · ", i.Method, node, list)
}

func memberCount(members []api.Member) string {
	revoked := 0
	for _, m := range members {
		if !m.Revoked.IsZero() {
			revoked++
		}
	}
	text := terminal.Count(len(members)-revoked, "member", "members")
	if revoked > 0 {
		text += fmt.Sprintf(", %d revoked", revoked)
	}
	return text
}

// Members returns the table of the members of an organization.
func Members(items []api.Member, now time.Time, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Member]{
		{Name: "NODE", Keep: true, Cell: func(m api.Member) terminal.Cell { return terminal.Short(MemberName(m), string(m.DID)) }},
		{Name: "ROLES", Cell: terminal.TextOf(func(m api.Member) string { return strings.Join(m.Roles, ", ") })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(m api.Member) string { return memberState(m, now) })},
		{Name: "UNTIL", Keep: true, Cell: func(m api.Member) terminal.Cell { return until(m.Until, now) }},
		{Name: "NAME", Cell: terminal.TextOf(func(m api.Member) string { return m.Name })},
	})
}

// MemberName returns a short name of a member, which all commands accept.
func MemberName(m api.Member) string {
	key := m.DID.Multibase()
	if key == "" {
		return string(m.DID)
	}
	return key[:min(len(key), ShortKey)]
}

func memberState(m api.Member, now time.Time) string {
	switch {
	case !m.Revoked.IsZero():
		return "revoked"
	case !m.Until.IsZero() && !now.Before(m.Until):
		return "expired"
	case m.Connected:
		return "connected"
	}
	return "member"
}

// until returns the time that is left until t.
func until(t, now time.Time) terminal.Cell {
	switch {
	case t.IsZero():
		return terminal.Short("–", "")
	case !now.Before(t):
		return terminal.Short(terminal.Ago(t, now)+" ago", Stamp(t))
	}
	return terminal.Short("in "+terminal.Span(t.Sub(now)), Stamp(t))
}

// shortID returns the beginning of the id of an invitation, as logs and the audit log have it.
func shortID(id string) string { return id[:min(12, len(id))] }

// Invitation returns the sheet of an invitation, without its text.
func Invitation(i *api.Invitation, now time.Time) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("invitation", shortID(i.ID)+", "+purpose(i))
	s.Add("scid", i.SCID)
	if i.For == "" {
		s.Add("for", "any holder of the text, which is a secret until it was used")
	} else {
		s.Add("for", string(i.For)+" only")
	}
	s.Add("roles", strings.Join(i.Roles, ", "))
	s.Add("uses", fmt.Sprint(i.Uses))
	s.Add("expires", deadline(i.Expires, now))
	return s
}

func purpose(i *api.Invitation) string {
	name := domain(i.Organization)
	switch {
	case i.InvitationKind == api.InvitePartner:
		return "to become a partner of " + name
	case i.Issuer:
		return "to become a member and an issuer of " + name
	}
	return "to become a member of " + name
}

// domain returns the last part of the DID of an organization: its domain.
func domain(id did.DID) string {
	text := string(id)
	return strings.ReplaceAll(text[strings.LastIndexByte(text, ':')+1:], "%3A", ":")
}

// Invitations returns the table of open invitations.
func Invitations(items []api.Invitation, now time.Time, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Invitation]{
		{Name: "INVITATION", Keep: true, Cell: func(i api.Invitation) terminal.Cell { return terminal.Short(shortID(i.ID), i.ID) }},
		{Name: "KIND", Keep: true, Cell: terminal.TextOf(func(i api.Invitation) string { return i.InvitationKind })},
		{Name: "FOR", Cell: func(i api.Invitation) terminal.Cell {
			if i.For == "" {
				return terminal.Short("anyone with it", "")
			}
			return terminal.Short(i.For.Short(), string(i.For))
		}},
		{Name: "ROLES", Cell: terminal.TextOf(func(i api.Invitation) string { return strings.Join(i.Roles, ", ") })},
		{Name: "USES", Keep: true, Cell: terminal.TextOf(func(i api.Invitation) string { return fmt.Sprint(i.Uses) })},
		{Name: "EXPIRES", Keep: true, Cell: func(i api.Invitation) terminal.Cell { return until(i.Expires, now) }},
	})
}

// Partner returns the sheet of a partner.
func Partner(p *api.Partner, now time.Time) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("partner", p.Name)
	s.Add("did", string(p.DID))
	s.Add("scid", p.SCID)
	s.Add("state", partnerState(p))
	s.Add("words", strings.Join(p.Words, " "))
	s.Add("roles", partnerRoles(p))
	s.Add("since", Stamp(p.Since))
	s.Add("until", deadline(p.Until, now))
	s.Add("connected", terminal.Count(p.Connected, "node", "nodes"))
	s.Add("head", p.Head)
	return s
}

func partnerState(p *api.Partner) string {
	switch p.State {
	case api.PartnerUnconfirmed:
		return p.State + ": compare the six words with the other side"
	case api.PartnerSuspended:
		return p.State + ": its log has two different continuations"
	case api.PartnerExpired:
		return p.State + ": the partnership has ended"
	}
	return p.State
}

func partnerRoles(p *api.Partner) string {
	if len(p.Roles) == 0 || slices.Equal(p.Roles, []string{"*"}) {
		return "all"
	}
	return strings.Join(p.Roles, ", ")
}

// Partners returns the table of partners.
func Partners(items []api.Partner, now time.Time, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Partner]{
		{Name: "PARTNER", Keep: true, Cell: terminal.TextOf(func(p api.Partner) string { return p.Name })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(p api.Partner) string { return p.State })},
		{Name: "NODES", Keep: true, Cell: terminal.TextOf(func(p api.Partner) string { return fmt.Sprint(p.Connected) })},
		{Name: "ROLES", Cell: terminal.TextOf(func(p api.Partner) string { return partnerRoles(&p) })},
		{Name: "UNTIL", Keep: true, Cell: func(p api.Partner) terminal.Cell { return until(p.Until, now) }},
		{Name: "WORDS", Cell: terminal.TextOf(func(p api.Partner) string { return strings.Join(p.Words, " ") })},
		{Name: "DID", Wide: true, Cell: terminal.TextOf(func(p api.Partner) string { return string(p.DID) })},
		{Name: "HEAD", Wide: true, Cell: terminal.TextOf(func(p api.Partner) string { return p.Head })},
	})
}

// partnersLine lists partners on one line; empty without partners.
func partnersLine(items []api.Partner) string {
	names := make([]string, len(items))
	for i, p := range items {
		state := terminal.Count(p.Connected, "node", "nodes")
		if p.State != api.PartnerActive {
			state = p.State
		}
		names[i] = p.Name + " (" + state + ")"
	}
	return terminal.OneLine(strings.Join(names, ", "))
}

// DomainCheck returns the sheet of the check of a domain.
func DomainCheck(c *api.DomainCheck) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("domain", c.Domain)
	if c.Proven {
		s.Add("proven", Join(", ", "it serves the log of "+string(c.DID), AffiliationText(c.Organization)))
	} else {
		s.Add("proven", "nothing")
	}
	s.Add("scid", c.SCID)
	s.Add("head", c.Head)
	s.Add("until", Stamp(c.Until))
	s.Add("problem", c.Problems...)
	for _, g := range c.Agents {
		s.Add("agent", Join(" · ", AffiliationText(g.Organization), g.Ref))
	}
	return s
}

// JoinRequest returns the sheet of a request of this node.
func JoinRequest(r *api.JoinRequest, now time.Time) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("organization", r.Name+", a name that proves nothing")
	s.Add("scid", r.SCID)
	s.Add("issuer", string(r.Node))
	s.Add("words", strings.Join(r.Words, " "))
	s.Add("expires", deadline(r.Expires, now))
	return s
}

// JoinRequests returns the table of the requests at an issuer.
func JoinRequests(items []api.JoinRequest, now time.Time, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.JoinRequest]{
		{Name: "NODE", Keep: true, Cell: func(r api.JoinRequest) terminal.Cell {
			return terminal.Short(MemberName(api.Member{DID: r.Node}), string(r.Node))
		}},
		{Name: "WORDS", Keep: true, Cell: terminal.TextOf(func(r api.JoinRequest) string { return strings.Join(r.Words, " ") })},
		{Name: "EXPIRES", Cell: func(r api.JoinRequest) terminal.Cell { return until(r.Expires, now) }},
	})
}
