package sdk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// A lamp is a running agent, in any language.
type lamp struct {
	id    string
	leave func() error // unregisters and ends it
	kill  func()       // ends it without unregistering
}

// languages start the lamp of testdata. It finds its node through env.
var languages = map[string]func(t *testing.T, h *host, api, name string) *lamp{
	"go": startGo,
	"python": func(t *testing.T, h *host, api, name string) *lamp {
		return startProcess(t, h.env(api), testprogram.Path(t, "python3"), "testdata/agent.py", name)
	},
	"js": func(t *testing.T, h *host, api, name string) *lamp {
		return startProcess(t, h.env(api), testprogram.Path(t, "node"), "testdata/agent.mjs", name)
	},
}

// startProcess starts a program that prints "ready ID" and ends when its input does, and waits until it is ready.
func startProcess(t *testing.T, env []string, args ...string) *lamp {
	t.Helper()
	l, ready := launch(t, env, args...)
	var err error
	if l.id, err = ready(); err != nil {
		t.Fatal(err)
	}
	return l
}

// launch starts a program; ready waits until it is ready.
func launch(t *testing.T, env []string, args ...string) (l *lamp, ready func() (id string, err error)) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceValue(func() error {
		in.Close()
		io.Copy(io.Discard, out)
		return cmd.Wait()
	})
	killed := false
	t.Cleanup(func() {
		if err := end(); err != nil && !killed {
			t.Errorf("%s: %v", args[1], err)
		}
		if t.Failed() {
			t.Logf("%s: %s", args[1], stderr.String())
		}
	})
	ready = func() (string, error) {
		line, err := bufio.NewReader(out).ReadString('\n')
		id, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
		if !ok {
			return "", fmt.Errorf("%s said %q, %w", args[1], line, err)
		}
		return id, nil
	}
	return &lamp{leave: end, kill: func() {
		killed = true
		cmd.Process.Kill()
		_ = end() // it was killed
	}}, ready
}

type (
	point struct {
		Lat float64 `json:"lat"`
		Lon float64 `json:"lon,omitempty"`
	}
	room struct {
		Name string `json:"name"`
		Dim  bool   `json:"dim,omitempty"`
	}
	spot struct {
		Name string  `json:"name" desc:"where to"`
		At   *point  `json:"at"`
		Near []point `json:"near,omitempty"`
	}
)

// startGo starts the lamp in this process.
func startGo(t *testing.T, h *host, api, name string) *lamp {
	t.Helper()
	type text struct {
		Text string `json:"text"`
	}
	type to struct {
		To int `json:"to"`
	}
	upTo100 := func(about map[string]any) { about["minimum"], about["maximum"] = 0, 100 }
	readOnly := func(about map[string]any) { about["readOnly"] = true }
	units, level := agent.NewState("units", "celsius", nil), agent.NewState("level", 0, nil, upTo100)
	hung, alarm := agent.NewState("hung", 0, nil, readOnly), agent.NewEvent[string]("alarm")
	var note any
	visit := ""
	wait := func(ctx context.Context, _ agent.None) (agent.None, error) {
		<-ctx.Done()
		hung.Set(hung.Get() + 1)
		return agent.None{}, ctx.Err()
	}
	parts := []agent.Part{units, level, hung, alarm,
		agent.Action("add", func(_ context.Context, in struct {
			A int  `json:"a"`
			B *int `json:"b"`
		}) (int, error) {
			if in.B == nil {
				return in.A + 1, nil
			}
			return in.A + *in.B, nil
		}, agent.Safe(), agent.Doc("Adds.")),
		agent.Action("echo", func(_ context.Context, in string) (string, error) { return in, nil }),
		agent.Stream("count", func(_ context.Context, in to) iter.Seq2[string, error] { return upTo(in.To, "%d ") }),
		agent.Stream("numbers", func(_ context.Context, in to) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := 1; i <= in.To && yield(i, nil); i++ {
				}
			}
		}),
		agent.Action("move", func(_ context.Context, in struct {
			Place spot     `json:"place"`
			By    *float64 `json:"by"`
		}) (map[string]any, error) {
			at := point{Lat: 1}
			if in.Place.At != nil {
				at = *in.Place.At
				at.Lat++
			}
			if in.By != nil {
				at.Lat += *in.By - 1
			}
			near := []map[string]float64{}
			for _, p := range in.Place.Near {
				near = append(near, map[string]float64{"lat": p.Lat, "lon": 0})
			}
			return map[string]any{"name": in.Place.Name, "at": map[string]float64{"lat": at.Lat, "lon": at.Lon}, "near": near}, nil
		}),
		agent.Action("ring", func(_ context.Context, in text) (agent.None, error) { alarm.Emit(in.Text); return agent.None{}, nil }),
		agent.Action("fail", func(context.Context, agent.None) (agent.None, error) { return agent.None{}, errors.New("out of order") }),
		agent.Action("refuse", func(context.Context, agent.None) (agent.None, error) {
			return agent.None{}, interact.Errorf(interact.Overloaded, "screw one in", "no bulb")
		}),
		agent.Action("unwritable", func(context.Context, agent.None) (func(), error) { return func() {}, nil }),
		agent.Action("huge", func(_ context.Context, in struct {
			Size int `json:"size"`
		}) (string, error) {
			return strings.Repeat("x", in.Size), nil
		}),
		agent.Action("place", func(ctx context.Context, _ agent.None) (string, error) {
			room, err := agent.Ask[room](ctx, "Which room?")
			switch {
			case errors.Is(err, agent.ErrDeclined):
				return "nowhere", nil
			case room.Dim:
				room.Name += ", dimly"
			}
			return room.Name, err
		}, agent.RequiresInput()),
		agent.Action("hang", wait), agent.Action("sleep", wait),
		agent.Stream("drip", func(ctx context.Context, _ agent.None) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				defer func() { hung.Set(hung.Get() + 1) }()
				for yield("drop", nil) {
					select {
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
						return
					}
				}
			}
		}),
		agent.Action("hear", func(_ context.Context, in agent.Chunks) (string, error) {
			n, err := io.Copy(io.Discard, in.Reader())
			return fmt.Sprintf("%d of %s", n, in.ContentType), err
		}),
		agent.Stream("parrot", func(_ context.Context, in agent.Chunks) iter.Seq2[agent.Data, error] {
			return func(yield func(agent.Data, error) bool) {
				for chunk, err := range in.All() {
					if !yield(agent.Data{Bytes: chunk}, err) {
						return
					}
				}
			}
		}),
		agent.Action("sip", func(_ context.Context, in agent.Chunks) (string, error) {
			for chunk, err := range in.All() {
				return string(chunk[:min(9, len(chunk))]), err
			}
			return "", nil
		}),
		agent.Action("nap", func(ctx context.Context, in agent.Chunks) (agent.None, error) {
			if _, err := in.Reader().Read(make([]byte, 1)); err != nil { // the call was cancelled before it was read
				hung.Set(hung.Get() + 1)
				return agent.None{}, err
			}
			return wait(ctx, agent.None{})
		}),
		agent.Property("peak", func(context.Context) (int, error) { return 0, nil }, nil),
		agent.Action("slow", func(_ context.Context, in text) (string, error) { return in.Text, nil }, agent.Async()),
		agent.Property("version", func(context.Context) (string, error) { return "1.2.3", nil }, nil),
		agent.Property("visitor", func(ctx context.Context) (string, error) { return visit + ", read by " + visitor(ctx), nil },
			func(ctx context.Context, v string) error { visit = v + " by " + visitor(ctx); return nil }),
		agent.Property("note", func(context.Context) (any, error) { return note, nil },
			func(_ context.Context, v any) error { note = v; return nil }),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan string, 100)
	go func() {
		done <- agent.Serve(ctx, agent.Agent{Name: name, Description: "A lamp.", Version: "1.2.3", Node: api, Token: h.token,
			Capabilities: []string{"urn:example:lamp"}, Ready: func(id string) { ready <- id }}, parts...)
	}()
	end := func() error {
		cancel()
		err := <-done
		done <- nil
		return err
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	select {
	case id := <-ready:
		return &lamp{id: id, leave: end}
	case err := <-done:
		done <- nil
		t.Fatal(err)
	case <-time.After(timeout):
		t.Fatal("the node does not take the agent")
	}
	return nil
}

// visitor returns the id of the caller, with the id of its delegator.
func visitor(ctx context.Context) string {
	who := agent.CallerOf(ctx)
	if who.Lent != nil {
		return who.ID() + " for " + who.Lent.Lender()
	}
	return who.ID()
}

func upTo(n int, format string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := 1; i <= n && yield(fmt.Sprintf(format, i), nil); i++ {
		}
	}
}

// command runs a program to its end, and returns its output.
func command(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
