package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// An agentSet holds the agents of the configuration of a node. One goroutine at a time uses it.
type agentSet struct {
	app     *app
	node    *node.Node
	dir     string // the data directory
	bridges []bridge.Bridge
	log     *slog.Logger
	life    context.Context // ends with close
	end     context.CancelFunc
	all     []*configuredAgent
}

// A configuredAgent runs one line of the key agents.
type configuredAgent struct {
	line string
	name string
	ref  string
	x    *expose.Agent
	own  *ownKey // nil: the node owns the agent
	stop context.CancelFunc
	work sync.WaitGroup // until stop
}

// offerAgents publishes the agents of the configuration. If a web server is unreachable, the node starts with its last publication.
func (a *app) offerAgents(ctx context.Context, n *node.Node, c *configs.Config, log *slog.Logger) (*agentSet, error) {
	secrets, err := credentials.Load(c.CredentialsFile())
	if err != nil {
		return nil, err
	}
	set := &agentSet{app: a, node: n, dir: c.Node.DataDir, bridges: bridges(secrets, mcp.Options{}, imported(c), log), log: log}
	set.life, set.end = context.WithCancel(context.WithoutCancel(ctx))
	for i, line := range c.Agents {
		switch remote, err := set.start(ctx, line); {
		case err == nil:
		case remote && ctx.Err() == nil && cli.ExitOf(interact.AsError(err).Code) != cli.ExitUsage:
			log.Warn("an agent of the configuration cannot be offered now", "line", line, "err", err)
		default:
			set.close()
			return nil, configcmd.WrongAgent(c, i, err)
		}
	}
	return set, nil
}

// names returns the names of the agents.
func (set *agentSet) names() []string {
	return cli.Each(set.all, func(one *configuredAgent) string { return one.name })
}

// startFor limits the start of an agent while the node runs.
const startFor = 30 * time.Second

// change stops the agents whose lines are gone, and starts those of new lines. A stopped one is withdrawn last, unless a new line has
// replaced it: it must not publish again after its replacement, perhaps for other callers. A line whose agent did not start is tried again.
func (set *agentSet) change(lines []string) (changes []api.ReloadedAgent) {
	var gone []*configuredAgent
	set.all = slices.DeleteFunc(slices.Clone(set.all), func(one *configuredAgent) bool {
		if slices.Contains(lines, one.line) {
			return false
		}
		gone = append(gone, one)
		return true
	})
	for _, one := range gone {
		one.close()
	}
	for _, line := range lines {
		if slices.ContainsFunc(set.all, func(one *configuredAgent) bool { return one.line == line }) {
			continue
		}
		ctx, cancel := context.WithTimeout(set.life, startFor)
		change := api.ReloadedAgent{State: api.AgentStarted}
		if _, err := set.start(ctx, line); err != nil {
			change = api.ReloadedAgent{Name: configs.Program(line), State: api.AgentFailed, Error: err.Error()}
			set.log.Warn("an agent of the configuration cannot be offered now", "agent", change.Name, "err", err)
		} else {
			change.Name = set.all[len(set.all)-1].name
		}
		cancel()
		changes = append(changes, change)
	}
	for _, one := range gone {
		set.withdraw(one)
		changes = append(changes, api.ReloadedAgent{Name: one.name, State: api.AgentStopped})
	}
	return changes
}

// withdraw withdraws an agent, unless a new line has replaced it.
func (set *agentSet) withdraw(one *configuredAgent) {
	if slices.ContainsFunc(set.all, func(other *configuredAgent) bool { return other.ref == one.ref }) {
		return
	}
	ctx, cancel := context.WithTimeout(set.life, startFor)
	defer cancel()
	end := set.node.Client().Unpublish
	if one.own != nil {
		end = set.node.Client().EndHosting
	}
	if _, err := end(ctx, one.ref); err != nil {
		set.log.Warn("an agent that is not in the configuration any more was not withdrawn", "agent", one.name, "err", err)
	}
}

// pinsOf returns the file of the approved tools of an agent of the configuration.
func pinsOf(dir string, s expose.Spec) string {
	sum := sha256.Sum256([]byte(s.Target + "\x00" + s.Name))
	return filepath.Join(dir, "approvals", hex.EncodeToString(sum[:8])+".json")
}

// start publishes the agent of a line. remote is whether it is at a URL, which may be unreachable for a while.
func (set *agentSet) start(ctx context.Context, line string) (remote bool, err error) {
	s, err := expose.ParseLine(line)
	if err != nil {
		return false, err
	}
	remote = strings.Contains(s.Target, "://")
	if s.Approvals == "" && set.dir != "" && strings.HasPrefix(s.Target, "mcp:") {
		s.Approvals = pinsOf(set.dir, s)
	}
	one := &configuredAgent{line: line}
	life, stop := context.WithCancel(set.life)
	one.stop = stop
	if err := set.offer(ctx, life, one, s); err != nil {
		one.close()
		return remote, err
	}
	set.all = append(set.all, one)
	return remote, nil
}

// offer opens and publishes one, and keeps it current until life ends.
func (set *agentSet) offer(ctx, life context.Context, one *configuredAgent, s expose.Spec) (err error) {
	// The line of the configuration names all callers: those of an earlier start end.
	ctx, life = publication.WithCallers(ctx, append([]string{}, s.For...)), publication.WithCallers(life, append([]string{}, s.For...))
	if one.x, err = expose.Open(ctx, s, set.bridges, set.log); err != nil {
		return err
	}
	x := one.x
	for _, w := range x.Warnings {
		set.log.Warn("what could not be taken over", "target", s.Target, "warning", w)
	}
	if one.own, err = set.app.openOwnKey(set.dir, s, x); err != nil {
		return err
	}
	offer := func(ctx context.Context, raw []byte) (*api.Publication, error) {
		if one.own != nil {
			return one.own.offer(ctx, set.node, x, raw, s)
		}
		return set.node.Offer(ctx, raw, x.Thing)
	}
	raw := x.TD
	if x.Thing != nil {
		if raw, err = td.Draft(raw); err != nil {
			return err
		}
	}
	p, err := offer(ctx, raw)
	if err != nil {
		return err
	}
	one.name, one.ref = p.Name, p.Ref
	if x.Changes != nil {
		one.work.Go(func() { reoffer(life, offer, x, s, set.log) })
	}
	if one.own != nil {
		one.work.Go(func() { one.own.renew(life, set.node, x, s, set.log) })
	}
	return nil
}

// reoffer publishes an agent again after each change.
func reoffer(ctx context.Context, offer func(context.Context, []byte) (*api.Publication, error), x *expose.Agent, s expose.Spec, log *slog.Logger) {
	for raw := range x.Changes(ctx) {
		draft, err := td.Draft(raw)
		if err == nil {
			_, err = offer(ctx, draft)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("update of changed agent failed", "target", s.Target, "err", err)
		}
	}
}

// close stops the work for an agent and closes it.
func (one *configuredAgent) close() {
	one.stop()
	one.work.Wait()
	if one.x != nil {
		one.x.Close()
	}
}

// close stops the agents and waits for them. Their publications stay.
func (set *agentSet) close() {
	set.end()
	for _, one := range set.all {
		one.close()
	}
}
