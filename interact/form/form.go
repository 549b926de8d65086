// Package form selects and fills the forms of a Thing Description and turns replies into messages, for every protocol binding.
//
// A binding is a [Transport]: it reports which forms it can use, and sends a [Request] over one of them. The [Consumer] does the rest:
// variables, choice and ranking of forms, conversion, credentials, deadline, hops, and operations on several affordances. [Task] polls
// actions that run in the background.
//
// # Variables of an address
//
// The href of a form may be a URI template (RFC 6570). The values of its uriVariables are the members with the same names in the
// input: in the input object of an action, in the written value, in the data of a read. They are removed from the body, unless the
// schema of the input has a member with that name too. An input that is not an object, for example a string, is the member "value" of
// one: {"room": "kitchen", "value": 21}. A variable in the path is required; one in the query is optional.
//
// Sources: WoT Thing Description 1.1; RFC 6570 (URI templates).
package form

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// DefaultTimeout limits an interaction whose message has no deadline. It does not apply to observations and subscriptions.
const DefaultTimeout = 30 * time.Second

// Within returns ctx with the deadline of m.
func Within(ctx context.Context, m *interact.Message) (context.Context, context.CancelFunc) {
	switch by, ok := ctx.Deadline(); {
	case ok && !by.After(m.Deadline): // no second timer
		return context.WithCancel(ctx)
	case !m.Deadline.IsZero():
		return context.WithDeadline(ctx, m.Deadline)
	case m.Type.Long():
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// label returns the name of a Thing in errors.
func label(t *td.Thing) string { return cmp.Or(t.Title, t.ID) }

// what returns the name of the affordance and the Thing in errors.
func what(t *td.Thing, m *interact.Message) string {
	return cmp.Or(m.Name, m.Type.Op()) + " of " + label(t)
}

func noForm(protocol, what, op string, forms []td.Form) error {
	var offered []string
	for _, f := range forms {
		offered = append(offered, strings.TrimSpace(interact.Clip(f.Scheme(), 20)+" "+f.Subprotocol)+" "+strings.Join(f.Ops, "+"))
	}
	hint := "it has no forms"
	switch t := interact.TypeOf(op); {
	case t == interact.QueryAction, t == interact.CancelAction, t == interact.QueryAllActions, t == interact.ContinueAction:
		hint = "send it to the node of the agent, which stores the states of actions"
	case len(offered) > 0:
		hint = "its forms have: " + strings.Join(slices.Compact(offered), ", ")
	}
	return interact.Errorf(interact.NotAllowed, hint, "%s has no form for %s over %s", what, op, protocol)
}
