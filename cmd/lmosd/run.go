package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/a2a/push"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/nodeaddr"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/runlog"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/service"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/gcpace"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/testnet"
)

func newRunCommand(a *app) *cobra.Command {
	var ready string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "run the node of this host, in the foreground",
		Long: `Runs a node until SIGINT, SIGTERM or the end of its terminal; SIGHUP to a service reloads the configuration. Without configuration, the node creates a key and
a data directory, connects to the nodes of the local network, and prints its addresses. Every configuration key is a flag.

After the first signal, running calls finish; a second signal ends the process.`,
		Example: `  lmosd run
  lmosd run --mesh.bootstrap /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…
  lmosd run --profile test --data-dir ./a --ready-file ./a.json`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd help config, lmosd status, lmosd publish"),
		Args:        a.noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			a.service.Store(isService(a.Console))
			c, err := configcmd.Load(a.Console, cmd)
			if err != nil {
				return err
			}
			return a.serve(cmd, c, ready, start)
		},
	}
	configcmd.AddKeyFlags(cmd)
	cmd.Flags().StringVar(&ready, "ready-file", "", "write the addresses of the node to this `FILE` when it serves; remove the file at the end")
	return cmd
}

// settled is the time after which the memory that only the start needed is returned to the system.
const settled = 10 * time.Second

// serve runs a node until ctx ends.
func (a *app) serve(cmd *cobra.Command, c *configs.Config, ready string, start time.Time) error {
	ctx := cmd.Context()
	o, err := c.Options()
	if err != nil {
		return err
	}
	// A script that waits for the file must not see that of an earlier run.
	if err := errors.Join(withdrawReady(ready), makeFolder(c.Node.DataDir)); err != nil {
		return err
	}
	o.Version = version()
	o.HTTP.ConsoleDir = a.Variable("LMOSD_UI_DIR") // for work on the console
	o.Log, o.HTTP.Logs = configcmd.Logger(a.Console, c)
	if o.Sites.Dial = service.TrialDial(a.Console); o.Sites.Dial != nil {
		o.Log.Warn("this node is in a trial of lmosd upgrade check, and makes no connections; unset LMOSD_TRIAL for any other node")
	}
	p2p.SetLibraryLog(o.Log.Handler())
	dht.SetLibraryLog(o.Log.Handler())
	o.Policy.Hint = refusalHint
	reload := &reloader{app: a, cmd: cmd, running: configs.NewRunning(c), options: &o}
	o.HTTP.Config, o.HTTP.Reload = reload.running.Items, reload.reload
	if o.OpenKey, err = keys.Opener(ctx, a.Console, c); err != nil {
		return err
	}
	// These bridges serve clients; their only requests go to webhooks, at addresses that direct calls may use.
	o.Bridges = bridges(credentials.Store{}, mcp.Options{Pins: c.MCP.Pin}, a2a.Options{Push: push.Options{Private: o.Direct == servient.DirectAny}}, o.Log)
	n, err := node.New(o)
	if err != nil {
		return cannotStart(err)
	}
	agents, err := a.offerAgents(ctx, n, c, o.Log)
	if err != nil {
		return errors.Join(err, n.Close())
	}
	defer reload.close(agents)
	reload.use(agents)
	if err := announceReady(n, ready); err != nil {
		return errors.Join(err, n.Close())
	}
	if err := a.banner(n.Status(), c, agents.names(), time.Since(start)); err != nil {
		return errors.Join(err, n.Close())
	}
	a.offerOrganization(ctx, n.Client(), c)
	defer runlog.Start(ctx, n.Client(), n.DID(), start, o.Log)()
	defer gcpace.Start(int64(c.Mesh.Limits.Memory))()
	defer time.AfterFunc(settled, debug.FreeOSMemory).Stop()
	defer context.AfterFunc(ctx, a.stopping)()
	defer service.Notify(ctx, n.Client(), o.Log)()
	until, stop := context.WithCancel(ctx)
	var hangups sync.WaitGroup
	hangups.Go(func() { a.reloadOnHangup(until, n.Client()) })
	defer hangups.Wait()
	defer stop()
	err = errors.Join(n.Run(ctx), n.Close(), withdrawReady(ready))
	if err == nil && a.Talk.TTY {
		a.Talk.Line("stopped")
	}
	return err
}

// stopping explains on a terminal why the command does not end at once.
func (a *app) stopping() {
	if a.Talk.TTY {
		a.Talk.Line("stopping: calls that run may finish; Ctrl-C again ends at once")
	}
}

// makeFolder creates the data directory. The node reports errors inside it.
func makeFolder(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &interact.Error{Code: interact.ConfigInvalid, Title: "the data folder " + dir + " cannot be made", Err: cli.Reason(err),
			Hint: "choose another one: lmosd run --data-dir DIR"}
	}
	return nil
}

// cannotStart adds a title to an error without a code.
func cannotStart(err error) error {
	var e *interact.Error
	if errors.As(err, &e) {
		return err
	}
	return &interact.Error{Code: interact.Internal, Title: "the node cannot start", Err: err,
		Next: interact.Next(interact.StepRun, "telemetry.log.level", "debug")}
}

// announceReady writes the ready file atomically: its reader can connect.
func announceReady(n *node.Node, path string) error {
	if path == "" {
		return nil
	}
	s := n.Status()
	b, err := json.Marshal(testnet.Ready{DID: s.DID, PeerID: s.PeerID, P2P: s.Addrs, API: s.API})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(b, '\n'), 0o644); err != nil {
		return readyError(path, err)
	}
	return nil
}

// withdrawReady removes the ready file.
func withdrawReady(path string) error {
	if path == "" {
		return nil
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !info.Mode().IsRegular():
		return readyError(path, errors.New("the path exists and is not a file"))
	}
	if err := os.Remove(path); err != nil {
		return readyError(path, err)
	}
	return nil
}

func readyError(path string, err error) error {
	return &interact.Error{Code: interact.Usage, Title: "the ready file " + path + " cannot be written", Err: cli.Reason(err),
		Hint: "choose another place", Next: interact.Next(cli.StepCommand, "lmosd run --ready-file FILE")}
}

// The invitation that run prints.
const (
	homeInvitationLife = time.Hour
	homeInvitationUses = 3
)

// offerOrganization makes an organization for the nodes of this user, if the node has none and its profile is for a local network, and prints an
// invitation on a terminal: the nodes that use it may call each other's agents, as others may not.
func (a *app) offerOrganization(ctx context.Context, client *api.Client, c *configs.Config) {
	if !slices.Contains([]string{"default", "lan", "lean"}, c.Profile) || c.Trust.Untrusted == "open" {
		return
	}
	org, err := client.InitOrganization(ctx, api.OrganizationInit{Auto: true})
	if err != nil {
		a.Warn("no organization for the nodes of this user was made: " + err.Error()) // the node works without
		return
	}
	if !org.Auto || !org.Issuer || !a.Out.TTY {
		return
	}
	i, err := client.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode, Issuer: len(org.Issuers) < 4, Uses: homeInvitationUses, Life: api.Duration(homeInvitationLife)})
	if err != nil {
		return
	}
	a.Talk.Line("other nodes of yours join with this line (for 1 hour, 3 nodes); only they may call the agents of this node:")
	a.Talk.Line("  lmosd org join " + i.Text)
	if c.Mesh.MDNS && c.Trust.Connect == "anyone" {
		a.Talk.Line("nodes of yours on the local network also join without it, after you compared six words: lmosd org join")
	}
}

// A started node is the document of lmosd run.
type started struct {
	cli.Head
	DID     did.DID  `json:"did"`
	PeerID  string   `json:"peer_id"`
	P2P     []string `json:"p2p"` // multiaddrs with /p2p, public ones first
	API     string   `json:"api,omitempty"`
	DataDir string   `json:"data_dir,omitempty"`
	Version string   `json:"version"`
	Network string   `json:"network"`
	Mesh    string   `json:"mesh"`    // how the node finds peers
	Callers string   `json:"callers"` // peers that may call its agents: anyone, or permitted (by the organization and the access rules)
	Agents  int      `json:"agents"`
	Loading bool     `json:"loading,omitempty"`    // further stored agents are being loaded
	Own     []string `json:"own_agents,omitempty"` // names of those of the configuration
	Took    float64  `json:"took_ms"`
}

// banner prints the identity and the addresses of the node.
func (a *app) banner(s *api.Status, c *configs.Config, agents []string, took time.Duration) error {
	doc := started{cli.NewHead("Node"), s.DID, s.PeerID, render.Addresses(s.Addrs), s.API, s.DataDir, s.Version, s.Network,
		joining(c), s.Callers, s.Agents.Local, s.State == "starting", agents, api.Milliseconds(took)}
	err := a.Show(cli.View{Doc: doc, Names: []string{string(s.DID)}, People: func(to *terminal.Screen, _ bool) {
		shown := doc
		if to.TTY {
			program := "lmosd " + s.Version
			to.Item(to.Paint(terminal.Bold, program)+"  ", terminal.Columns(program)+2, s.DID.Short()+" "+string(s.DID))
			if !a.Flags.Verbose {
				shown.P2P = render.Outside(doc.P2P)
			}
		}
		shown.sheet(to.TTY).Write(to)
		if to.TTY {
			to.Line(to.Paint(terminal.Green, "ready") + " in " + terminal.Millis(doc.Took))
		}
	}})
	if err == nil && a.Out.TTY {
		nodeaddr.Elsewhere(a.Console, s.API, s.DataDir)
		next := []string{"lmosd publish FILE", "lmosd find"}
		if c.HTTP.Console {
			next = append(next, "lmosd console")
		}
		a.Next(next...)
	}
	return err
}

// sheet returns the fields for people; brief omits those of the lines around it.
func (d *started) sheet(brief bool) *terminal.Sheet {
	s := &terminal.Sheet{}
	if !brief {
		s.Add("did", string(d.DID))
	}
	s.Add("p2p", d.P2P...)
	s.Add("api", d.API)
	s.Add("data", d.DataDir)
	s.Add("mesh", d.Network+", "+d.Mesh)
	s.Add("callers", render.Callers(d.Callers))
	switch again := d.Agents - len(d.Own); {
	case d.Loading:
		s.Add("agents", terminal.Count(again, "agent", "agents")+" offered again, others are being loaded")
	case again > 0:
		s.Add("agents", terminal.Count(again, "agent", "agents")+" offered again")
	}
	if len(d.Own) > 0 {
		s.Add("agents", strings.Join(d.Own, ", ")+" of the configuration")
	}
	if !brief {
		s.Add("ready", terminal.Millis(d.Took))
	}
	return s
}

// printCallers prints at the publication of an agent which nodes may call it. own are its callers (--for).
func (a *app) printCallers(callers string, own []string, v td.Visibility) {
	switch {
	case !a.ForPeople():
	case v == td.Private:
		a.Talk.Line("callers: consumers of this node only")
	case v == td.Public && callers == policy.Anyone:
		a.Talk.Line("open: any peer that reaches the node may call it; trust.untrusted restricts callers")
	case v == td.Named:
		a.Talk.Line("callers: " + terminal.OneLine(strings.Join(own, ", ")) + " only")
	case len(own) > 0:
		a.Talk.Line("callers: " + terminal.OneLine(strings.Join(own, ", ")) + ", and nodes of the own organization")
	case v != td.Public:
		a.Talk.Line("callers: nodes of the own organization, and those that a rule permits")
	case callers == policy.Permitted:
		a.Talk.Line("callers: nodes of the own organization; --for anyone opens it to all")
	}
}

// joining describes how the node finds peers.
func joining(c *configs.Config) string {
	var ways []string
	if c.Mesh.MDNS {
		ways = append(ways, "mDNS")
	}
	if n := len(c.Mesh.Bootstrap); n > 0 {
		ways = append(ways, terminal.Count(n, "bootstrap peer", "bootstrap peers"))
	}
	if len(ways) == 0 {
		return "waiting for others to connect"
	}
	return "joining via " + strings.Join(ways, " and ")
}
