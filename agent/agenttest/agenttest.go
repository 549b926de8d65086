// Package agenttest provides callers for tests of Go agents.
package agenttest

import (
	"context"

	"github.com/lmosd/lmosd/did"
)

// Caller returns a context in which [agent.CallerOf] returns p, for the call of a function of an agent in a test. Nil is a call without a caller.
//
// [agent.CallerOf]: https://pkg.go.dev/github.com/lmosd/lmosd/agent#CallerOf
func Caller(ctx context.Context, p *did.Principal) context.Context { return did.WithPrincipal(ctx, p) }

// node is the DID of a node that no test runs.
const node = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// Member returns a caller at another node, which is a member of an organization with these roles.
func Member(organization did.DID, roles ...string) *did.Principal {
	p := did.NodePrincipal(node, "")
	p.Org, p.Roles, p.Relation = organization, roles, did.Partner
	return p
}
