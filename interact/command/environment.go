package command

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// environment returns the environment of the process (package comment).
func (a *Agent) environment(ctx context.Context, m *interact.Message) ([]string, error) {
	agent, deadline := cmp.Or(a.o.Agent, m.Thing), ""
	if end, ok := ctx.Deadline(); ok {
		deadline = end.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	from := m.From
	if from == nil {
		from = &did.Principal{}
	}
	own := []string{"LMOSD_AGENT=" + agent, "LMOSD_ACTION=" + m.Name, "LMOSD_CALLER=" + m.From.ID(), "LMOSD_CALLER_VIA=" + string(from.Via),
		"LMOSD_CALLER_ORG=" + string(from.Org), "LMOSD_CALLER_ROLES=" + strings.Join(from.Roles, " "), "LMOSD_CALLER_GROUPS=" + from.GroupsText(),
		"LMOSD_CALLER_LENT_BY=" + from.Lent.Lender(), "LMOSD_DEADLINE=" + deadline}
	if m.TraceParent != "" {
		own = append(own, "TRACEPARENT="+m.TraceParent)
		if m.TraceState != "" {
			own = append(own, "TRACESTATE="+m.TraceState)
		}
	}
	for _, v := range own {
		const most = 16 << 10 // of the 128 KiB that Linux allows
		if name, _, _ := strings.Cut(v, "="); len(v) > most || strings.IndexByte(v, 0) >= 0 {
			return nil, interact.Errorf(interact.Invalid, "send text of at most 16 KiB without NUL bytes",
				"%s cannot be passed to the command", name)
		}
	}
	// The last variable of a name applies: first ours, then those of the options.
	return append(append(inherited(os.Environ(), a.o.Inherit), a.o.Env...), own...), nil
}

// ofNode are variables of this process alone: the trace context of its start, and how the service of the node ends after a panic.
var ofNode = []string{"TRACEPARENT", "TRACESTATE", "GOTRACEBACK"}

// inherited returns the inherited variables: those that only lists, without the settings of the node, which may be secrets, and without ofNode.
func inherited(all, only []string) []string {
	var env []string
	for _, v := range all {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "LMOSD_") && !slices.Contains(ofNode, name) && listed(name, only) {
			env = append(env, v)
		}
	}
	return env
}

func listed(name string, only []string) bool {
	return only == nil || slices.ContainsFunc(only, func(one string) bool {
		begin, many := strings.CutSuffix(one, "*")
		return one == name || many && strings.HasPrefix(name, begin)
	})
}
