package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/testnet"
)

// A netFlags are the flags of every testnet command.
type netFlags struct{ dir string }

func newTestnetCommand(a *app) *cobra.Command {
	var f netFlags
	cmd := &cobra.Command{
		Use:   "testnet",
		Short: "run a mesh of nodes on this machine",
		Long: `Starts real lmosd processes on 127.0.0.1 with free ports and a network name of their own, so that they never meet a
real mesh. Keys are made from a seed: the same seed gives the same DIDs.`,
		Example: `  lmosd testnet up -n 5 --demo-agents
  lmosd testnet exec 3 -- find weather
  lmosd testnet down`,
	}
	cmd.PersistentFlags().StringVar(&f.dir, "dir", "", "folder of the testnet (default: testnet beside the data folder)")
	cmd.AddCommand(newTestnetUp(a, &f), newTestnetLs(a, &f), newTestnetExec(a, &f), newTestnetLogs(a, &f), newTestnetDown(a, &f))
	return cmd
}

// folder returns the absolute folder of the testnet.
func (f *netFlags) folder(a *app) (string, error) {
	if f.dir != "" {
		return filepath.Abs(f.dir)
	}
	return filepath.Join(filepath.Dir(configs.DataDir(a.env)), "lmosd-testnet"), nil
}

func (f *netFlags) load(a *app) (*testnet.State, error) {
	dir, err := f.folder(a)
	if err != nil {
		return nil, err
	}
	s, err := testnet.Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, interact.Errorf(interact.NotRunning, "lmosd testnet up", "no testnet runs in %s", dir)
	}
	return s, err
}

// An upOptions are the flags of testnet up.
type upOptions struct {
	n        int
	seed     int64
	topology string
	agents   bool
}

func newTestnetUp(a *app, f *netFlags) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start a testnet and leave it running",
		Long:  `Starts the nodes, connects them, and returns when they are meshed.`,
		Example: `  lmosd testnet up -n 5
  lmosd testnet up -n 8 --topology random:3 --seed 7 --demo-agents`,
		Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.testnetUp(cmd.Context(), f, o) },
	}
	cmd.Flags().IntVarP(&o.n, "nodes", "n", 5, "number of nodes, at most 100")
	cmd.Flags().Int64Var(&o.seed, "seed", 1, "seed of the keys")
	cmd.Flags().StringVar(&o.topology, "topology", "full", "who is connected to whom: full, ring, line, star, two-orgs, random:K")
	cmd.Flags().BoolVar(&o.agents, "demo-agents", false, "run the weather agent and publish it on node 1")
	return cmd
}

func (a *app) testnetUp(ctx context.Context, f *netFlags, o upOptions) error {
	if o.n < 1 || o.n > 100 {
		return usage("lmosd testnet up -n 5", "a testnet has 1 to 100 nodes, not %d", o.n)
	}
	dir, err := f.folder(a)
	if err != nil {
		return err
	}
	if s, err := testnet.Load(dir); err == nil && running(s) > 0 {
		return interact.Errorf(interact.DataDirLocked, "lmosd testnet down, or choose another folder: --dir DIR", "a testnet already runs in %s", dir)
	}
	start := time.Now()
	t, err := startNet(ctx, dir, o)
	if err != nil {
		return err
	}
	a.step(start, "%s up and connected (%s)", plural(o.n, "node"), o.topology)
	s, err := a.finishNet(ctx, t, dir, o)
	if err != nil {
		return errors.Join(err, t.Close())
	}
	t.Leave()
	return a.showUp(s)
}

func startNet(ctx context.Context, dir string, o upOptions) (*testnet.Net, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return testnet.Processes(ctx, o.n, testnet.Options{Seed: o.seed, Topology: o.topology, Dir: dir, Binary: binary})
}

// finishNet waits until the nodes are meshed, runs the agents, and writes testnet.json last: who sees it can use the net.
func (a *app) finishNet(ctx context.Context, t *testnet.Net, dir string, o upOptions) (*testnet.State, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	if err := t.Settle(ctx); err != nil {
		return nil, err
	}
	a.step(start, "meshed")
	var agents []testnet.Proc
	if o.agents {
		start = time.Now()
		w, err := startWeather(ctx, dir)
		if err != nil {
			return nil, err
		}
		agents = append(agents, w.proc())
		if _, err := t.Members[0].Publish(ctx, w.td); err != nil {
			return nil, errors.Join(err, w.stop())
		}
		a.step(start, "weather agent published on node 1")
	}
	return t.Save(dir, o.topology, agents)
}

// step tells people that a step is done.
func (a *app) step(start time.Time, format string, args ...any) {
	if a.forPeople() {
		a.talk.line(fmt.Sprintf("%s %-48s %6d ms", a.talk.paint(green, "✓"), fmt.Sprintf(format, args...), time.Since(start).Milliseconds()))
	}
}

func (a *app) showUp(s *testnet.State) error {
	err := a.showNet(s)
	a.next("lmosd testnet exec 2 -- find   ·   lmosd testnet logs   ·   lmosd testnet down")
	return err
}

func running(s *testnet.State) int {
	n := 0
	for _, node := range s.Nodes {
		if testnet.Alive(node.PID, node.Born) {
			n++
		}
	}
	return n
}

func newTestnetLs(a *app, f *netFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "list the nodes of the testnet",
		Example: `  lmosd testnet ls
  lmosd testnet ls -o json`,
		Args: takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			s, err := f.load(a)
			if err != nil {
				return err
			}
			return a.showNet(s)
		},
	}
}

func (a *app) showNet(s *testnet.State) error {
	v := view{doc: s, people: func(to *screen, _ bool) {
		t := table{header: []string{"NODE", "STATE", "PID", "API", "DID"}, keep: []int{0, 3}}
		for _, n := range s.Nodes {
			state := "up"
			if !testnet.Alive(n.PID, n.Born) {
				state = "down"
			}
			t.add(text(strconv.Itoa(n.N)), text(state), text(strconv.Itoa(n.PID)), text(n.API), cell{n.DID.Short(), string(n.DID)})
		}
		t.write(to)
	}}
	for _, n := range s.Nodes {
		v.names = append(v.names, strconv.Itoa(n.N))
	}
	return a.show(v)
}

func newTestnetExec(a *app, f *netFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- COMMAND…",
		Short: "run a command against one node",
		Long:  `Runs lmosd with the rest of the line against node NODE, as its administrator; the exit code is the command's.`,
		Example: `  lmosd testnet exec 3 -- find weather
  lmosd testnet exec 2 -- call weather getWeather question="Rain in Bonn?" interactionMode=text`,
		Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.load(a)
			if err != nil {
				return err
			}
			n, err := pick(s, args[0])
			if err != nil {
				return err
			}
			return a.again(cmd.Context(), n, args[1:])
		},
	}
}

// pick returns the node with the number that word says.
func pick(s *testnet.State, word string) (*testnet.NodeState, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(word, "node-"))
	if err != nil || n < 1 || n > len(s.Nodes) {
		return nil, usage("lmosd testnet ls", "%q is no node of the testnet: it has 1 to %d", word, len(s.Nodes))
	}
	return &s.Nodes[n-1], nil
}

// again runs this program with args against a node.
func (a *app) again(ctx context.Context, n *testnet.NodeState, args []string) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	if args[0] == "lmosd" {
		args = args[1:]
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(a.env, "LMOSD_NODE="+n.Socket, "LMOSD_DATA_DIR="+n.DataDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.out.Writer, a.talk.Writer
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return silentError(max(exit.ExitCode(), 1))
	}
	return err
}

func newTestnetLogs(a *app, f *netFlags) *cobra.Command {
	var lines int
	cmd := &cobra.Command{
		Use:   "logs [NODE]",
		Short: "print the end of the nodes' logs",
		Example: `  lmosd testnet logs
  lmosd testnet logs 2 --lines 100`,
		Args: takes(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := f.load(a)
			if err != nil {
				return err
			}
			nodes := s.Nodes
			if len(args) == 1 {
				n, err := pick(s, args[0])
				if err != nil {
					return err
				}
				nodes = []testnet.NodeState{*n}
			}
			for _, n := range nodes {
				if err := a.tail(n, lines); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&lines, "lines", 20, "number of lines of each node")
	return cmd
}

// tailMax is how much of a log is read for its last lines.
const tailMax = 1 << 20

// tail prints the last lines of a node's log, each after the node's number.
func (a *app) tail(n testnet.NodeState, lines int) error {
	file, err := os.Open(n.Log)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tailMax {
		if _, err := file.Seek(-tailMax, io.SeekEnd); err != nil {
			return err
		}
	}
	b, err := io.ReadAll(io.LimitReader(file, tailMax))
	if err != nil {
		return err
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	for _, line := range all[max(0, len(all)-lines):] {
		a.out.line(fmt.Sprintf("%d  %s", n.N, printable(line)))
	}
	return nil
}

func newTestnetDown(a *app, f *netFlags) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop the testnet",
		Long:  `Stops every process of the testnet. Keys, stores and logs stay, so that "up" finds everything again; --purge removes them.`,
		Example: `  lmosd testnet down
  lmosd testnet down --purge`,
		Args: takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			s, err := f.load(a)
			if err != nil {
				return err
			}
			start := time.Now()
			if err := s.Down(); err != nil {
				return err
			}
			if purge {
				if err := s.Purge(); err != nil {
					return err
				}
			}
			a.step(start, "%s stopped", plural(len(s.Nodes), "node"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the data of the nodes, too")
	return cmd
}
