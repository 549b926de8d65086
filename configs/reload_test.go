package configs

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/api"
)

// otherValues are values of keys that differ from the default and are valid with the others, where another value of the kind is not.
var otherValues = map[string][]string{
	"apiVersion":                nil, // there is one version
	"profile":                   {"lan"},
	"node.key":                  {"file:/k.pem"},
	"node.passphrase":           {"prompt"},
	"listen.p2p":                {"/ip4/127.0.0.1/tcp/5000"},
	"listen.announce":           {"/ip4/192.0.2.1/tcp/5000"},
	"listen.no_announce":        {"/ip4/192.0.2.1"},
	"mesh.bootstrap":            {"did:web:example.org"},
	"mesh.filter":               {"10.0.0.0/8"},
	"mesh.introductions":        {"did:web:things.example"},
	"mesh.limits.peers.low":     {"95"},
	"mesh.limits.peers.high":    {"129"},
	"search.embeddings.url":     {"http://127.0.0.1:1/v1"},
	"search.model.url":          {"http://127.0.0.1:1/v1"},
	"trust.audit.forward":       {"syslog+udp://127.0.0.1:514"},
	"http.listen":               {"127.0.0.1:5001"},
	"http.oidc":                 {`[{"name": "acme", "issuer": "https://login.acme.example", "audience": "https://node.acme.example"}]`},
	"http.origins":              {"https://app.example"},
	"http.public_url":           {"https://node.example"},
	"http.tls.cert":             {"/c.pem"},
	"http.tls.key":              {"/c.key"},
	"mqtt.listen":               {"127.0.0.1:1883"},
	"coap.listen":               {"127.0.0.1:5683"},
	"a2a.key_origins":           {"https://keys.example"},
	"agents":                    {"exec:cat --name echo"},
	"telemetry.traces.endpoint": {"http://127.0.0.1:4318"},
}

// otherValue returns a valid value of a key that is not its default.
func otherValue(t *testing.T, k Key) []string {
	t.Helper()
	if values, ok := otherValues[k.Name]; ok {
		return values
	}
	for _, v := range k.Values {
		if v != k.Default {
			return []string{v}
		}
	}
	switch k.Type {
	case "bool":
		return []string{map[string]string{"true": "false", "false": "true"}[k.Default]}
	case "int":
		return []string{"17"}
	case "duration":
		return []string{"11m"}
	case "size":
		return []string{"111MiB"}
	case "rate":
		return []string{"3/s"}
	}
	return []string{"other"}
}

// Every key is either applied by a reload, or reported as one that needs a restart.
func TestEveryKeyIsAppliedOrNeedsARestart(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	with := map[string]map[string][]string{ // what a key needs
		"search.embeddings.url": {"search.embeddings.model": {"m"}}, "search.model.url": {"search.model.model": {"m"}},
		"http.tls.cert": {"http.tls.key": {"/c.key"}}, "http.tls.key": {"http.tls.cert": {"/c.pem"}},
		"search.method": {"search.embeddings.url": {"http://127.0.0.1:1/v1"}, "search.embeddings.model": {"m"}},
	}
	applied := 0
	for _, k := range Keys() {
		flags := map[string][]string{"node.data_dir": {"/d"}}
		start, err := Load(LoadOptions{Flags: flags})
		if err != nil {
			t.Fatal(err)
		}
		other := otherValue(t, k)
		if other == nil {
			continue
		}
		for key, values := range with[k.Name] {
			flags[key] = values
		}
		flags[k.Name] = other
		next, err := Load(LoadOptions{Flags: flags})
		if err != nil {
			t.Errorf("%s = %q: %v", k.Name, other, err)
			continue
		}
		r := NewRunning(start)
		live, restart := r.Changes(next)
		merged := r.Merged(next)
		r.Adopt(merged, next)
		before, _ := start.Get(k.Name)
		now, _ := r.Config().Get(k.Name)
		want, _ := next.Get(k.Name)
		if k.Reloadable() {
			applied++
			if !slices.Contains(live, k.Name) || slices.Contains(restart, k.Name) || now != want {
				t.Errorf("%s: applied are %q, restart need %q, the value is %q", k.Name, live, restart, now)
			}
			a, b := start.Live(live, log), merged.Live(live, log)
			same := reflect.DeepEqual(a.Hosts, b.Hosts) && reflect.DeepEqual(a.Origins, b.Origins) && reflect.DeepEqual(a.Rules, b.Rules) && b.Verify == nil
			if byProgram := k.Name == "agents" || k.Name == "telemetry.log.level"; same != byProgram {
				t.Errorf("%s: the settings of the running node are the same: %t", k.Name, same)
			}
		} else if !slices.Contains(restart, k.Name) || slices.Contains(live, k.Name) || now != before {
			t.Errorf("%s: applied are %q, restart need %q, the value is %q", k.Name, live, restart, now)
		}
		i := slices.IndexFunc(r.Items(), func(i api.ConfigItem) bool { return i.Key == k.Name })
		if item := r.Items()[i]; item.Reloadable != k.Reloadable() || (item.Waiting == nil) != k.Reloadable() {
			t.Errorf("%s: %+v", k.Name, item)
		}
	}
	if applied != len(reloadable) {
		t.Errorf("%d keys were applied, the table has %d", applied, len(reloadable))
	}
}
