// Package condition checks states of a node for which lmosd wait waits.
package condition

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// Kinds of conditions.
const (
	ready     = "ready"     // the node serves and has loaded its agents
	peers     = "peers"     // at least so many nodes are connected
	agents    = "agents"    // at least so many agents are known
	agent     = "agent"     // the agent is known and can be called
	relay     = "relay"     // the node has a relay
	reachable = "reachable" // others can reach the node, directly or through a relay
)

// Kinds returns the forms of conditions, for help and completion.
func Kinds() []string {
	return []string{ready, peers + "=N", agents + "=N", agent + "=NAME", relay, reachable}
}

// A Condition is a state of a node.
type Condition struct {
	Text string // as it was given
	kind string
	n    int    // of peers and agents
	ref  string // of agent
}

// Parse parses a condition, such as "peers=3". The error is of code Usage.
func Parse(text string) (Condition, error) {
	kind, value, hasValue := strings.Cut(text, "=")
	c := Condition{Text: text, kind: kind, n: 1, ref: strings.TrimSpace(value)}
	switch kind {
	case ready, relay, reachable:
		if hasValue {
			return c, cli.Usage("--for "+kind, "the condition %s takes no value", kind)
		}
		return c, nil
	case peers, agents:
		n, err := strconv.Atoi(value)
		if hasValue && (err != nil || n < 1) {
			return c, cli.Usage("for example --for "+kind+"=3", "the condition %s takes a number from 1 on, got %q", kind, value)
		}
		c.n = max(n, 1)
		return c, nil
	case agent:
		if c.ref == "" {
			return c, cli.Usage("for example --for agent=weather", "the condition agent takes the name of an agent")
		}
		return c, nil
	}
	return c, cli.Usage(cli.HintFor(kind, []string{ready, peers, agents, agent, relay, reachable}, "one of "+strings.Join(Kinds(), ", ")), "unknown condition %q", text)
}

// A Node is asked for its state (api.Client).
type Node interface {
	Status(ctx context.Context) (*api.Status, error)
	Agent(ctx context.Context, ref string) (*api.AgentDetail, error)
}

// A Result is the state of one condition.
type Result struct {
	Condition string `json:"condition"`
	Met       bool   `json:"met"`
	State     string `json:"state"` // such as "2 of 3 peers"
}

// Check returns the states of all conditions. The error is that of a request.
func Check(ctx context.Context, node Node, all []Condition) ([]Result, error) {
	st, err := node.Status(ctx)
	if err != nil {
		return nil, err
	}
	results := make([]Result, 0, len(all))
	for _, c := range all {
		r := Result{Condition: c.Text}
		if c.kind == agent {
			r.Met, r.State, err = c.agent(ctx, node)
		} else {
			r.Met, r.State = c.of(st)
		}
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// of returns the state of a condition that the status shows.
func (c *Condition) of(st *api.Status) (met bool, state string) {
	switch c.kind {
	case peers:
		return counted(st.Peers.Total, c.n, "peer", "peers")
	case agents:
		return counted(st.Agents.Known, c.n, "agent", "agents")
	case relay:
		return st.Relays > 0, terminal.Count(st.Relays, "relay", "relays")
	case reachable:
		met = st.Reachability == api.ReachablePublic || st.Reachability == api.ReachableLocal || st.Relays > 0
		if st.Relays > 0 && st.Reachability != api.ReachablePublic {
			return met, "reachable through a relay"
		}
		return met, "reachability " + terminal.OneLine(st.Reachability)
	}
	return st.State == "ready" || st.State == "degraded", "the node is " + terminal.OneLine(st.State)
}

func counted(n, want int, one, many string) (met bool, state string) {
	if n >= want {
		return true, terminal.Count(n, one, many)
	}
	return false, fmt.Sprintf("%d of %s", n, terminal.Count(want, one, many))
}

// agent reports whether the node knows the agent, and whether it can be called as far as the node knows.
func (c *Condition) agent(ctx context.Context, node Node) (met bool, state string, err error) {
	d, err := node.Agent(ctx, c.ref)
	code := interact.Code(0)
	if err != nil {
		code = interact.AsError(err).Code
	}
	switch {
	case err == nil && d.Agent.State == api.StateUnreachable, err == nil && d.Agent.State == api.StateRefused:
		return false, "the agent " + terminal.OneLine(c.ref) + " is " + string(d.Agent.State), nil
	case err == nil:
		return true, "the agent " + terminal.OneLine(c.ref) + " is known", nil
	case code == interact.NotFound || code == interact.Unreachable || code == interact.Timeout:
		return false, "no agent " + terminal.OneLine(c.ref), nil
	case code == interact.Ambiguous:
		return true, "several agents are named " + terminal.OneLine(c.ref), nil
	}
	return false, "", err
}

// Missing describes the conditions that are not met.
func Missing(results []Result) string {
	var all []string
	for _, r := range results {
		if !r.Met {
			all = append(all, r.State)
		}
	}
	return strings.Join(all, ", ")
}
