package backend

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
)

// withCallerMeta adds the principal of the caller to a request for a server of this host. It replaces any value of the client.
func withCallerMeta(ctx context.Context, m *protocol.Message) *protocol.Message {
	if !m.IsRequest() {
		return m
	}
	p := did.PrincipalOf(ctx)
	if p == nil || m.Method() == protocol.Listen { // serves many callers
		return withoutCallerMeta(m)
	}
	return m.WithParam(protocol.Encode(p), "_meta", protocol.MetaCaller)
}

// withoutCallerMeta removes the principal from a message.
func withoutCallerMeta(m *protocol.Message) *protocol.Message {
	if raw, _ := m.Param("_meta", protocol.MetaCaller); raw != nil {
		return m.WithParam(nil, "_meta", protocol.MetaCaller)
	}
	return m
}

// An identifyingConn is a connection to a server of this host with one caller.
type identifyingConn struct{ protocol.Conn }

func (t identifyingConn) Write(ctx context.Context, m *protocol.Message) error {
	return t.Conn.Write(ctx, withCallerMeta(ctx, m))
}

// callerContext returns the context of a request from a tunnel with its principal: the caller of the tunnel, or a user of a relay. A
// relay of this node names the principal itself; the user that a relay of another node names is not verified.
func callerContext(ctx context.Context, m *protocol.Message) context.Context {
	p := did.PrincipalOf(ctx)
	switch user := m.Text("_meta", protocol.MetaUser); {
	case p == nil:
	case p.Via == did.Process:
		raw, _ := m.Param("_meta", protocol.MetaCaller)
		of := &did.Principal{}
		if raw != nil && json.Unmarshal(raw, of) == nil && slices.Contains(consumers, of.Via) {
			return did.WithPrincipal(ctx, did.Consumer(of.Via, of.Name))
		}
	case p.Node != "" && did.ValidPrincipalName(user):
		return did.WithPrincipal(ctx, did.NodePrincipal(p.Node, user))
	}
	return ctx
}

// consumers are the principals of local callers that a relay of this process may name.
var consumers = []did.Via{did.Process, did.Socket, did.Loopback, did.Token, did.Unproven}
