package backend

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
)

// told is m for a server of this host: who asks, as the context says, stands in its _meta. What the client said there goes no further.
func told(ctx context.Context, m *protocol.Message) *protocol.Message {
	if !m.IsRequest() {
		return m
	}
	p := did.PrincipalOf(ctx)
	if p == nil || m.Method() == protocol.Listen { // that is for many
		return untold(m)
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // four texts
	}
	return m.WithParam(text, "_meta", protocol.MetaCaller)
}

// untold is m without what it says of its caller.
func untold(m *protocol.Message) *protocol.Message {
	if raw, _ := m.Param("_meta", protocol.MetaCaller); raw != nil {
		return m.WithParam(nil, "_meta", protocol.MetaCaller)
	}
	return m
}

// telling is a connection to a server of this host, all of whose requests are of one caller.
type telling struct{ protocol.Conn }

func (t telling) Write(ctx context.Context, m *protocol.Message) error {
	return t.Conn.Write(ctx, told(ctx, m))
}

// asked is the context of a request that came over a tunnel, with its caller: whoever asks for the tunnel, or the user for whom a relay
// does. A relay of this node's own says itself who its caller is; the word of one elsewhere for its user is a name.
func asked(ctx context.Context, m *protocol.Message) context.Context {
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

// consumers are the ways of callers that a relay of this process has.
var consumers = []did.Via{did.Process, did.Socket, did.Loopback, did.Token, did.Unproven}
