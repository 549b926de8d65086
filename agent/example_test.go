package agent_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/interact"
)

type question struct {
	City string `json:"city" desc:"where"`
}

func forecast(_ context.Context, in question) (string, error) {
	if in.City == "Atlantis" {
		return "", errors.New("no station there")
	}
	return "sunny in " + in.City, nil
}

// Serve runs an agent at the node of this host. New builds the same agent without a node, for example for its tests.
func ExampleNew() {
	_, thing, err := agent.New(agent.Agent{Name: "weather"}, agent.Action("forecast", forecast, agent.Safe()))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, city := range []string{"Bonn", "Atlantis"} {
		reply, err := interact.Call(context.Background(), thing, &interact.Message{Type: interact.InvokeAction, Name: "forecast",
			ContentType: interact.JSON, Data: fmt.Appendf(nil, `{"city":%q}`, city)})
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println(reply.Status, string(reply.Data))
	}
	// Output:
	// completed "sunny in Bonn"
	// error: forecast: no station there
}

// Call finds an agent in the mesh and decodes its output. Its error has a code and a hint (interact.Error).
func ExampleCall() {
	text, err := agent.Call[string](context.Background(), "weather", "forecast", question{City: "Bonn"})
	if e := interact.AsError(err); err != nil {
		fmt.Println(e.Code, e.Hint)
		return
	}
	fmt.Println(text)
}
