package trust

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/partners"
)

// A node on the local network can ask an issuer to make it a member (docs/decisions/0042-requests-to-join.md). The request has no secret: the
// operators of both nodes compare words that stand for the organization and the node.

// Limits of requests to join.
const (
	maxJoins   = 3                // open requests at an issuer
	joinLife   = 10 * time.Minute // of a request
	maxOffers  = 64               // peers that are asked for their organizations
	offersAt   = 8                // at once
	maxDIDText = 512              // bytes of the DID of an organization
)

// joins are the requests at an issuer.
type joins struct {
	mu  sync.Mutex
	all []join // owned by mu
}

// A join is the request of a node. It is never extended: the node asks again.
type join struct {
	node  did.DID
	words []string
	at    time.Time
}

// add returns the request of a node, which is new if the node has none. It reports false if there are too many.
func (j *joins) add(node did.DID, scid string, now time.Time) (_ join, isNew, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.expireLocked(now)
	if i := slices.IndexFunc(j.all, func(one join) bool { return one.node == node }); i >= 0 {
		return j.all[i], false, true
	}
	if len(j.all) >= maxJoins {
		return join{}, false, false
	}
	words := invitation.CheckWords(scid, string(node)) // some milliseconds, at most maxJoins times in joinLife
	j.all = append(j.all, join{node, words[:], now})
	return j.all[len(j.all)-1], true, true
}

func (j *joins) expireLocked(now time.Time) {
	j.all = slices.DeleteFunc(j.all, func(one join) bool { return now.Sub(one.at).Abs() >= joinLife })
}

func (j *joins) list(now time.Time) []join {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.expireLocked(now)
	return slices.Clone(j.all)
}

func (j *joins) remove(node did.DID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = slices.DeleteFunc(j.all, func(one join) bool { return one.node == node })
}

// isLocal reports whether all connections with a node are of the local network.
func (t *Trust) isLocal(id did.DID) bool {
	p, err := exchange.PeerOf(id)
	if err != nil {
		return false
	}
	all := t.host.Network().ConnsToPeer(p)
	return len(all) > 0 && !slices.ContainsFunc(all, func(c network.Conn) bool { return !isLocalAddr(c.RemoteMultiaddr()) })
}

// isLocalAddr reports whether an address is of a host on the local network, and not of a relay there.
func isLocalAddr(a multiaddr.Multiaddr) bool {
	_, err := manet.ToIP(a)
	return err == nil && !manet.IsPublicAddr(a) && !relay.IsCircuit(a)
}

// serveJoin answers a node on the local network: without a SCID with the organization that it may ask to join, otherwise with its credential,
// once the operator has admitted it after the request.
func (t *Trust) serveJoin(id did.DID, q *exchange.Request) (*exchange.Response, error) {
	org, err := t.mine()
	if err != nil || !t.o.Joins() || !org.IsIssuer() || q.SCID != "" && q.SCID != org.SCID() || t.Principal(id).Barred != "" || !t.isLocal(id) {
		return nil, refused
	}
	if q.SCID == "" {
		return &exchange.Response{Text: string(org.DID())}, nil
	}
	one, isNew, ok := t.joins.add(id, org.SCID(), t.now())
	if !ok {
		return nil, interact.Errorf(interact.Overloaded, "try again in 10 minutes, or use an invitation", "the issuer has %d open requests", maxJoins)
	}
	if isNew {
		t.o.Log.Info("node asks to join the organization", "node", string(id), "words", one.words)
	}
	for _, m := range org.Members() {
		if m.DID != id || !m.Revoked.IsZero() || m.Admitted.Before(one.at.Truncate(time.Second)) {
			continue
		}
		c, err := org.Issue(id, nil, 0)
		if err != nil {
			return nil, userError(err)
		}
		t.joins.remove(id)
		t.o.Record("member joined: " + string(id) + ", by its request")
		t.o.Log.Info("node joined the organization", "node", string(id))
		return &exchange.Response{Credential: c.Raw}, nil
	}
	return &exchange.Response{}, nil
}

// JoinRequests returns the open requests of nodes at this issuer.
func (t *Trust) JoinRequests() ([]api.JoinRequest, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	all := []api.JoinRequest{}
	for _, one := range t.joins.list(t.now()) {
		all = append(all, api.JoinRequest{Node: one.node, Organization: org.DID(), SCID: org.SCID(), Name: org.Name(), Words: one.words,
			Expires: one.at.Add(joinLife)})
	}
	return all, nil
}

// Offers returns the organizations that connected nodes of the local network let others ask to join, without the own one. Their names are
// claims.
func (t *Trust) Offers(ctx context.Context) []api.Offer {
	t.mu.RLock()
	peers := t.peersLocked(func(p *did.Principal) bool { return p.Relation != did.Own && p.Barred == "" })
	t.mu.RUnlock()
	peers = slices.DeleteFunc(peers, func(id did.DID) bool { return !t.isLocal(id) })
	peers = peers[:min(len(peers), maxOffers)]
	found := make([]*api.Offer, len(peers))
	places := make(chan struct{}, offersAt)
	var g sync.WaitGroup
	for i, id := range peers {
		places <- struct{}{} // an exchange has a time limit
		g.Go(func() {
			defer func() { <-places }()
			if org, err := t.offered(ctx, id); err == nil {
				found[i] = &api.Offer{Node: id, Organization: org, SCID: webvh.SCID(org), Name: partners.NameOf(org)}
			}
		})
	}
	g.Wait()
	all := []api.Offer{}
	for _, o := range found {
		if o != nil {
			all = append(all, *o)
		}
	}
	return all
}

// offered returns the organization that a node lets others ask to join.
func (t *Trust) offered(ctx context.Context, node did.DID) (did.DID, error) {
	r, err := t.net.Ask(ctx, node, &exchange.Request{Op: exchange.OpJoin})
	if err != nil {
		return "", err
	}
	org, err := did.Parse(r.Text)
	if err != nil || webvh.SCID(org) == "" || len(r.Text) > maxDIDText {
		return "", interact.Errorf(interact.Invalid, "update lmosd there", "the node %s names no organization", node.Short())
	}
	return org, nil
}

// RequestJoin asks a connected node of the local network to make this node a member of its organization. The node proves an issuing key of it
// first. With a SCID, whose words the operators have compared, this node becomes a member once it is admitted; without, it never does.
func (t *Trust) RequestJoin(ctx context.Context, q api.JoinQuery) (*api.JoinRequest, error) {
	if t.o.Dir == "" {
		return nil, errStoresNothing()
	}
	if !t.isLocal(q.Node) {
		return nil, interact.Errorf(interact.NoPeer, "connect to it first, or use an invitation", "%s is not connected on the local network", q.Node.Short())
	}
	org, err := t.offered(ctx, q.Node)
	if err != nil {
		return nil, err
	}
	scid := webvh.SCID(org)
	if q.SCID != "" && q.SCID != scid {
		return nil, interact.Errorf(interact.InvalidInvite, "begin again, and compare the words", "the node %s has another organization now", q.Node.Short())
	}
	if err := t.mayJoin(scid); err != nil {
		return nil, err
	}
	l, err := t.proveIssuer(ctx, q.Node, scid)
	if err != nil {
		return nil, err
	}
	r, err := t.net.Ask(ctx, q.Node, &exchange.Request{Op: exchange.OpJoin, SCID: scid})
	if err != nil {
		return nil, err
	}
	words := invitation.CheckWords(scid, string(t.self))
	out := &api.JoinRequest{Node: q.Node, Organization: l.DID(), SCID: scid, Name: partners.NameOf(l.DID()), Words: words[:], Expires: t.now().Add(joinLife)}
	if q.SCID == "" || len(r.Credential) == 0 {
		return out, nil
	}
	if _, err := t.enter(ctx, q.Node, t.addrOf(q.Node), l, r); err != nil {
		return nil, err
	}
	out.Joined, out.Expires = true, time.Time{}
	return out, nil
}

// addrOf returns the address of a connected node with /p2p, or "".
func (t *Trust) addrOf(id did.DID) string {
	p, err := exchange.PeerOf(id)
	if err != nil {
		return ""
	}
	for _, c := range t.host.Network().ConnsToPeer(p) {
		if c.Stat().Direction == network.DirOutbound { // that of an inbound connection has the port of a client
			return c.RemoteMultiaddr().String() + "/p2p/" + p.String()
		}
	}
	for _, a := range t.host.Peerstore().Addrs(p) {
		return a.String() + "/p2p/" + p.String()
	}
	return ""
}
