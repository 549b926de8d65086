package condition

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// A fake node has a status, and one agent with a state.
type fake struct {
	status api.Status
	state  api.State
	err    error
}

func (f *fake) Status(context.Context) (*api.Status, error) { return &f.status, f.err }

func (f *fake) Agent(_ context.Context, ref string) (*api.AgentDetail, error) {
	if ref != "weather" {
		return nil, interact.Errorf(interact.NotFound, "", "no agent")
	}
	return &api.AgentDetail{Agent: api.Agent{State: f.state}}, nil
}

func TestConditions(t *testing.T) {
	t.Parallel()
	node := &fake{state: "reachable"}
	node.status.State, node.status.Relays, node.status.Reachability = "ready", 1, api.ReachablePrivate
	node.status.Peers.Total, node.status.Agents.Known = 2, 1
	away := *node
	away.state, away.status.State, away.status.Relays = api.StateUnreachable, "starting", 0
	for _, test := range []struct {
		node  *fake
		text  string
		met   bool
		state string
	}{
		{node, "ready", true, "the node is ready"},
		{&away, "ready", false, "the node is starting"},
		{node, "peers", true, "2 peers"},
		{node, "peers=2", true, "2 peers"},
		{node, "peers=3", false, "2 of 3 peers"},
		{node, "agents=1", true, "1 agent"},
		{node, "agents=5", false, "1 of 5 agents"},
		{node, "agent=weather", true, "the agent weather is known"},
		{&away, "agent=weather", false, "the agent weather is unreachable"},
		{node, "agent=camera", false, "no agent camera"},
		{node, "relay", true, "1 relay"},
		{&away, "relay", false, "0 relays"},
		{node, "reachable", true, "reachable through a relay"},
		{&away, "reachable", false, "reachability private"},
	} {
		c, err := Parse(test.text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Check(t.Context(), test.node, []Condition{c})
		if err != nil || len(got) != 1 || got[0] != (Result{test.text, test.met, test.state}) {
			t.Errorf("%s: got %+v, %v", test.text, got, err)
		}
	}
	node.err = errors.New("broken")
	if _, err := Check(t.Context(), node, nil); err == nil {
		t.Error("the error of the node is lost")
	}
	if got := Missing([]Result{{"a", true, "x"}, {"b", false, "y"}, {"c", false, "z"}}); got != "y, z" {
		t.Errorf("got %q", got)
	}
}

func TestInvalidConditions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"ready=1": "takes no value", "peers=0": "a number from 1", "peers=x": "a number from 1", "peers=": "a number from 1", "agent": "the name of an agent", "agent= ": "the name of an agent",
		"redy": `unknown condition "redy"`, "": "unknown condition"} {
		_, err := Parse(text)
		if e := interact.AsError(err); err == nil || e.Code != interact.Usage || !strings.Contains(e.Error(), want) || e.Hint == "" {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
