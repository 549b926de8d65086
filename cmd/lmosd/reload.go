package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/sdnotify"
	"github.com/lmosd/lmosd/node"
)

// A reloader reads the configuration of the node that lmosd run runs again.
type reloader struct {
	app     *app
	cmd     *cobra.Command // with the flags of the start
	running *configs.Running
	agents  *agentSet // nil until the node has started; owned by mu
	options *node.Options

	mu sync.Mutex // held by a call
}

// reload implements [gateway.Reloader]. What may fail is done first: files that cannot be read or have an error change nothing.
func (r *reloader) reload(_ context.Context, apply func(gateway.Live) error) (*api.ConfigReload, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	start := time.Now()
	if r.agents == nil {
		return nil, interact.Errorf(interact.NotReady, "try again", "the node is starting")
	}
	next, err := configcmd.Load(r.app.Console, r.cmd)
	if err != nil {
		return nil, err
	}
	done := &api.ConfigReload{File: configcmd.File(r.app.Console)}
	done.Applied, done.Restart = r.running.Changes(next)
	merged := r.running.Merged(next)
	if err := apply(merged.Live(done.Applied, r.options.Log)); err != nil {
		return nil, err
	}
	if slices.Contains(done.Applied, "telemetry.log.level") {
		configcmd.SetLevel(r.options.HTTP.Logs, merged)
	}
	done.Agents = r.agents.change(merged.Agents)
	r.running.Adopt(merged, next)
	done.Took = api.Milliseconds(time.Since(start))
	return done, nil
}

// use sets the agents of the configuration, with which the start ends.
func (r *reloader) use(agents *agentSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agents = agents
}

// close stops the agents. A reload that runs ends before, and no other begins.
func (r *reloader) close(agents *agentSet) {
	agents.end() // the publications of a reload
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agents = nil
	agents.close()
}

// isService reports whether SIGHUP reloads the configuration of this process: a service manager waits for its notifications, or it has no
// controlling terminal whose end the signal could mean.
func isService(c *cli.Console) bool {
	if sdnotify.IsEnabled() {
		return true
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return true
	}
	_ = tty.Close() // nothing was written
	return false
}

// reloadOnHangup reloads the configuration after each SIGHUP, until ctx ends. The log has the result.
func (a *app) reloadOnHangup(ctx context.Context, client *api.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.hangups:
		}
		// The manager waits for both messages. The node logs the result; a manager that does not listen changes nothing.
		_ = sdnotify.Reloading()
		status := "configuration reloaded"
		if _, err := client.ReloadConfig(ctx); err != nil {
			status = "configuration not reloaded: " + err.Error()
		}
		if ctx.Err() == nil { // otherwise the node stops, and the manager has its notification
			_ = sdnotify.Ready(status)
		}
	}
}

func newConfigReloadCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "make the running node read its configuration again",
		Long: "Makes the node read its files again, with the environment and the flags of its start. It applies the keys that can\n" +
			"change while it runs, starts new agents and stops removed ones, and lists the changed keys that need a restart.\n" +
			"With an error in a file, nothing changes. The exit code is 1 if an agent failed. SIGHUP to a service does the same.",
		Example: `  lmosd config reload
  lmosd config reload -o json --jq .restart`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd config set, lmosd config running"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.reloadConfig(cmd.Context()) },
	}
}

func (a *app) reloadConfig(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	done, err := client.ReloadConfig(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: done, Names: done.Applied, People: func(s *terminal.Screen, _ bool) { showReload(s, done) }})
	if err != nil {
		return err
	}
	if len(done.Restart) > 0 {
		a.Next("lmosd config running", "lmosd status")
	}
	if slices.ContainsFunc(done.Agents, func(one api.ReloadedAgent) bool { return one.Error != "" }) {
		return cli.SilentError(cli.ExitInternal)
	}
	return nil
}

func showReload(s *terminal.Screen, done *api.ConfigReload) {
	sheet := &terminal.Sheet{}
	sheet.Add("file", terminal.OneLine(done.File))
	sheet.Add("applied", strings.Join(done.Applied, ", "))
	sheet.Add("restart", strings.Join(done.Restart, ", "))
	for _, one := range done.Agents {
		text := terminal.OneLine(one.Name) + " " + one.State
		if one.State == api.AgentKept {
			text += " as it was, because its changed line failed"
		}
		if one.Error != "" {
			text += ": " + terminal.OneLine(one.Error)
		}
		sheet.Add("agent", text)
	}
	if len(done.Applied)+len(done.Restart)+len(done.Agents) == 0 {
		sheet.Add("applied", "no key has changed")
	}
	sheet.Write(s)
}
