package stream

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/stream/frame"
)

// An agent that its node has not proven is the node without its roles; a proven one has its own DID.
func TestAgentsInStatements(t *testing.T) {
	t.Parallel()
	const id, agent did.DID = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp", "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
	node := did.NodePrincipal(id, "")
	node.Relation, node.Org, node.Roles = did.Partner, "did:web:globex.example", []string{"clerk", "boss"}
	proven := node.WithAgent(agent, func(role string) bool { return role == "clerk" }, time.Time{})
	l := &session{node: id, b: &Binding{o: Options{Principal: func(did.DID) *did.Principal { return node }, Agent: func(_ context.Context, at *did.Principal, a did.DID) *did.Principal {
		if at == node && a == agent {
			return proven
		}
		return nil
	}}}}
	for _, c := range []struct {
		as   frame.As
		want string
	}{
		{frame.As{IsConsumer: true, Agent: agent, Roles: frame.AllRoles, Relation: did.Own}, string(agent) + " partner clerk"},
		{frame.As{IsConsumer: true, Agent: agent, Roles: frame.AllRoles, Relation: did.Untrusted}, string(agent) + " untrusted clerk"},
		{frame.As{IsConsumer: true, Agent: id + "x", Roles: frame.AllRoles, Relation: did.Own}, string(id) + " partner "},
		{frame.As{}, string(id) + " partner clerk,boss"},
	} {
		p := l.caller(t.Context(), c.as)
		if got := strings.Join([]string{p.ID(), p.Relation.String(), strings.Join(p.Roles, ",")}, " "); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.as, got, c.want)
		}
		if again := l.caller(t.Context(), c.as); again != p {
			t.Errorf("%+v: another principal for the same statement", c.as)
		}
	}
}

// A statement of a node about its consumer only narrows what the credential of the node proves: roles beyond it and a higher relation do not
// count, and without roles there are none.
func TestStatementsOnlyNarrow(t *testing.T) {
	t.Parallel()
	node := did.NodePrincipal("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp", "")
	node.Relation, node.Org, node.Roles = did.Partner, "did:web:globex.example", []string{"clerk", "node"}
	for name, c := range map[string]struct {
		as   frame.As
		want string
	}{
		"a role beyond":      {frame.As{IsConsumer: true, Name: "crm", Roles: "admin clerk", Relation: did.Own}, "crm partner clerk"},
		"only roles beyond":  {frame.As{IsConsumer: true, Name: "crm", Roles: "admin root", Relation: did.Own}, "crm partner "},
		"no roles":           {frame.As{IsConsumer: true, Name: "crm", Relation: did.Own}, "crm partner "},
		"a higher relation":  {frame.As{IsConsumer: true, Name: "crm", Roles: "clerk", Relation: did.Local}, "crm partner clerk"},
		"a lower relation":   {frame.As{IsConsumer: true, Name: "crm", Roles: "clerk", Relation: did.Untrusted}, "crm untrusted clerk"},
		"a part of a role":   {frame.As{IsConsumer: true, Name: "crm", Roles: "cler", Relation: did.Own}, "crm partner "},
		"all, by a wildcard": {frame.As{IsConsumer: true, Name: "crm", Roles: "*", Relation: did.Own}, "crm partner clerk,node"},
	} {
		p := c.as.Of(node)
		if got := strings.Join([]string{p.Name, p.Relation.String(), strings.Join(p.Roles, ",")}, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if len(node.Roles) != 2 || node.Name != "" {
		t.Errorf("the principal of the node was changed: %+v", node)
	}
}
