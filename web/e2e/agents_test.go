package e2e

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/testnet"
)

// agents are the agents of the tests. They are attached to a node, and stay until close.
type agents struct {
	cancel context.CancelFunc
	ctx    context.Context
	done   sync.WaitGroup

	canceled atomic.Int64 // calls of "endless" that their callers canceled
	release  chan struct{}
	level    *agent.State[int]
	alarm    *agent.Event[string]
}

func startAgents() *agents {
	s := &agents{release: make(chan struct{}, 16)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *agents) close() {
	s.cancel()
	s.done.Wait()
}

// A question is the input of an action whose form has most kinds of fields.
type question struct {
	City  string   `json:"city"`
	Days  int      `json:"days,omitempty"`
	Unit  string   `json:"unit,omitempty"`
	Exact *bool    `json:"exact,omitempty"`
	Tags  []string `json:"tags,omitempty"`
}

// publish attaches the agents to a node, and waits until it has registered them.
func (s *agents) publish(ctx context.Context, m *testnet.Member) error {
	s.level = agent.NewState("level", 3, nil)
	s.alarm = agent.NewEvent[string]("alarm")
	weather := []agent.Part{
		agent.Action("forecast", func(_ context.Context, q question) (map[string]any, error) {
			return map[string]any{"city": q.City, "days": q.Days, "given": q}, nil
		}, agent.Doc("Returns the weather of a city."), agent.Safe()),
		agent.Stream("count", s.count, agent.Doc("Counts; each step waits for the test.")),
		agent.Stream("endless", s.endless),
		agent.Action("fail", func(context.Context, agent.None) (string, error) { return "", fmt.Errorf("no station") }),
		agent.Action("page", func(context.Context, agent.None) (agent.Data, error) {
			return agent.Data{ContentType: "text/html", Bytes: []byte("<h1 id=evil>page</h1><script>window.evil = 1</script>")}, nil
		}),
		agent.Action("picture", func(context.Context, agent.None) (agent.Data, error) {
			return agent.Data{ContentType: "image/svg+xml", Bytes: []byte(`<svg xmlns="http://www.w3.org/2000/svg" onload="window.evil=1"/>`)}, nil
		}),
		agent.Action("large", func(context.Context, agent.None) (string, error) { return strings.Repeat("large ", 1<<19), nil }),
		agent.Action("confirm", func(ctx context.Context, _ agent.None) (string, error) {
			in, err := agent.Ask[struct {
				Name string `json:"name"`
			}](ctx, "Who confirms?")
			return "confirmed by " + in.Name, err
		}, agent.RequiresInput(), agent.Async()),
		s.level, s.alarm,
	}
	return s.serve(ctx, m, agent.Agent{Name: "Weather station", Description: "Weather of cities, for tests.", Version: "1.2.3",
		Capabilities: []string{"urn:example:weather"}}, weather...)
}

// serve attaches an agent until close.
func (s *agents) serve(ctx context.Context, m *testnet.Member, a agent.Agent, parts ...agent.Part) error {
	ready, ended := make(chan struct{}, 1), make(chan error, 1)
	a.Node = m.Socket
	a.Ready = func(string) {
		select {
		case ready <- struct{}{}:
		default:
		}
	}
	s.done.Go(func() { ended <- agent.Serve(s.ctx, a, parts...) })
	select {
	case <-ready:
		return nil
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// count yields a number for each value of release.
func (s *agents) count(ctx context.Context, _ agent.None) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := 1; i <= 3; i++ {
			select {
			case <-s.release:
			case <-ctx.Done():
				return
			}
			if !yield(i, nil) {
				return
			}
		}
	}
}

// endless yields parts until its caller leaves.
func (s *agents) endless(ctx context.Context, _ agent.None) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer s.canceled.Add(1)
		for i := 0; ; i++ {
			if !yield(fmt.Sprintf("part %d ", i), nil) {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}
}
