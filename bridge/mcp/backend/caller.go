package backend

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
)

// withCallerMeta adds the principal of the caller to a request for a server of this host. It replaces any value of the client.
func withCallerMeta(ctx context.Context, m *protocol.Message) *protocol.Message {
	if !m.IsRequest() {
		return m
	}
	if did.PrincipalOf(ctx) == nil || m.Method() == protocol.Listen { // serves many callers
		return without(m, protocol.MetaCaller)
	}
	return namingCaller(ctx, m)
}

// namingCaller adds the principal of the caller to a request for a [Serve] of this process, which applies the policy to it. A request without a
// principal has the value null, so that it does not count as a request of this process.
func namingCaller(ctx context.Context, m *protocol.Message) *protocol.Message {
	return m.WithParam(protocol.Encode(did.PrincipalOf(ctx)), "_meta", protocol.MetaCaller)
}

// without removes a member of _meta from a message.
func without(m *protocol.Message, member string) *protocol.Message {
	if raw, _ := m.Param("_meta", member); raw != nil {
		return m.WithParam(nil, "_meta", member)
	}
	return m
}

// An identifyingConn is a connection to a server of this host with one caller.
type identifyingConn struct{ protocol.Conn }

func (t identifyingConn) Write(ctx context.Context, m *protocol.Message) error {
	return t.Conn.Write(ctx, withCallerMeta(ctx, m))
}

// A relayedSession is a session through a relay. Its tunnel has one caller, so its client may not name another.
type relayedSession struct{ protocol.Conn }

func (s relayedSession) Write(ctx context.Context, m *protocol.Message) error {
	return s.Conn.Write(ctx, without(without(m, protocol.MetaCaller), protocol.MetaUser))
}

// openerOf returns the principal that opens the shared tunnel for the caller of ctx. Callers that have different rights at the host do not share
// a tunnel, because its host knows them by unverified names only. A host in this process receives the principal of each request.
func (b *Backend) openerOf(ctx context.Context) *did.Principal {
	switch p := did.PrincipalOf(ctx); {
	case !b.o.Relay:
		return nil
	case b.o.Near:
		return did.Consumer(did.Process, "")
	case p == nil:
		return did.Consumer(did.Unproven, "")
	case p.Class() != "":
		return did.Consumer(did.Via(p.Class()), "")
	}
	return did.Consumer(did.Process, "")
}

// PrincipalOf returns the principal of a request in a tunnel that from opened: from, or the consumer for which a relay sends it. A relay of this
// process names the principal itself; the name from a relay of another node is a statement of that node, which gives no rights. It is nil for a
// request of a relay of this process without a caller.
func PrincipalOf(from *did.Principal, m *protocol.Message) *did.Principal {
	switch user := m.Text("_meta", protocol.MetaUser); {
	case from == nil:
	case from.Via == did.Process:
		raw, _ := m.Param("_meta", protocol.MetaCaller)
		if raw == nil {
			return from
		}
		of := &did.Principal{}
		if json.Unmarshal(raw, of) != nil || !slices.Contains(consumers, of.Proof()) {
			return nil
		}
		p := did.Consumer(of.Proof(), of.Name)
		if of.Via == did.Session {
			p = p.InSession(time.Time{})
		}
		if len(of.Roles) == 0 && len(of.Scopes) == 0 {
			return p
		}
		token := *p
		token.Roles, token.Scopes = of.Roles, of.Scopes
		return &token
	case from.Node != "" && did.ValidPrincipalName(user):
		return from.Narrowed(user, from.Relation, nil)
	}
	return from
}

// consumers are the principals of local callers that a relay of this process may name.
var consumers = []did.Via{did.Process, did.Socket, did.Loopback, did.Token, did.OIDC, did.Unproven}
