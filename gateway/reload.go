package gateway

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
)

// Live are the settings that a running node replaces when its configuration is read again.
type Live struct {
	// Hosts and Origins are those of [Operation].
	Hosts, Origins []string
	// Rules are the settings that [policy.Policy.Change] takes.
	Rules policy.Rules
	// Verify replaces the identity providers; nil: they stay. It may return nil, for a configuration without any.
	Verify func() (tokens.Verifier, error)
}

// A Reloader reads the configuration of the node again. It calls apply once, with the settings that the running node replaces, after it has
// checked all of it; with an error of apply, or of the configuration, nothing has changed. One call runs at a time.
type Reloader func(ctx context.Context, apply func(Live) error) (*api.ConfigReload, error)

// webNames are the names and origins of requests that [guard] accepts. They are read-only.
type webNames struct {
	hosts   map[string]bool
	origins []string
}

func newWebNames(hosts, origins []string) *webNames {
	n := &webNames{map[string]bool{"localhost": true}, origins}
	for _, h := range hosts {
		n.hosts[strings.ToLower(hostName(h))] = true
	}
	return n
}

// apply puts settings in force. With an error, none are: what may fail is read and compiled once, and in force together.
func (g *Gateway) apply(l Live) error {
	var v tokens.Verifier
	var preview func(on bool)
	replaces := l.Verify != nil && g.o.Tokens != nil
	if replaces {
		var err error
		if v, err = l.Verify(); err != nil {
			return err
		}
		preview = func(on bool) { g.o.Tokens.Preview(v, on) }
	}
	if p := g.o.Policy; p != nil {
		if err := p.Change(l.Rules, preview); err != nil {
			if v != nil {
				v.Close()
			}
			return err
		}
	}
	if replaces {
		g.o.Tokens.Accept(v)
	}
	g.guard.names.Store(newWebNames(g.o.hosts(l.Hosts), l.Origins))
	return nil
}

// reloadConfig reads the configuration of the node again.
func (g *Gateway) reloadConfig(w http.ResponseWriter, r *http.Request) error {
	if _, err := tdd.Params(r); err != nil {
		return err
	}
	if g.o.Reload == nil {
		return interact.Errorf(interact.NoAffordance, "", "this node was started without a configuration").Then(interact.StepStatus)
	}
	done, err := g.o.Reload(context.WithoutCancel(r.Context()), g.apply) // half of it would be worse than an answer that nothing reads
	if err != nil {
		g.log.Warn("configuration not reloaded, the one before stays in force", "err", err)
		return err
	}
	done.APIVersion, done.Kind = api.APIVersion, "ConfigReload"
	done.Applied, done.Restart, done.Agents = list(done.Applied), list(done.Restart), list(done.Agents)
	g.restart.set(done.Restart, time.Now())
	g.journal.Add(api.NodeEvent{Kind: api.EventConfigReloaded, Text: reloadText(done)})
	g.log.Info("configuration reloaded", "applied", done.Applied, "restart", done.Restart)
	return writeJSON(w, http.StatusOK, done)
}

// reloadText returns the text of the event of a reload.
func reloadText(r *api.ConfigReload) string {
	text := "no key has changed"
	if len(r.Applied) > 0 {
		text = "applied: " + strings.Join(r.Applied, ", ")
	}
	if len(r.Restart) > 0 {
		text += "; after a restart: " + strings.Join(r.Restart, ", ")
	}
	return text
}

type baseStatus interface{ Status }

// restartNeeded is a [Status] with a warning about the keys whose changes wait for a restart.
type restartNeeded struct {
	baseStatus
	warning atomic.Pointer[api.Warning]
}

// set replaces the keys. The time is that of the first change that waits.
func (s *restartNeeded) set(keys []string, now time.Time) {
	if len(keys) == 0 {
		s.warning.Store(nil)
		return
	}
	w := api.RestartNeeded.Warning("restart the node when that suits", "changed keys of the configuration wait for a restart: %s", strings.Join(keys, ", "))
	w.Since = now
	w.Since = cmp.Or(s.warning.Load(), &w).Since
	s.warning.Store(&w)
}

// Status implements [Status].
func (s *restartNeeded) Status(ctx context.Context) *api.Status {
	now := s.baseStatus.Status(ctx)
	if w := s.warning.Load(); w != nil {
		now.Warnings = append(now.Warnings, *w)
	}
	return now
}
