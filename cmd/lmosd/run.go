package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/testnet"
)

func newRunCommand(a *app) *cobra.Command {
	var ready string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "run the node of this host, in the foreground",
		Long: `Runs a node until SIGINT or SIGTERM. Without any configuration it makes a key and a data folder, finds the nodes
of the local network, and says how to reach it. Every key of the configuration is a flag as well.

The first signal lets running calls finish; the second ends the process.`,
		Example: `  lmosd run
  lmosd run --mesh.bootstrap /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB
  lmosd run --profile test --data-dir ./a --ready-file ./a.json`,
		Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			c, err := a.config(cmd)
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), c, ready, start)
		},
	}
	addKeyFlags(cmd)
	cmd.Flags().StringVar(&ready, "ready-file", "", "write where the node is reached to this `FILE`, once it serves")
	return cmd
}

// serve runs a node until ctx ends.
func (a *app) serve(ctx context.Context, c *configs.Config, ready string, start time.Time) error {
	o, err := c.Options()
	if err != nil {
		return err
	}
	o.Version, o.Log = version(), a.logger(c)
	n, err := node.New(o)
	if err != nil {
		return err
	}
	defer n.Close()
	if err := announceReady(n, ready); err != nil {
		return err
	}
	a.banner(n, c, time.Since(start))
	err = n.Run(ctx)
	a.note("the node has stopped")
	return err
}

// announceReady writes the ready file atomically: who sees it can connect.
func announceReady(n *node.Node, path string) error {
	if path == "" {
		return nil
	}
	s := n.Status()
	b, err := json.Marshal(testnet.Ready{DID: s.DID, PeerID: s.PeerID, P2P: s.Addrs, API: s.API})
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	return nil
}

// banner says who the node is, how it is reached, and what to do next.
func (a *app) banner(n *node.Node, c *configs.Config, took time.Duration) {
	s := n.Status()
	a.out.line(fmt.Sprintf("lmosd %s  %s  %s", s.Version, s.DID.Short(), s.DID))
	for i, addr := range s.Addrs {
		a.out.line(fmt.Sprintf("  %-7s %s", label(i == 0, "p2p"), addr))
	}
	a.out.line(fmt.Sprintf("  %-7s %s", "api", s.API))
	a.out.line(fmt.Sprintf("  %-7s %s", "data", s.DataDir))
	a.out.line(fmt.Sprintf("  %-7s %s, %s", "mesh", s.Network, joining(c)))
	if s.Agents.Local > 0 {
		a.out.line(fmt.Sprintf("  %-7s %d offered again", "agents", s.Agents.Local))
	}
	a.out.line(fmt.Sprintf("ready in %d ms  ·  next: lmosd find  ·  lmosd publish agent.td.json", took.Milliseconds()))
}

func label(show bool, text string) string {
	if show {
		return text
	}
	return ""
}

// joining says where the node looks for others.
func joining(c *configs.Config) string {
	var ways []string
	if c.Mesh.MDNS {
		ways = append(ways, "mDNS")
	}
	ways = append(ways, plural(len(c.Mesh.Bootstrap), "bootstrap peer"))
	return "joining via " + strings.Join(ways, " and ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// logger returns the log of the node: text for people or JSON for programs, on standard error.
func (a *app) logger(c *configs.Config) *slog.Logger {
	o := &slog.HandlerOptions{Level: level(c.Telemetry.Log.Level)}
	if c.Telemetry.Log.Format == "json" || c.Telemetry.Log.Format == "auto" && !a.talk.tty {
		return slog.New(slog.NewJSONHandler(a.talk, o))
	}
	return slog.New(slog.NewTextHandler(a.talk, o))
}

func level(name string) slog.Level {
	var l slog.Level
	_ = l.UnmarshalText([]byte(name)) // The configuration was checked; anything else is info.
	return l
}
