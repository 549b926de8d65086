package configs

import (
	"strings"
	"testing"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source, want, keys, rules string
	}{
		"nothing to do": {"# a\nhttp: {auth: token}\n", "# a\nhttp: {auth: token}\n", "", ""},
		"moved keys": {"# head\ninteract:\n  timeout: 5s # t\n  tasks:\n    run: 2h # r\n    keep: 1m\na2a: {recheck: 5m}\nhttp: {directory: open}\n",
			"# head\ninteract:\n  timeout: 5s # t\n  tasks:\n    max_duration: 2h # r\n    retention: 1m\na2a: {card_refresh: 5m}\nhttp: {directory_auth: open}\n",
			"a2a.recheck http.directory interact.tasks.keep interact.tasks.run", ""},
		"policy": {"trust:\n  policy: allowlist\n  allow: [did:key:z6MkA]\n  deny:\n  - did:key:z6MkB\n  stale: read # s\n", "trust:\n  stale: read # s\n  untrusted: none\n",
			"trust.allow trust.deny trust.policy", "{allow: [\"did:key:z6MkA\"], to: [connect, store, find, call]} {deny: [\"did:key:z6MkB\"], to: [\"*\"]}"},
		"both names": {"a2a: {recheck: 5m, card_refresh: 6m}\n", "a2a: {card_refresh: 6m}\n", "a2a.recheck", ""},
	} {
		m, err := Migrate("f", []byte(c.source))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var rules []string
		for _, r := range m.Rules {
			rules = append(rules, r.Text())
		}
		if string(m.Text) != c.want || strings.Join(m.Keys, " ") != c.keys || len(rules) > 0 != (c.rules != "") {
			t.Errorf("%s: %q %q\n%s\nwant\n%s", name, m.Keys, rules, m.Text, c.want)
		}
	}
	if m, err := Migrate("f", []byte("a2a: {recheck: 5m}\nhtp: 1\n")); err == nil || !strings.Contains(err.Error(), "unknown key") {
		t.Errorf("another error: %+v %v", m, err)
	}
}
