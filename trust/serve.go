package trust

import (
	"context"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/exchange"
)

// refused is the answer to a request about an organization that the caller may not know of, and for one that does not exist.
var refused = interact.Errorf(interact.NotFound, "", "there is no such document")

// serve answers one request of a node.
func (t *Trust) serve(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	switch q.Op {
	case exchange.OpSeek:
		return t.serveSeek(id, q), nil
	case exchange.OpHello:
		return t.serveHello(ctx, id, q), nil
	case exchange.OpGet:
		return t.serveGet(id, q)
	case exchange.OpHave:
		return t.serveHave(id, q)
	case exchange.OpStatus:
		return t.serveStatus(id, q)
	case exchange.OpRenew:
		return t.serveRenew(ctx, id, q)
	case exchange.OpRedeem:
		return t.serveRedeem(ctx, id, q)
	case exchange.OpEnroll:
		return t.serveEnroll(id, q)
	case exchange.OpKept:
		return t.serveKept(id)
	case exchange.OpThings:
		return t.serveThings(ctx, id, q)
	case exchange.OpKey:
		return t.serveKey(id)
	case exchange.OpGroup:
		if g := t.groups.Load(); g != nil {
			return t.carried(ctx, id, q, g.Serve)
		}
	case exchange.OpDelegate:
		if serve := t.delegations.Load(); serve != nil {
			return t.carried(ctx, id, q, *serve)
		}
	case exchange.OpLinks:
		if serve := t.links.Load(); serve != nil {
			return t.carried(ctx, id, q, *serve)
		}
	case exchange.OpReplace:
		return t.serveReplace(ctx, id, q)
	case exchange.OpCredential:
		return t.serveCredential(id, q)
	case exchange.OpAgent:
		return t.serveAgent(ctx, id, q)
	case exchange.OpJoin:
		return t.serveJoin(id, q)
	case exchange.OpPresent:
		return t.servePresent(ctx, id, q)
	}
	if q.Op == exchange.OpGroup || q.Op == exchange.OpDelegate || q.Op == exchange.OpLinks {
		return nil, refused
	}
	return nil, interact.Errorf(interact.Invalid, "update lmosd there", "unknown operation %d", q.Op)
}

// serveGet returns a document. The log of the own organization is public.
func (t *Trust) serveGet(id did.DID, q *exchange.Request) (*exchange.Response, error) {
	if len(q.Known) != 1 {
		return nil, refused
	}
	k := q.Known[0]
	t.mu.Lock()
	p, a := t.nodeLocked(id).principal, t.authorities[k.SCID]
	r := &exchange.Response{}
	switch {
	case a == nil || !(a.partner == nil && k.Kind == exchange.KindLog) && !t.mayGetLocked(p, a):
	case k.Kind == exchange.KindLog:
		r.Body = a.Log().Bytes()
	case k.Kind == exchange.KindList && a.List(k.Method) != nil:
		r.Body = a.List(k.Method).Raw
	case k.Kind == exchange.KindCheckpoint:
		r.Body = t.checkpointForLocked(p)
	}
	partners := a != nil && a.partner == nil && k.Kind == exchange.KindPartners && p.Relation == did.Own
	t.mu.Unlock()
	if partners {
		r.Body, _ = t.folder(k.SCID).Read(partnersFile) // none: refused
	}
	if len(r.Body) == 0 {
		return nil, refused
	}
	return r, nil
}

// serveHave gets what a member of the organization, a partner, or a member of a group has.
func (t *Trust) serveHave(id did.DID, q *exchange.Request) (*exchange.Response, error) {
	t.mu.Lock()
	n := t.nodeLocked(id)
	ok := n.principal.Relation >= did.Partner || n.principal.Pending != "" || n.principal.Grouped()
	t.mu.Unlock()
	if !ok {
		return nil, refused
	}
	t.learn(id, q.Known)
	return &exchange.Response{}, nil
}

// serveRenew issues a new credential to a member.
func (t *Trust) serveRenew(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	c := t.verify(ctx, id, q.Credential)
	t.mu.RLock()
	org := t.org
	t.mu.RUnlock()
	switch {
	case org == nil || c == nil || webvh.SCID(c.Issuer) != org.SCID() || !org.IsIssuer():
		return nil, refused
	case !t.settled():
		return nil, interact.Errorf(interact.StatusUnknown, "try again", "this issuer does not know yet what the others revoked")
	}
	fresh, err := org.Renew(q.Credential, 0)
	if err != nil {
		return nil, userError(err)
	}
	return &exchange.Response{Credential: fresh.Raw}, nil
}
