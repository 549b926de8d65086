package trust

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/td"
)

// describes returns a description of a Thing of m that claims an organization.
func (m *member) describes(claims did.DID) *td.Description {
	return &td.Description{Thing: &td.Thing{ID: "urn:x", Title: "x", MemberOf: claims},
		Record: &td.Record{Thing: "urn:x", Owner: m.did(), Hosts: []td.Host{{Node: m.did(), Addrs: m.addrs()}}}}
}

// shows fails the test unless m shows the organization of a description in a state, and under a name.
func (m *member) shows(d *td.Description, state directory.AffiliationState, name string) {
	m.t.Helper()
	a := m.Affiliation(d)
	if a == nil {
		a = &directory.Affiliation{}
	}
	if a.State != state || a.Name != name {
		m.t.Errorf("got %+v, want %s %q", *a, state, name)
	}
}

func TestWhichOrganizationIsShown(t *testing.T) {
	t.Parallel()
	acme, acme2, globex, outsider := newMember(t), newMember(t), newMember(t), newMember(t)
	own := acme.founds("acme.example")
	theirs := globex.founds("globex.example")
	acme.admits(acme2, false)
	acme.federates(globex)
	acme.becomes(acme2, did.Own, "")
	acme.becomes(globex, did.Partner, "")
	acme.shows(acme.describes(""), directory.OwnOrganization, "acme")
	acme.shows(acme2.describes(""), directory.OwnOrganization, "acme")
	acme.shows(globex.describes(""), directory.PartnerOrganization, "globex")
	acme.shows(globex.describes(own.DID), directory.PartnerOrganization, "globex") // the credential counts, not the claim
	acme.shows(outsider.describes(""), "", "")
	acme.shows(outsider.describes(theirs.DID), directory.ClaimedOrganization, "globex.example")
	vendor := outsider.describes("")
	vendor.Metadata = &td.Metadata{VendorName: "globex"}
	acme.shows(vendor, directory.ClaimedOrganization, "globex")

	members := acme.MembersOf(theirs.DID)
	if len(members) != 1 || members[0] != globex.did() {
		t.Errorf("members of the partner: %v", members)
	}
	if own := acme.MembersOf(own.DID); len(own) != 2 {
		t.Errorf("members of the own organization: %v", own)
	}
	for name, want := range map[string]did.DID{"own": own.DID, "acme": own.DID, "acme.example": own.DID, own.SCID: own.DID, "globex": theirs.DID,
		string(theirs.DID): theirs.DID, "globex.example": "", "other": "", "": ""} {
		if got, err := acme.OrganizationNamed(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", name, got, err)
		}
	}
	if err := acme.RemovePartner(t.Context(), "globex"); err != nil {
		t.Fatal(err)
	}
	acme.shows(globex.describes(theirs.DID), directory.ClaimedOrganization, "globex.example")
	if _, err := acme.OrganizationNamed("globex"); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a former partner: %v", err)
	}
	if _, err := outsider.OrganizationNamed("own"); err == nil {
		t.Error("a node without an organization knows its own one")
	}
	if (*Trust)(nil).Affiliation(vendor).State != directory.ClaimedOrganization {
		t.Error("a node without trust shows a claim as more")
	}
}

// TestVerifyMembersOfNodesThatAreNotConnected asks the host of a Thing that claims a known organization, and no other.
func TestVerifyMembersOfNodesThatAreNotConnected(t *testing.T) {
	t.Parallel()
	acme, globex, globex2, liar, other := newMember(t), newMember(t), newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	theirs := globex.founds("globex.example")
	foreign := other.founds("other.example")
	globex.admits(globex2, false)
	acme.federates(globex)
	acme.becomes(globex, did.Partner, "")

	streams := func(m *member) *atomic.Int64 {
		n := &atomic.Int64{}
		m.host.Network().Notify(&network.NotifyBundle{ConnectedF: func(network.Network, network.Conn) { n.Add(1) }})
		return n
	}
	toLiar, toOther := streams(liar), streams(other)

	things := []*td.Description{globex2.describes(theirs.DID), liar.describes(theirs.DID), other.describes(foreign.DID), other.describes("")}
	poll.Until(t, "the member is verified", func() bool {
		acme.VerifyMembers(t.Context(), things)
		return len(acme.MembersOf(theirs.DID)) == 2
	})
	acme.shows(things[0], directory.PartnerOrganization, "globex")
	acme.shows(things[1], directory.ClaimedOrganization, "globex.example")
	acme.shows(things[2], directory.ClaimedOrganization, "other.example")
	if n := toLiar.Load(); n > 1 {
		t.Errorf("the node that claims a partner was dialled %d times", n)
	}
	if n := toOther.Load(); n != 0 {
		t.Errorf("the node that claims an unknown organization was dialled %d times", n)
	}
	acme.connect(liar)
	if n := len(acme.suspects(things)); n != 0 { // the hello has decided it
		t.Errorf("%d owners are asked again", n)
	}
}

func TestCheckDomain(t *testing.T) {
	t.Parallel()
	acme, globex, liar := newMember(t), newMember(t), newMember(t)
	var requests atomic.Int64
	var serving atomic.Pointer[member]
	options, port := didtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if m := serving.Load(); m != nil {
			if content, media, ok := m.Document(r.URL.Path); ok {
				w.Header().Set("Content-Type", media)
				_, _ = w.Write(content)
				return
			}
		}
		http.NotFound(w, r)
	}))
	domain := "globex.example:" + port
	acme.o.Web = options
	acme.founds("acme.example")
	theirs := globex.founds(domain)
	thing, lie := globex.describes(theirs.DID), liar.describes(theirs.DID)
	globex.Serve(Things{Named: func(o did.DID) bool { return o == theirs.DID }})
	check := func(name string, want bool, problem string) *api.DomainCheck {
		t.Helper()
		c, err := acme.CheckDomain(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(c.Problems, "; "); c.Proven != want || !strings.Contains(text, problem) || problem == "" && text != "" {
			t.Errorf("%s: got %+v, want %t, %q", name, c, want, problem)
		}
		return c
	}
	acme.VerifyMembers(t.Context(), []*td.Description{thing, lie})
	acme.shows(thing, directory.ClaimedOrganization, domain)
	if requests.Load() != 0 {
		t.Error("a claim caused a request")
	}
	check(domain, false, "does not exist")
	serving.Store(globex)
	check("did:webvh:"+didtestSCID(acme)+":"+webvh.Location(theirs.DID), false, "another organization")
	if c := check(domain, true, ""); c.DID != theirs.DID || c.Organization.State != "proven" || time.Until(c.Until) > time.Hour {
		t.Errorf("got %+v", c)
	}
	poll.Until(t, "the member is proven", func() bool {
		acme.VerifyMembers(t.Context(), []*td.Description{thing, lie})
		return len(acme.MembersOf(theirs.DID)) == 1
	})
	acme.shows(thing, directory.ProvenOrganization, domain)
	acme.shows(lie, directory.ClaimedOrganization, domain)
	if id, err := acme.OrganizationNamed(domain); err != nil || id != theirs.DID {
		t.Errorf("%s is %s, %v", domain, id, err)
	}
	if acme.Principal(globex.did()).Relation != did.Untrusted {
		t.Error("a proof of a domain gives rights")
	}
	advances(time.Hour+time.Minute, acme)
	acme.shows(thing, directory.ClaimedOrganization, domain) // the proof has ended
	advances(-time.Hour-time.Minute, acme)
	acme.shows(thing, directory.ProvenOrganization, domain)
	serving.Store(nil)
	check(domain, false, "does not exist")
	acme.shows(thing, directory.ClaimedOrganization, domain)

	acme.federates(globex) // a partner keeps its name, and the domain proves it
	serving.Store(globex)
	if c := check(domain, true, ""); c.Organization.State != "partner" || c.Organization.Name != "globex" {
		t.Errorf("got %+v", c.Organization)
	}
	serving.Store(acme)
	check(domain, false, "the log there is that of")
	for _, bad := range []string{"", "127.0.0.1", "localhost/..", "a@b", "did:key:" + globex.did().Multibase(), "[::1]"} {
		if _, err := acme.CheckDomain(t.Context(), bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// TestCheckDomainAtPrivateAddresses finds a default that connects to this machine.
func TestCheckDomainAtPrivateAddresses(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	c, err := m.CheckDomain(t.Context(), "localhost:1")
	if err != nil || c.Proven || !strings.Contains(strings.Join(c.Problems, " "), "loopback") {
		t.Errorf("got %+v, %v", c, err)
	}
}

func didtestSCID(m *member) string {
	o, err := m.Organization()
	if err != nil {
		m.t.Fatal(err)
	}
	return o.SCID
}
