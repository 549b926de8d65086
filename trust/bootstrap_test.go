package trust

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
)

// endpoints returns the addresses of nodes in the documents of organizations that a node has, by their place in its order: the own one first.
func (m *member) endpoints() (all [][]string) {
	for _, doc := range m.Documents() {
		all = append(all, doc.Endpoints(did.MeshService))
	}
	return all
}

// The document of an organization lists its node from the start. A change reaches members and partners, and documents of partners that are gone
// do not count.
func TestDocumentsListNodes(t *testing.T) {
	t.Parallel()
	acme, agent, globex := newMember(t), newMember(t), newMember(t)
	if all := acme.Documents(); len(all) != 0 {
		t.Errorf("without an organization: %v", all)
	}
	if o := acme.founds("acme.example"); !slices.Equal(o.Bootstrap, acme.addrs()) {
		t.Errorf("the document lists %v, want %v", o.Bootstrap, acme.addrs())
	}
	globex.founds("globex.example")
	acme.admits(agent, false)
	acme.federates(globex)
	agent.becomes(acme, did.Own, "node")
	agent.waits(func() bool { return len(agent.Partners()) == 1 })
	want := []string{"/dns/mesh.acme.example/tcp/1/p2p/" + didtest.NewKey().DID().PeerText()}
	if o := must(acme.SetBootstrap(t.Context(), want))(t); !slices.Equal(o.Bootstrap, want) {
		t.Errorf("got %v", o.Bootstrap)
	}
	agent.waits(func() bool {
		got := agent.endpoints()
		return len(got) == 2 && slices.Equal(got[0], want) && slices.Equal(got[1], globex.addrs())
	})
	globex.waits(func() bool { got := globex.endpoints(); return len(got) == 2 && slices.Equal(got[1], want) })
	if err := globex.RemovePartner(t.Context(), "acme"); err != nil || len(globex.Documents()) != 1 {
		t.Errorf("%v; after the partnership: %v", err, globex.endpoints())
	}
	head := acme.org.Log().Head()
	if o := must(acme.SetBootstrap(t.Context(), want))(t); o.Head != head {
		t.Error("the same list is a new version")
	}
	if o := must(acme.SetBootstrap(t.Context(), []string{}))(t); len(o.Bootstrap) != 0 {
		t.Errorf("removed, the list is %v", o.Bootstrap)
	}
	if o := must(acme.SetBootstrap(t.Context(), nil))(t); !slices.Equal(o.Bootstrap, acme.addrs()) {
		t.Errorf("the list of this node is %v", o.Bootstrap)
	}
	for what, c := range map[string]struct {
		at    *member
		addrs []string
		code  interact.Code
	}{
		"an address without a node": {acme, []string{"/ip4/192.0.2.1/tcp/1"}, interact.Usage},
		"too many":                  {acme, slices.Repeat(want, 9), interact.Usage},
		"without the root key":      {agent, agent.addrs(), interact.Forbidden},
	} {
		if _, err := c.at.SetBootstrap(t.Context(), c.addrs); err == nil || interact.AsError(err).Code != c.code {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The document of an organization is public and lasts: it has no address that others cannot use later.
func TestAddressesForTheDocument(t *testing.T) {
	t.Parallel()
	const loop, near, far, name = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB", "/ip4/192.168.1.4/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB",
		"/ip4/11.0.0.1/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB", "/dns/node.example/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
	const relayed = "/ip4/11.0.0.2/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB/p2p-circuit/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
	for _, c := range []struct{ has, want []string }{
		{[]string{loop}, []string{loop}},
		{[]string{loop, near}, []string{near}},
		{[]string{loop, near, relayed, far}, []string{far}},
		{[]string{near, name, far}, []string{name, far}},
		{[]string{near, relayed}, []string{near}},
		{[]string{relayed}, nil},
		{slices.Repeat([]string{far}, 20), slices.Repeat([]string{far}, 8)},
	} {
		m := &Trust{addrs: func() []string { return c.has }}
		if got := m.entryAddrs(); !slices.Equal(got, c.want) {
			t.Errorf("of %v the document gets %v, want %v", c.has, got, c.want)
		}
	}
}

// A node that only relays reach makes an organization without a list, and says so when it should list itself.
func TestNoAddressForTheDocument(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.Trust.addrs = func() []string { return nil }
	o := must(m.Init(t.Context(), api.OrganizationInit{Domain: "acme.example", RecoveryFile: filepath.Join(t.TempDir(), "r")}))(t)
	if len(o.Bootstrap) != 0 {
		t.Errorf("got %v", o.Bootstrap)
	}
	if _, err := m.SetBootstrap(t.Context(), nil); err == nil || interact.AsError(err).Code != interact.Usage {
		t.Errorf("got %v", err)
	}
}
