package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
)

func newIDCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "id",
		Short: "show the identity of the node: DID, PeerID, addresses",
		Long: "Shows the DID and the PeerID of the node, which are two forms of its key, and its addresses. If no node runs,\n" +
			"the key file is read; it is never created.",
		Example: `  lmosd id
  lmosd id -o json --jq .did
  lmosd run --mesh.bootstrap "$(lmosd id --jq '.p2p[0]')"   # on another host`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.runID(cmd.Context()) },
	}
}

// identity is the document of `lmosd id`.
type identity struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"` // Identity
	DID        did.DID  `json:"did"`
	PeerID     string   `json:"peer_id"`
	Name       string   `json:"name,omitempty"`
	Running    bool     `json:"running"`
	Addrs      []string `json:"p2p"` // multiaddrs with /p2p; empty unless running
}

func (a *app) runID(ctx context.Context) error {
	id, err := a.identify(ctx)
	if err != nil {
		return err
	}
	return a.Show(cli.View{Doc: id, Names: []string{string(id.DID)}, People: func(s *terminal.Screen, _ bool) {
		sheet := &terminal.Sheet{}
		sheet.Add("did", string(id.DID))
		sheet.Add("peer", id.PeerID)
		sheet.Add("name", id.Name)
		for _, addr := range id.Addrs {
			sheet.Add("p2p", addr)
		}
		if !id.Running {
			sheet.Add("state", "not running")
		}
		sheet.Write(s)
	}})
}

// identify asks the node, and if there is none, the key file.
func (a *app) identify(ctx context.Context) (*identity, error) {
	status, err := a.status(ctx)
	if err == nil {
		return &identity{api.APIVersion, "Identity", status.DID, status.PeerID, status.Name, true, farthest(status.Addrs)}, nil
	}
	if interact.AsError(err).Code != interact.NotRunning || a.target == nil || a.target.DataDir == "" {
		return nil, err
	}
	key, keyErr := a.key()
	switch {
	case errors.Is(keyErr, fs.ErrNotExist):
		return nil, err
	case keyErr != nil:
		return nil, keyErr
	}
	return &identity{api.APIVersion, "Identity", key.DID(), key.DID().PeerText(), "", false, []string{}}, nil
}

// key opens the key file, which must exist: a look at an identity must not make one.
func (a *app) key() (*keystore.Key, error) {
	c, err := configcmd.Load(a.Console, nil)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(c.KeyFile()); err != nil {
		return nil, err
	}
	key, err := keystore.Open(c.KeyFile())
	if errors.Is(err, keystore.ErrPermissions) {
		return nil, &interact.Error{Code: interact.KeyPermissions, Title: "the key file is not used", Hint: "chmod 600 " + c.KeyFile(), Err: err}
	}
	return key, err
}

func (a *app) status(ctx context.Context) (*api.Status, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Status(ctx)
}

func newStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show the state of the node: peers, agents, calls, warnings",
		Long:  "Shows the state of the node and its warnings.",
		Example: `  lmosd status
  lmosd status -o json --jq .state
  lmosd status --node http://127.0.0.1:4670`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd peers, lmosd id"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			return a.showStatus(s)
		},
	}
}

func (a *app) showStatus(st *api.Status) error {
	err := a.Show(cli.View{Doc: st, Names: []string{string(st.DID)}, People: func(s *terminal.Screen, wide bool) {
		if s.TTY {
			statusScreen(s, st, a.hint)
		} else {
			statusSheet(st).Write(s)
		}
	}})
	if err != nil || !a.ForPeople() {
		return err
	}
	if own := version(); st.Version != "" && st.Version != own {
		a.Talk.Line(a.Talk.Paint(terminal.Yellow, "warning: ") + terminal.OneLine("the node is lmosd "+st.Version+", this command is "+own))
	}
	switch {
	case st.Peers.Total == 0:
		a.Next("lmosd peers connect MULTIADDR   # one that lmosd id prints on another host")
	case st.Agents.Known+st.Agents.Local > 0:
		a.Next("lmosd find")
	default:
		a.Next("lmosd publish FILE")
	}
	return nil
}

// statusScreen prints the state as people read it; hint makes a line of a hint.
func statusScreen(s *terminal.Screen, st *api.Status, hint func(string, []interact.Step) string) {
	color, ok := map[string]string{"ready": terminal.Green, "degraded": terminal.Yellow, "starting": terminal.Yellow}[st.State]
	if !ok {
		color = terminal.Red
	}
	s.Line(s.Paint(color, "● "+terminal.OneLine(st.State)) + "  " + terminal.OneLine(joinNotEmpty(" · ", st.DID.Short(), st.Name,
		"up "+uptime(st), "lmosd "+st.Version, "profile "+st.Profile, "network "+st.Network)))
	rows := &terminal.Sheet{}
	rows.Add("peers", fmt.Sprintf("%d: %d direct, %d relayed · dht %s, table %d · gossip with %s on %s", st.Peers.Total, st.Peers.Direct,
		st.Peers.Relayed, st.DHT.Mode, st.DHT.Table, terminal.Count(st.Gossip.Peers, "peer", "peers"),
		terminal.Count(st.Gossip.Topics, "topic", "topics")))
	rows.Add("agents", fmt.Sprintf("%d local, %d known", st.Agents.Local, st.Agents.Known))
	rows.Add("calls", fmt.Sprintf("%d · errors %d · p50 %s, p99 %s · queue %d", st.Calls.Total, st.Calls.Errors,
		terminal.Millis(st.Calls.P50), terminal.Millis(st.Calls.P99), st.Calls.Queue))
	rows.Add("callers", calledBy(st.Callers))
	rows.Add("api", st.API)
	rows.Add("data", st.DataDir)
	rows.Write(s)
	for _, w := range st.Warnings {
		s.Line("  " + warningLine(s, w))
		if remedy := hint(w.Hint, w.Next); remedy != "" {
			s.Line("    remedy: " + remedy)
		}
	}
}

func uptime(st *api.Status) string {
	return terminal.Span(time.Duration(st.Uptime * float64(time.Second)))
}

// statusSheet is the state for a pipe: a name and a value on each line.
func statusSheet(st *api.Status) *terminal.Sheet {
	s := &terminal.Sheet{}
	for _, row := range [][2]any{
		{"state", st.State}, {"did", st.DID}, {"peer_id", st.PeerID}, {"name", st.Name}, {"version", st.Version}, {"uptime", uptime(st)},
		{"profile", st.Profile}, {"network", st.Network}, {"data_dir", st.DataDir}, {"api", st.API}, {"callers", st.Callers},
		{"peers", st.Peers.Total}, {"peers_direct", st.Peers.Direct}, {"peers_relayed", st.Peers.Relayed},
		{"dht_mode", st.DHT.Mode}, {"dht_table", st.DHT.Table}, {"gossip_topics", st.Gossip.Topics}, {"gossip_peers", st.Gossip.Peers},
		{"agents_local", st.Agents.Local}, {"agents_known", st.Agents.Known},
		{"calls", st.Calls.Total}, {"calls_errors", st.Calls.Errors}, {"calls_queue", st.Calls.Queue},
	} {
		s.Add(row[0].(string), fmt.Sprint(row[1]))
	}
	for _, addr := range farthest(st.Addrs) {
		s.Add("p2p", addr)
	}
	for _, w := range st.Warnings {
		s.Add("warning", strings.TrimSpace(w.Code+" "+w.Title+" "+w.Text))
	}
	return s
}

func warningLine(s *terminal.Screen, w api.Warning) string {
	return s.Paint(terminal.Yellow, "!") + " " + terminal.OneLine(joinNotEmpty(" · ", w.Code+" "+w.Title, w.Text))
}

func newPeersCommand(a *app) *cobra.Command {
	var exitStatus bool
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "list the connected nodes, or connect one",
		Long:  "Lists the connected nodes, nearest first.",
		Example: `  lmosd peers
  lmosd peers -o name
  lmosd peers connect /ip4/192.0.2.7/tcp/4667/p2p/12D3KooW…`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd id"),
		Args:        cli.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runPeers(cmd.Context(), exitStatus)
		},
	}
	cmd.Flags().BoolVar(&exitStatus, "exit-status", false, "exit 4 if there is no peer")
	cmd.AddCommand(newConnectCommand(a))
	return cmd
}

func newConnectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "connect <multiaddr>",
		Short: "connect the node to another one",
		Long:  "Connects the node to the node at an address that ends in /p2p/ and a peer id, as `lmosd id` prints it there.",
		Example: `  lmosd peers connect /ip4/192.0.2.7/tcp/4667/p2p/12D3KooW…
  lmosd peers connect "$(ssh other lmosd id --jq '.p2p[0]')"`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd peers"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			defer client.Close()
			if err := client.Connect(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.showConnected(args[0])
		},
	}
}

func (a *app) showConnected(addr string) error {
	doc := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"` // Connection
		Addr       string `json:"addr"`
	}{api.APIVersion, "Connection", addr}
	_, id, _ := strings.Cut(addr, "/p2p/")
	err := a.Show(cli.View{Doc: doc, Names: []string{id}, People: func(s *terminal.Screen, _ bool) {
		s.Line("connected to " + terminal.OneLine(id))
	}})
	if err == nil {
		a.Next("lmosd peers")
	}
	return err
}

func (a *app) runPeers(ctx context.Context, exitStatus bool) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.Peers(ctx)
	if err != nil {
		return err
	}
	v := cli.View{Doc: list, People: func(s *terminal.Screen, wide bool) { peerTable(list.Items, wide).Write(s) }}
	for _, p := range list.Items {
		v.Names = append(v.Names, string(p.DID))
	}
	if err := a.Show(v); err != nil {
		return err
	}
	if len(list.Items) > 0 {
		return nil
	}
	if a.ForPeople() {
		a.Talk.Line("no peers")
	}
	a.Next("lmosd peers connect MULTIADDR   # one that lmosd id prints on another host")
	if exitStatus {
		return cli.SilentError(cli.ExitNotFound)
	}
	return nil
}

func peerTable(items []api.Peer, wide bool) *terminal.Table {
	t := &terminal.Table{Header: []string{"PEER", "RTT", "DIRECTION", "TRANSPORT", "AGE", "ADDRESS"}, Keep: []int{0, 1, 2, 4}, Wide: wide}
	if wide {
		t.Header = append(t.Header, "PEER ID", "PROGRAM")
	}
	for _, p := range items {
		rtt := "-"
		if p.RTT > 0 {
			rtt = terminal.Millis(p.RTT)
		}
		age := terminal.Span(time.Duration(p.Since * float64(time.Second)))
		row := append([]terminal.Cell{terminal.Short(p.DID.Short(), string(p.DID))},
			terminal.Texts(rtt, p.Direction, p.Transport, age, p.Addr)...)
		if wide {
			row = append(row, terminal.Texts(p.PeerID, p.Agent)...)
		}
		t.Add(row...)
	}
	return t
}
