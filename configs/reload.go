package configs

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/oidc"
	"github.com/lmosd/lmosd/gateway/tokens"
)

// reloadable are the keys whose changes a running node applies. The others are read at the start only. A change of this table needs the code
// that applies the key: [Config.Live], or that of the agents and of the log in the program.
var reloadable = []string{
	"trust.untrusted", "trust.connect", "trust.stale", "trust.policy_file",
	"trust.rate.per_peer", "trust.rate.reads", "trust.rate.burst", "trust.rate.per_thing",
	"http.oidc", "http.hosts", "http.origins",
	"interact.untrusted_deadline", "interact.per_caller", "interact.per_thing", "interact.tasks.untrusted_max_duration",
	"agents", "telemetry.log.level",
}

// Reloadable reports whether a running node applies a change of the key.
func (k Key) Reloadable() bool { return slices.Contains(reloadable, k.Name) }

// A Running is the configuration of a running node. It is safe for concurrent use.
type Running struct {
	mu      sync.Mutex
	now     *Config // with the values in force
	waiting *Config // as it was read last
}

// NewRunning returns the configuration of a node that starts with c.
func NewRunning(c *Config) *Running { return &Running{now: c, waiting: c} }

// Config returns the values in force. They are read-only.
func (r *Running) Config() *Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Changes returns the keys whose values differ between the node and next: those that it applies, and those that need a restart, in the order of
// the file.
func (r *Running) Changes(next *Config) (live, restart []string) {
	now := r.Config()
	for f := range next.fields() {
		before, _ := now.Get(f.key)
		switch after, _ := next.Get(f.key); {
		case before == after:
		case slices.Contains(reloadable, f.key):
			live = append(live, f.key)
		default:
			restart = append(restart, f.key)
		}
	}
	return live, restart
}

// Merged returns the configuration in force with the reloadable values of next.
func (r *Running) Merged(next *Config) *Config {
	now := r.Config().clone()
	for _, key := range reloadable {
		to, _ := now.field(key)
		from, _ := next.field(key)
		to.value.Set(from.value)
		now.places[key] = next.places[key]
		if next.places[key].text == "" {
			delete(now.places, key)
		}
	}
	return now
}

// Adopt records that a configuration of Merged is in force, and that the other values of next wait for a restart.
func (r *Running) Adopt(merged, next *Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.waiting = merged, next
}

// clone returns a copy of c. Lists are shared, because they are replaced as a whole.
func (c *Config) clone() *Config {
	next := *c
	next.places = map[string]place{}
	for key, at := range c.places {
		next.places[key] = at
	}
	return &next
}

// Live returns the settings of c for a running node. The changed keys are those of Changes.
func (c *Config) Live(changed []string, log *slog.Logger) gateway.Live {
	l := gateway.Live{Hosts: c.HTTP.Hosts, Origins: c.HTTP.Origins, Rules: c.rules()}
	if slices.Contains(changed, "http.oidc") {
		l.Verify = func() (tokens.Verifier, error) { return oidc.Verifiers(c.HTTP.OIDC, log) }
	}
	return l
}

// Items returns every key as [Config.Items] does, with the values that wait for a restart.
func (r *Running) Items() []api.ConfigItem {
	r.mu.Lock()
	now, waiting := r.now, r.waiting
	r.mu.Unlock()
	items := now.Items()
	for i := range items {
		key := items[i].Key
		items[i].Reloadable = slices.Contains(reloadable, key)
		before, _ := now.Get(key)
		if after, _ := waiting.Get(key); before != after {
			f, _ := waiting.field(key)
			items[i].Waiting = f.shown()
		}
	}
	return items
}

// Program returns the part of a line of the key agents that names what runs, without its arguments, which may have secrets.
func Program(line string) string { return strings.TrimSuffix(agentName(line), " …") }
