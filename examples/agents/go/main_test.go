package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// asProgram makes the test binary be the program.
const asProgram = "AGENT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testmain.Run(m)
}

// programs are the programs of these examples in each language.
var programs = map[string]func(t *testing.T, what string) *exec.Cmd{
	"go": func(t *testing.T, what string) *exec.Cmd {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, what)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		return cmd
	},
	"python": func(t *testing.T, what string) *exec.Cmd {
		return script(t, "python3", "../python/"+what+".py")
	},
	"js": func(t *testing.T, what string) *exec.Cmd {
		return script(t, "node", "../js/"+what+".mjs")
	},
}

func script(t *testing.T, program, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testprogram.Path(t, program), path)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// newNode starts a node. It returns what a program needs to find it.
func newNode(t *testing.T) (n *node.Node, env []string) {
	t.Helper()
	dir := t.TempDir()
	n, err := node.New(node.Options{Name: "host", Network: fmt.Sprintf("ex-%d", time.Now().UnixNano()%1e9), Profile: "test",
		Loopback: true, Dir: dir, Engine: node.EngineMemory, Direct: servient.DirectOff, Policy: policy.Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}},
		Listen: []string{"/ip4/127.0.0.1/tcp/0"}, ListenExplicit: true, HTTP: &node.HTTP{Listen: "127.0.0.1:0", Explicit: true}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, n.Close()); err != nil {
			t.Error(err)
		}
	})
	token, err := os.ReadFile(filepath.Join(dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	return n, []string{"LMOSD_NODE=" + n.API(), "LMOSD_TOKEN=" + strings.TrimSpace(string(token))}
}

// until calls try until it succeeds.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Agents in all languages have equal results, and are withdrawn when their process is terminated.
func TestEveryProgramWithEveryAgent(t *testing.T) {
	t.Parallel()
	for to, agent := range programs {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			n, env := newNode(t)
			call := func(action, input string) error {
				_, _, err := n.Client().Call(t.Context(), "forecast", action, "", []byte(input))
				return err
			}
			end := begin(t, agent(t, "forecast"), env)
			until(t, "the agent is there", func() error { return call("today", `{"city":"Bonn"}`) })
			for from, program := range programs {
				t.Run("from "+from, func(t *testing.T) {
					asks(t, program(t, "ask"), env)
					watches(t, program(t, "watch"), env, func() error { return call("warn", `{"of":"hail"}`) })
				})
			}
			if err := end(); err != nil {
				t.Error(err)
			}
			until(t, "the agent is withdrawn", func() error {
				err := call("today", `{"city":"Bonn"}`)
				if code := interact.AsError(err).Code; code == interact.Withdrawn || code == interact.NotFound {
					return nil
				}
				return err
			})
		})
	}
}

// The printers behave as documented: a long action has a state and can be cancelled, and an error has the text of the agent.
func TestPrinters(t *testing.T) {
	t.Parallel()
	for language, agent := range programs {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			n, env := newNode(t)
			end := begin(t, agent(t, "printer"), env)
			c := n.Client()
			until(t, "the ink is read", func() error {
				ink, _, err := c.Read(t.Context(), "printer", "ink")
				if err == nil && string(ink) != "40" {
					err = fmt.Errorf("it is %s", ink)
				}
				return err
			})
			_, _, err := c.Call(t.Context(), "printer", "staple", "", []byte(`{"pages":50}`))
			if e := interact.AsError(err); e == nil || e.Code != interact.AgentFailed || e.Title != "50 pages are too thick" ||
				e.Hint != "staple 40 pages at most" {
				t.Errorf("to staple gives %+v", e)
			}
			if _, _, err := c.Call(t.Context(), "printer", "staple", "", []byte(`{"pages":5}`)); err != nil {
				t.Error(err)
			}
			copies := func(times string) *api.Task {
				r, err := c.Invoke(t.Context(), "printer", "copy", api.CallOptions{Body: []byte(`{"text":"x","times":` + times + `}`)})
				if err != nil || r.Task == nil {
					t.Fatalf("to copy gives %+v, %v", r, err)
				}
				return r.Task
			}
			if done, err := c.WaitTask(t.Context(), copies("1")); err != nil || string(done.Output) != "1" {
				t.Errorf("a copy gives %+v, %v", done, err)
			}
			if done, err := c.CancelTask(t.Context(), copies("100000").ID); err != nil || done.Status != "cancelled" {
				t.Errorf("to cancel gives %+v, %v", done, err)
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A baker requires the topping as input, and bakes with it.
func TestBakers(t *testing.T) {
	t.Parallel()
	for language, agent := range programs {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			n, env := newNode(t)
			end := begin(t, agent(t, "baker"), env)
			c := n.Client()
			bake := func(a interact.Answer) (string, error) {
				r, err := c.Invoke(t.Context(), "baker", "bake", api.CallOptions{Interactive: true})
				if err != nil {
					return "", err
				}
				if err = c.AnswerTask(t.Context(), r.Task, interact.Answers{"answer": a}); err != nil {
					return "", err
				}
				done, err := c.WaitTask(t.Context(), r.Task)
				if err != nil {
					return "", err
				}
				return string(done.Output), nil
			}
			until(t, "a bread with salt", func() error {
				got, err := bake(interact.Answer{Action: interact.Accept, Content: []byte(`{"topping":"salt","large":true}`)})
				if err == nil && got != `"large bread with salt"` {
					t.Errorf("got %s", got)
				}
				return err
			})
			if got, err := bake(interact.Answer{Action: interact.Decline}); err != nil || got != `"plain bread"` {
				t.Errorf("who says nothing gets %s, %v", got, err)
			}
			for from, program := range programs {
				cmd := program(t, "order")
				cmd.Env = append(cmd.Env, env...)
				if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "What shall be on it?") ||
					!strings.Contains(string(out), "bread with salt") {
					t.Errorf("order from %s: got %s, %v", from, out, err)
				}
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A stream reaches the scribe in all languages.
func TestScribes(t *testing.T) {
	t.Parallel()
	for to, agent := range programs {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			n, env := newNode(t)
			end := begin(t, agent(t, "scribe"), env)
			until(t, "the scribe is there", func() error {
				_, _, err := n.Client().Call(t.Context(), "scribe", "hear", "", []byte("1"))
				return err
			})
			for from, program := range programs {
				cmd := program(t, "send")
				cmd.Env = append(cmd.Env, env...)
				if out, err := cmd.CombinedOutput(); err != nil || string(out) != "8 bytes of audio/wav\n" {
					t.Errorf("from %s: got %s, %v", from, out, err)
				}
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// begin starts an agent. end terminates it, and returns an error if it does not end cleanly.
func begin(t *testing.T, cmd *exec.Cmd, env []string) (end func() error) {
	t.Helper()
	cmd.Env = append(cmd.Env, env...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			cmd.Process.Kill()
			cmd.Wait()
		}
		if t.Failed() {
			t.Log(said.String())
		}
	})
	return func() error {
		ended = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		err := cmd.Wait()
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGTERM {
			err = nil // the expected signal
		}
		if err == nil && said.Len() > 0 {
			err = fmt.Errorf("it said %s", said.String())
		}
		return err
	}
}

func asks(t *testing.T, cmd *exec.Cmd, env []string) {
	t.Helper()
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	got := strings.ReplaceAll(string(out), `"celsius"`, "celsius")
	const want = "sunny in Bonn\nday 1: sunny\nday 2: sunny\ncelsius\nLMOS-1400 "
	if err != nil || !strings.HasPrefix(got, want) || !strings.Contains(got, "city") {
		t.Errorf("got %s, %v, want %s…", got, err, want)
	}
}

// watches repeats warnings until the program has received one and ends.
func watches(t *testing.T, cmd *exec.Cmd, env []string, warn func() error) {
	t.Helper()
	cmd.Env = append(cmd.Env, env...)
	done := make(chan struct{})
	var out []byte
	var err error
	go func() {
		defer close(done)
		out, err = cmd.CombinedOutput()
	}()
	until(t, "the watcher hears of a storm", func() error {
		select {
		case <-done:
			return nil
		case <-time.After(10 * time.Millisecond):
			return errors.Join(warn(), errors.New("it goes on"))
		}
	})
	if err != nil || string(out) != "storm hail\n" {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	cmd := programs["go"](t, "nothing")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "usage") {
		t.Errorf("got %s, %v", out, err)
	}
}
