package localnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/testnet"
)

// A bed is the testnet of a command, and the console of the command.
type bed struct {
	*cli.Console
	dir string // value of --dir; empty for the default
}

// NewTestnetCommand returns `lmosd testnet`.
func NewTestnetCommand(c *cli.Console) *cobra.Command {
	b := &bed{Console: c}
	cmd := &cobra.Command{
		Use:   "testnet",
		Short: "run a mesh of nodes on this machine",
		Long: `Starts real lmosd processes on 127.0.0.1 with free ports and a separate network name, so that they never join a
real mesh. Keys are made from a seed: the same seed gives the same DIDs.`,
		Example: `  lmosd testnet up -n 5 --demo-agents
  lmosd testnet exec 3 -- find weather
  lmosd testnet down`,
		Args: cli.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&b.dir, "dir", "", "folder `DIR` of the testnet (default: lmosd-testnet next to the data folder)")
	cmd.AddCommand(newTestnetUp(b), newTestnetLs(b), newTestnetExec(b), newTestnetLogs(b), newTestnetDown(b), newTestnetNAT(b))
	return cmd
}

// line returns a command line for the same testnet.
func (b *bed) line(command string) string {
	if b.dir == "" {
		return "lmosd testnet " + command
	}
	verb, rest, _ := strings.Cut(command, " ")
	return strings.TrimSpace("lmosd testnet " + verb + " --dir " + terminal.Shell(b.dir) + " " + rest)
}

// folder returns the absolute folder of the testnet.
func (b *bed) folder() (string, error) {
	if b.dir != "" {
		return filepath.Abs(b.dir)
	}
	data := configs.DataDir(b.Env)
	if data == "" {
		return "", cli.Usage("set HOME, or name the folder: --dir DIR", "the folder of the testnet is not known: HOME is not set")
	}
	return filepath.Join(filepath.Dir(data), "lmosd-testnet"), nil
}

func (b *bed) load() (*testnet.State, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	s, err := testnet.Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, interact.Errorf(interact.NotRunning, b.line("up"), "no testnet runs in %s", dir)
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

func newTestnetUp(b *bed) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start a testnet and leave it running",
		Long: `Starts the nodes, connects them, and returns when they are meshed. In any topology but full the nodes keep their addresses
to themselves, so that two nodes without a connection stay apart until one calls an agent of the other.`,
		Example: `  lmosd testnet up -n 5
  lmosd testnet up -n 8 --topology random:3 --seed 7 --demo-agents`,
		Args: cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.up(cmd.Context(), o) },
	}
	cmd.Flags().IntVarP(&o.n, "nodes", "n", 5, "number of nodes, at most 100")
	cmd.Flags().Int64Var(&o.seed, "seed", 1, "seed of the keys")
	cmd.Flags().StringVar(&o.topology, "topology", "full", "the connections: full, ring, line, star, two-orgs, random:K")
	cmd.Flags().BoolVar(&o.agents, "demo-agents", false, "run the weather agent and publish it on node 1")
	return cmd
}

func (b *bed) up(ctx context.Context, o upOptions) error {
	defer outlive()()
	if o.n < 1 || o.n > 100 {
		return cli.Usage("lmosd testnet up -n 5", "a testnet has 1 to 100 nodes, not %d", o.n)
	}
	dir, err := b.folder()
	if err != nil {
		return err
	}
	if s, err := testnet.Load(dir); err == nil && running(s) > 0 {
		return interact.Errorf(interact.DataDirLocked, b.line("down")+"   # or choose another folder: --dir DIR",
			"a testnet already runs in %s", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &interact.Error{Code: interact.Usage, Title: "the folder of the testnet cannot be made: " + dir, Err: cli.Reason(err),
			Hint: "lmosd testnet up --dir DIR"}
	}
	start := time.Now()
	t, err := startNet(ctx, dir, o)
	if err != nil {
		return err
	}
	b.step(start, "%s up and connected (%s)", terminal.Count(o.n, "node", "nodes"), o.topology)
	s, err := b.finish(ctx, t, dir, o)
	if err != nil {
		return errors.Join(err, t.Close())
	}
	t.Leave()
	if err := b.showNet(ctx, s); err != nil {
		return err
	}
	if b.ForPeople() {
		b.Talk.Line("console: " + consoleOf(s.Nodes[0].API))
	}
	b.Next(b.line("exec 2 -- find"), b.line("exec 1 -- console"), b.line("logs"), b.line("down"))
	return nil
}

func startNet(ctx context.Context, dir string, o upOptions) (*testnet.Net, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return testnet.Processes(ctx, o.n, testnet.Options{Seed: o.seed, Topology: o.topology, Dir: dir, Binary: binary})
}

// finish waits until the nodes are meshed, starts the agents, and writes testnet.json last.
func (b *bed) finish(ctx context.Context, t *testnet.Net, dir string, o upOptions) (*testnet.State, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	if err := t.Settle(ctx); err != nil {
		return nil, err
	}
	b.step(start, "meshed")
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
		b.step(start, "weather agent published on node 1")
	}
	return t.Save(dir, o.topology, agents)
}

// step prints a completed step for people.
func (b *bed) step(start time.Time, format string, args ...any) {
	if b.ForPeople() {
		b.Talk.Line(fmt.Sprintf("%s %-48s %6d ms", b.Talk.Paint(terminal.Green, "✓"), fmt.Sprintf(format, args...),
			time.Since(start).Milliseconds()))
	}
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

func newTestnetLs(b *bed) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "list the nodes of the testnet",
		Long:  `Lists the nodes with their peers, the agents that they know, and the memory that they use.`,
		Example: `  lmosd testnet ls
  lmosd testnet ls -o json`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := b.load()
			if err != nil {
				return err
			}
			return b.showNet(cmd.Context(), s)
		},
	}
}

// A NetDocument is the document of `lmosd testnet ls`: testnet.json with the current states of the nodes.
type NetDocument struct {
	*testnet.State
	Nodes []netNode `json:"nodes"`
}

type netNode struct {
	testnet.NodeState
	State  string `json:"state"` // up, down, or silent: the process runs but does not answer
	Peers  int    `json:"peers"`
	Agents int    `json:"agents"`
	RSS    int    `json:"rss_bytes,omitempty"` // if it is known
}

// probeTimeout limits the response time of a node of a testnet.
const probeTimeout = time.Second

// look requests the state of every node.
func look(ctx context.Context, s *testnet.State) *NetDocument {
	doc := &NetDocument{State: s, Nodes: make([]netNode, len(s.Nodes))}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var g sync.WaitGroup
	for i, n := range s.Nodes {
		g.Go(func() { doc.Nodes[i] = lookAt(ctx, n) })
	}
	g.Wait()
	return doc
}

func lookAt(ctx context.Context, n testnet.NodeState) netNode {
	now := netNode{NodeState: n, State: "down"}
	if !testnet.Alive(n.PID, n.Born) {
		return now
	}
	now.State, now.RSS = "silent", memoryOf(n.PID)
	client, err := api.Dial(n.Socket, "")
	if err != nil {
		return now
	}
	defer client.Close()
	if status, err := client.Status(ctx); err == nil {
		now.State, now.Peers, now.Agents = "up", status.Peers.Total, status.Agents.Known
	}
	return now
}

// memoryOf returns the resident memory of a process in bytes, 0 if it is unknown (proc_pid_statm(5)).
func memoryOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var total, resident int
	if _, err := fmt.Sscan(string(b), &total, &resident); err != nil {
		return 0
	}
	return resident * os.Getpagesize()
}

func (b *bed) showNet(ctx context.Context, s *testnet.State) error {
	doc := look(ctx, s)
	t := terminal.TableOf(doc.Nodes, false, []terminal.Column[netNode]{
		{Name: "NODE", Keep: true, Cell: terminal.TextOf(func(n netNode) string { return strconv.Itoa(n.N) })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(n netNode) string { return n.State })},
		{Name: "PEERS", Keep: true, Cell: terminal.TextOf(func(n netNode) string { return strconv.Itoa(n.Peers) })},
		{Name: "AGENTS", Keep: true, Cell: terminal.TextOf(func(n netNode) string { return strconv.Itoa(n.Agents) })},
		{Name: "RSS", Keep: true, Cell: terminal.TextOf(func(n netNode) string {
			if n.RSS > 0 {
				return fmt.Sprintf("%d MB", n.RSS/1_000_000)
			}
			return "-"
		})},
		{Name: "PID", Keep: true, Cell: terminal.TextOf(func(n netNode) string { return strconv.Itoa(n.PID) })},
		{Name: "API", Keep: true, Cell: terminal.TextOf(func(n netNode) string { return n.API })},
		{Name: "DID", Cell: func(n netNode) terminal.Cell { return terminal.Short(n.DID.Short(), string(n.DID)) }},
	})
	return b.Show(cli.View{Doc: doc, Names: cli.Each(doc.Nodes, func(n netNode) string { return strconv.Itoa(n.N) }), People: cli.Body(t)})
}

func newTestnetExec(b *bed) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec <node> -- <command…>",
		Short: "run a command against one node",
		Long:  `Runs lmosd with the rest of the line against one node, as its administrator; the exit code is the command's.`,
		Example: `  lmosd testnet exec 3 -- find weather
  lmosd testnet exec 2 -- call weather getWeather question="Rain in Bonn?" interactionMode=text`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return cli.Usage(b.line("exec "+args[0]+" -- find"), "%s needs a command behind --", cmd.CommandPath())
			}
			return cli.Takes(2, -1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := b.load()
			if err != nil {
				return err
			}
			n, err := b.pick(s, args[0])
			if err != nil {
				return err
			}
			return b.again(cmd.Context(), n, args[1:])
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return cli.Usage(b.line("exec 2 -- find --limit 5"), "%v; flags of the command stand behind --", err)
	})
	return cmd
}

// pick returns the node with the number in word.
func (b *bed) pick(s *testnet.State, word string) (*testnet.NodeState, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(word, "node-"))
	if err != nil || n < 1 || n > len(s.Nodes) {
		return nil, cli.Usage(b.line("ls"), "expected a node of the testnet, 1 to %d, got %q", len(s.Nodes), word)
	}
	return &s.Nodes[n-1], nil
}

// again runs this program with args against a node.
func (b *bed) again(ctx context.Context, n *testnet.NodeState, args []string) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	if args[0] == "lmosd" {
		args = args[1:]
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(b.Env, "LMOSD_NODE="+n.Socket, "LMOSD_DATA_DIR="+n.DataDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = b.Stdin, cli.Unguarded(b.Out), cli.Unguarded(b.Talk)
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return cli.SilentError(max(exit.ExitCode(), 1))
	}
	return err
}
