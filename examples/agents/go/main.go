// Command go shows the Go SDK: four agents, three callers, and a client that streams its input.
//
//	go run ./examples/agents/go forecast
//	go run ./examples/agents/go ask
//	go run ./examples/agents/go watch
//	go run ./examples/agents/go printer
//	go run ./examples/agents/go baker
//	go run ./examples/agents/go order
//	go run ./examples/agents/go scribe
//	go run ./examples/agents/go send
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

type place struct {
	City string `json:"city" desc:"where"`
}

// forecast is an agent with a property, an event, and actions.
func forecast(ctx context.Context) error {
	units, storm := agent.NewState("units", "celsius", nil), agent.NewEvent[string]("storm")
	today := func(_ context.Context, in place) (string, error) { return "sunny in " + in.City, nil }
	return agent.Serve(ctx, agent.Agent{Name: "forecast", Capabilities: []string{"urn:example:forecast"}},
		units, storm,
		agent.Action("today", today, agent.Safe(), agent.Doc("Reports the weather.")),
		agent.Stream("week", week, agent.Doc("Tells one day after the other.")),
		agent.Action("warn", func(_ context.Context, in warning) (agent.None, error) { storm.Emit(in.Of); return agent.None{}, nil }),
	)
}

type span struct {
	Days int `json:"days,omitempty"`
}

func week(_ context.Context, in span) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for day := range cmp.Or(in.Days, 7) {
			if !yield(fmt.Sprintf("day %d: sunny\n", day+1), nil) {
				return
			}
		}
	}
}

type warning struct {
	Of string `json:"of"`
}

// ask calls the agent, reads a property, and makes an invalid call.
func ask(ctx context.Context) error {
	text, err := agent.Call[string](ctx, "forecast", "today", place{"Bonn"})
	if err != nil {
		return err
	}
	fmt.Println(text)
	if text, err = agent.Call[string](ctx, "forecast", "week", span{2}); err != nil {
		return err
	}
	fmt.Print(text)
	mesh, err := agent.Mesh()
	if err != nil {
		return err
	}
	defer mesh.Close()
	units, _, err := mesh.Read(ctx, "forecast", "units")
	if err != nil {
		return err
	}
	fmt.Println(string(units))
	_, err = agent.Call[string](ctx, "forecast", "today", map[string]string{"town": "Bonn"})
	if e := interact.AsError(err); e != nil {
		fmt.Println(e.Code, e)
	}
	return nil
}

// watch waits for one event.
func watch(ctx context.Context) error {
	mesh, err := agent.Mesh()
	if err != nil {
		return err
	}
	defer mesh.Close()
	for e, err := range mesh.Watch(ctx, "forecast", "events", "storm", "") {
		if err != nil {
			return err
		}
		var text string
		if err := json.Unmarshal(e.Data, &text); err != nil {
			return err
		}
		fmt.Println(e.Name, text)
		break
	}
	return nil
}

// printer is an agent with a property that is read, a long action, and one that fails.
func printer(ctx context.Context) error {
	type job struct {
		Text  string `json:"text"`
		Times int    `json:"times"`
	}
	type stack struct {
		Pages int `json:"pages"`
	}
	return agent.Serve(ctx, agent.Agent{Name: "printer", Description: "Prints slowly.", Version: "1.0.0"},
		agent.Property("ink", func(context.Context) (int, error) { return 40, nil }, nil),
		agent.Action("copy", func(ctx context.Context, in job) (int, error) {
			for done := range in.Times {
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done(): // it is cancelled
					return done, ctx.Err()
				}
			}
			return in.Times, nil
		}, agent.Async()), // it takes long, and continues without its caller
		agent.Action("staple", func(_ context.Context, in stack) (agent.None, error) {
			if in.Pages > 40 {
				return agent.None{}, interact.Errorf(interact.AgentFailed, "staple 40 pages at most", "%d pages are too thick", in.Pages)
			}
			return agent.None{}, nil
		}))
}

// baker is an agent that requires input from its caller.
func baker(ctx context.Context) error {
	type wish struct {
		Topping string `json:"topping"`
		Large   bool   `json:"large,omitempty"`
	}
	return agent.Serve(ctx, agent.Agent{Name: "baker"},
		agent.Action("bake", func(ctx context.Context, _ agent.None) (string, error) {
			w, err := agent.Ask[wish](ctx, "What shall be on it?")
			switch {
			case errors.Is(err, agent.ErrDeclined):
				return "plain bread", nil
			case w.Large:
				return "large bread with " + w.Topping, err
			}
			return "bread with " + w.Topping, err
		}, agent.RequiresInput()))
}

// scribe is an agent that reads its input while it comes.
func scribe(ctx context.Context) error {
	return agent.Serve(ctx, agent.Agent{Name: "scribe"},
		agent.Action("hear", func(_ context.Context, speech agent.Chunks) (string, error) {
			size := 0
			for chunk, err := range speech.All() { // bytes, while they come
				if err != nil {
					return "", err
				}
				size += len(chunk)
			}
			return fmt.Sprintf("%d bytes of %s", size, speech.ContentType), nil
		}))
}

// send sends the data of a reader to the agent.
func send(ctx context.Context) error {
	speech := agent.Upload{ContentType: "audio/wav", Reader: strings.NewReader("one, two")}
	text, err := agent.Call[string](ctx, "scribe", "hear", speech)
	if err != nil {
		return err
	}
	fmt.Println(text)
	return nil
}

// order starts the action of the baker as a task, and answers what it asks.
func order(ctx context.Context) error {
	mesh, err := agent.Mesh()
	if err != nil {
		return err
	}
	defer mesh.Close()
	run, err := mesh.Invoke(ctx, "baker", "bake", api.CallOptions{Async: true, Interactive: true})
	if err != nil {
		return err
	}
	task, err := mesh.WaitTask(ctx, run.Task)
	if err == nil && len(task.Inputs) > 0 { // it requires input
		fmt.Println(task.Inputs["answer"].Message)
		answer := interact.Answer{Action: interact.Accept, Content: []byte(`{"topping":"salt"}`)}
		if err := mesh.AnswerTask(ctx, task, interact.Answers{"answer": answer}); err != nil {
			return err
		}
		task, err = mesh.WaitTask(ctx, task)
	}
	if err != nil {
		return err
	}
	fmt.Println(task.Status, string(task.Output))
	return nil
}

func main() {
	do := map[string]func(context.Context) error{"forecast": forecast, "ask": ask, "watch": watch, "printer": printer,
		"baker": baker, "order": order, "scribe": scribe, "send": send}
	if len(os.Args) != 2 || do[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: go run ./examples/agents/go forecast | ask | watch | printer | baker | order | scribe | send")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := do[os.Args[1]](ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
