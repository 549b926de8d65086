package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
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
	app      *app
	node     *node.Node
	dir      string // the data directory
	bridges  []bridge.Bridge
	log      *slog.Logger
	running  context.Context // ends when the node begins to stop, and with it the starts of agents
	life     context.Context // ends with close
	end      context.CancelFunc
	lines    []string // of the configuration that was read last
	all      []*configuredAgent
	retiring sync.WaitGroup
}

// A configuredAgent runs one line of the key agents. It is the [interact.Thing] of its agent, so that calls end before the agent is closed.
type configuredAgent struct {
	line  string
	place string // the line of the configuration that it stands for: another one, if the agent of that did not start
	name  string
	ref   string
	spec  expose.Spec
	x     *expose.Agent
	thing interact.Thing // of x
	own   *ownKey        // nil: the node owns the agent
	calls interact.Gate
	next  *configuredAgent // has replaced it; written before calls is closed
	stop  context.CancelFunc
	work  sync.WaitGroup // until stop

	publishing sync.Mutex // held during a publication, and by a reload that may replace the agent; owns what follows
	retired    bool
	raw        []byte // published last
}

// offerAgents publishes the agents of the configuration. If a web server is unreachable, the node starts with its last publication.
func (a *app) offerAgents(ctx context.Context, n *node.Node, c *configs.Config, log *slog.Logger) (*agentSet, error) {
	secrets, err := credentials.Load(c.CredentialsFile())
	if err != nil {
		return nil, err
	}
	set := &agentSet{app: a, node: n, dir: c.Node.DataDir, bridges: bridges(secrets, mcp.Options{}, imported(c), log), log: log, running: ctx, lines: c.Agents}
	set.life, set.end = context.WithCancel(context.WithoutCancel(ctx))
	for i, line := range c.Agents {
		switch _, remote, err := set.start(ctx, line); {
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

// Limits of a reload.
const (
	startFor  = 30 * time.Second // the start of an agent
	retireFor = 10 * time.Minute // the calls that run when their agent is replaced or withdrawn
)

// A failedLine is a line of the configuration whose agent did not start.
type failedLine struct {
	line  string
	agent *configuredAgent
	err   error
	kept  *configuredAgent // the agent of the line before, which continues; nil: there was none
}

// change makes the agents those of lines. The agents whose lines are gone serve until those of the new lines have started, but publish nothing
// meanwhile: they must not publish again after their replacements, perhaps for other callers. If the agent of a changed line does not start, the
// one before continues as it was, and the next change tries the line again.
func (set *agentSet) change(lines []string) (changes []api.ReloadedAgent) {
	var gone []*configuredAgent
	set.all = slices.DeleteFunc(slices.Clone(set.all), func(one *configuredAgent) bool {
		if slices.Contains(lines, one.line) {
			one.place = one.line
			return false
		}
		one.publishing.Lock()
		gone = append(gone, one)
		return true
	})
	stayed := len(set.all)
	var failed []*failedLine
	for _, line := range lines {
		if slices.ContainsFunc(set.all, func(one *configuredAgent) bool { return one.line == line }) {
			continue
		}
		ctx, cancel := context.WithTimeout(set.running, startFor)
		one, _, err := set.start(ctx, line)
		cancel()
		if err != nil {
			failed = append(failed, &failedLine{line: line, agent: one, err: err})
			continue
		}
		changes = append(changes, api.ReloadedAgent{Name: one.name, State: api.AgentStarted})
	}
	started := set.all[stayed:]
	gone = slices.DeleteFunc(gone, func(one *configuredAgent) bool {
		i := slices.IndexFunc(started, func(other *configuredAgent) bool { return other.ref == one.ref })
		if i < 0 {
			return false
		}
		one.next = started[i]
		set.retire(one)
		changes = append(changes, api.ReloadedAgent{Name: one.name, State: api.AgentStopped})
		return true
	})
	gone = set.pair(failed, gone, lines)
	for _, f := range failed {
		change := api.ReloadedAgent{Name: configs.Program(f.line), State: api.AgentFailed, Error: f.err.Error()}
		if f.kept != nil {
			change.Name, change.State = f.kept.name, api.AgentKept
			set.keep(f)
		}
		set.log.Warn("an agent of the configuration cannot be offered now", "agent", change.Name, "kept", f.kept != nil, "err", f.err)
		changes = append(changes, change)
	}
	for _, one := range gone {
		if set.running.Err() != nil { // the node stops: nothing replaces it
			one.publishing.Unlock()
			set.all = append(set.all, one)
			continue
		}
		set.withdraw(one)
		set.retire(one)
		changes = append(changes, api.ReloadedAgent{Name: one.name, State: api.AgentStopped})
	}
	set.lines = lines
	return changes
}

// pair sets the agents that continue in place of failed ones, and returns the rest of gone: those that continue already, those with the same
// names, and those whose lines were at the same place of the configuration.
func (set *agentSet) pair(failed []*failedLine, gone []*configuredAgent, lines []string) []*configuredAgent {
	for _, isBefore := range []func(one *configuredAgent, f *failedLine) bool{
		func(one *configuredAgent, f *failedLine) bool { return one.place == f.line },
		func(one *configuredAgent, f *failedLine) bool {
			s := f.agent.spec
			return s.Name == one.name || s.Name == "" && one.spec.Name == "" && s.Target == one.spec.Target
		},
		func(one *configuredAgent, f *failedLine) bool {
			return lineBefore(set.lines, one.place, lines) == lineBefore(lines, f.line, set.lines)
		},
	} {
		for _, f := range failed {
			if i := slices.IndexFunc(gone, func(one *configuredAgent) bool { return f.kept == nil && isBefore(one, f) }); i >= 0 {
				f.kept = gone[i]
				gone = slices.Delete(gone, i, i+1)
			}
		}
	}
	return gone
}

// lineBefore returns the last line before one of lines that others have, too; "" if there is none.
func lineBefore(lines []string, line string, others []string) string {
	for _, l := range slices.Backward(lines[:max(slices.Index(lines, line), 0)]) {
		if slices.Contains(others, l) {
			return l
		}
	}
	return ""
}

// keep continues the agent before a failed one.
func (set *agentSet) keep(f *failedLine) {
	one := f.kept
	defer one.publishing.Unlock()
	one.place = f.line
	set.all = append(set.all, one)
	if f.agent.x != nil { // its publication may have failed halfway
		set.publishAgain(one)
	}
}

// publishAgain publishes an agent as it was published last. The caller holds publishing.
func (set *agentSet) publishAgain(one *configuredAgent) {
	ctx, cancel := context.WithTimeout(set.life, startFor)
	defer cancel()
	if _, err := set.publishLocked(ctx, one, one.raw); err != nil {
		set.log.Warn("an agent of the configuration was not published again", "agent", one.name, "err", err)
	}
}

// retire closes an agent when its calls have ended. The caller holds publishing, which ends.
func (set *agentSet) retire(one *configuredAgent) {
	one.retired = true
	one.publishing.Unlock()
	one.stop()
	set.retiring.Go(func() {
		limit := time.NewTimer(retireFor)
		defer limit.Stop()
		select {
		case <-one.calls.Close():
		case <-limit.C:
		case <-set.life.Done():
		}
		one.close()
	})
}

// withdraw withdraws an agent, unless another line has one with its name, which is published again.
func (set *agentSet) withdraw(one *configuredAgent) {
	if i := slices.IndexFunc(set.all, func(other *configuredAgent) bool { return other.ref == one.ref }); i >= 0 {
		other := set.all[i]
		one.next = other
		other.publishing.Lock()
		defer other.publishing.Unlock()
		set.publishAgain(other)
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

// start publishes the agent of a line; with an error, one is closed. remote is whether it is at a URL, which may be unreachable for a while.
func (set *agentSet) start(ctx context.Context, line string) (one *configuredAgent, remote bool, err error) {
	one = &configuredAgent{line: line, place: line}
	if one.spec, err = expose.ParseLine(line); err != nil {
		return one, false, err
	}
	s := &one.spec
	remote = strings.Contains(s.Target, "://")
	if s.Approvals == "" && set.dir != "" && strings.HasPrefix(s.Target, "mcp:") {
		s.Approvals = pinsOf(set.dir, *s)
	}
	life, stop := context.WithCancel(set.life)
	one.stop = stop
	if err := set.offer(ctx, life, one); err != nil {
		one.close()
		return one, remote, err
	}
	set.all = append(set.all, one)
	return one, remote, nil
}

// offer opens and publishes one, and keeps it current until life ends.
func (set *agentSet) offer(ctx, life context.Context, one *configuredAgent) (err error) {
	s := one.spec
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
	raw := x.TD
	if x.Thing != nil {
		if raw, err = td.Draft(raw); err != nil {
			return err
		}
		one.thing, x.Thing = x.Thing, one
	}
	publish := func(ctx context.Context, raw []byte) (*api.Publication, error) {
		one.publishing.Lock()
		defer one.publishing.Unlock()
		if one.retired { // life is about to end
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return set.publishLocked(ctx, one, raw)
	}
	p, err := publish(ctx, raw)
	if err != nil {
		return err
	}
	one.name, one.ref = p.Name, p.Ref
	if x.Changes != nil {
		one.work.Go(func() { reoffer(life, publish, x, s, set.log) })
	}
	if one.own != nil {
		one.work.Go(func() { one.own.renew(life, publish, s, set.log) })
	}
	return nil
}

// publishLocked publishes one with the TD raw. The caller holds publishing.
func (set *agentSet) publishLocked(ctx context.Context, one *configuredAgent, raw []byte) (p *api.Publication, err error) {
	// The line of the configuration names all callers: those of an earlier start end.
	ctx = publication.WithCallers(ctx, append([]string{}, one.spec.For...))
	if one.own != nil {
		p, err = one.own.offer(ctx, set.node, one.x, raw, one.spec)
	} else {
		p, err = set.node.Offer(ctx, raw, one.x.Thing)
	}
	if err == nil {
		one.raw = raw
	}
	return p, err
}

// Do implements [interact.Thing]. A call that comes after the agent was replaced goes to its replacement.
func (one *configuredAgent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		switch {
		case m.Type.Long(): // it has no end of its own
		case one.calls.Enter():
			defer one.calls.Leave()
		case one.next != nil && one.next.thing != nil:
			one.next.Do(ctx, m)(yield)
			return
		}
		one.thing.Do(ctx, m)(yield)
	}
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
	set.retiring.Wait()
}
