package trust

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/organization"
)

// Limits of the serving end.
const (
	service        = "lmos.trust"
	maxStreams     = 256
	maxPeerStreams = 8
	maxRequests    = 2 // of one stream
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func listID(method string) string { return organization.ListID(method) }

// listName is the file of the list of an issuing key.
func listName(method string) string {
	_, fragment, _ := strings.Cut(method, "#")
	return "status-" + strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' {
			return c
		}
		return '_'
	}, fragment) + ".json"
}

// handle serves a stream of a peer.
func (t *Trust) handle(s network.Stream) {
	t.server.Serve(s, func(s network.Stream) error {
		id, err := did.FromPeer([]byte(s.Conn().RemotePeer()))
		if err != nil {
			return err
		}
		for range maxRequests {
			q := &request{}
			if err := readFrame(s, maxRequest, q); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			r, err := t.serve(t.ctx, id, q)
			if err != nil {
				e := interact.AsError(err)
				r = &response{Code: uint16(e.Code), Title: e.Title, Hint: e.Hint}
			}
			if err := writeFrame(s, r); err != nil {
				return err
			}
			if q.Op != opSeek {
				return nil
			}
		}
		return nil
	})
}

func (t *Trust) served(p peer.ID, err error) {
	if err != nil {
		t.o.Log.Debug("trust exchange failed", "peer", p, "err", err)
	}
}

// refused is the answer to a request about an organization that the caller may not know of, and for one that does not exist.
var refused = interact.Errorf(interact.NotFound, "", "there is no such document")

// serve answers one request of a node.
func (t *Trust) serve(ctx context.Context, id did.DID, q *request) (*response, error) {
	switch q.Op {
	case opSeek:
		return t.serveSeek(id, q), nil
	case opHello:
		return t.serveHello(ctx, id, q), nil
	case opGet:
		return t.serveGet(id, q)
	case opHave:
		return t.serveHave(id, q)
	case opStatus:
		return t.serveStatus(id, q)
	case opRenew:
		return t.serveRenew(ctx, id, q)
	case opRedeem:
		return t.serveRedeem(ctx, id, q)
	case opEnroll:
		return t.serveEnroll(id, q)
	case opThings:
		return t.serveThings(ctx, id, q)
	case opKey:
		return t.serveKey(id)
	case opJoin:
		return t.serveJoin(id, q)
	}
	return nil, interact.Errorf(interact.Invalid, "update lmosd there", "unknown operation %d", q.Op)
}

// serveSeek answers with the organizations that both nodes look for.
func (t *Trust) serveSeek(id did.DID, q *request) *response {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &response{}
	for _, scid := range t.soughtLocked() {
		if containsSeek(q.Seeks, seek(scid, id, t.self)) {
			r.Seeks = append(r.Seeks, seek(scid, t.self, id))
		}
	}
	if len(r.Seeks) == 0 { // nothing follows
		t.endHelloLocked(t.nodeLocked(id))
	}
	return r
}

// serveHello takes the credential of a node, and shows the own one to members and partners.
func (t *Trust) serveHello(ctx context.Context, id did.DID, q *request) *response {
	shown := t.show(ctx, id, q.Credential)
	r := &response{}
	t.mu.Lock()
	n := t.nodeLocked(id)
	t.endHelloLocked(n)
	if shown {
		if c := t.credentialLocked(); c != nil {
			r.Credential = c.Raw
		}
		r.Known = t.sharedLocked(n.principal)
	}
	t.mu.Unlock()
	if shown {
		t.learn(id, q.Known)
	}
	return r
}

// serveGet returns a document. The log of the own organization is public.
func (t *Trust) serveGet(id did.DID, q *request) (*response, error) {
	if len(q.Known) != 1 {
		return nil, refused
	}
	k := q.Known[0]
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.authorities[k.SCID]
	if a == nil || !(a.partner == nil && k.Kind == kindLog) && !t.mayGetLocked(t.nodeLocked(id).principal, a) {
		return nil, refused
	}
	switch k.Kind {
	case kindLog:
		return &response{Body: a.log.Bytes()}, nil
	case kindList:
		if l := a.lists[k.Method]; l != nil {
			return &response{Body: l.Raw}, nil
		}
	case kindPartners:
		if a.partner == nil && t.nodeLocked(id).principal.Relation == did.Own {
			return t.serveSharedLocked()
		}
	}
	return nil, refused
}

// serveHave gets what a member or partner has.
func (t *Trust) serveHave(id did.DID, q *request) (*response, error) {
	t.mu.Lock()
	n := t.nodeLocked(id)
	ok := n.principal.Relation >= did.Partner || n.principal.Pending != ""
	t.mu.Unlock()
	if !ok {
		return nil, refused
	}
	t.learn(id, q.Known)
	return &response{}, nil
}

// serveRenew issues a new credential to a member.
func (t *Trust) serveRenew(ctx context.Context, id did.DID, q *request) (*response, error) {
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
	return &response{Credential: fresh.Raw}, nil
}
