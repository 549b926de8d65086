package configs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// file writes a configuration and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lmosd.yaml")
	write(t, path, text)
	return path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// problemsOf loads o, which must fail, and returns what is wrong.
func problemsOf(t *testing.T, o LoadOptions) []Problem {
	t.Helper()
	_, err := Load(o)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("Load gave %v, want an *Error", err)
	}
	return e.Problems
}

func TestLaterLayersWin(t *testing.T) {
	t.Parallel()
	path := file(t, "profile: lean\nhttp:\n  listen: 127.0.0.1:1001\nmesh: {network: from-file}\ninteract: {timeout: 10s}\n")
	write(t, filepath.Join(filepath.Dir(path), "conf.d", "20.yaml"), "http: {listen: \"127.0.0.1:1020\"}\n")
	write(t, filepath.Join(filepath.Dir(path), "conf.d", "10.yaml"), "http: {listen: \"127.0.0.1:1010\"}\n")
	c, err := Load(LoadOptions{
		File: path,
		Env:  []string{"LMOSD_MESH__NETWORK=from-env", "LMOSD_INTERACT__TIMEOUT=20s", "HOME=/home/eva"},
		Flags: map[string][]string{
			"interact.timeout": {"40s"},
			"mesh.bootstrap":   {"/ip4/192.0.2.1/tcp/1/p2p/a", "/ip4/192.0.2.2/tcp/1/p2p/b,/ip4/192.0.2.3/tcp/1/p2p/c"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ key, value, origin string }{
		{"trust.untrusted", "find", "default"},
		{"mesh.dht.mode", "client", "profile lean"},
		{"profile", "lean", path + ":1"},
		{"http.listen", "127.0.0.1:1020", filepath.Join(filepath.Dir(path), "conf.d", "20.yaml") + ":1"},
		{"mesh.network", "from-env", "env LMOSD_MESH__NETWORK"},
		{"interact.timeout", "40s", "flag --interact.timeout"},
		{"mesh.bootstrap", "/ip4/192.0.2.1/tcp/1/p2p/a\n/ip4/192.0.2.2/tcp/1/p2p/b\n/ip4/192.0.2.3/tcp/1/p2p/c",
			"flag --mesh.bootstrap"},
		{"node.data_dir", "/home/eva/.local/share/lmosd", "default"},
	} {
		if got, _ := c.Get(want.key); got != want.value {
			t.Errorf("%s is %q, want %q", want.key, got, want.value)
		}
		if got := c.Origin(want.key); got != want.origin {
			t.Errorf("%s comes from %q, want %q", want.key, got, want.origin)
		}
	}
}

func TestProfileIsChosenByAnyLayerAndNeverWinsOverAKey(t *testing.T) {
	t.Parallel()
	path := file(t, "profile: public\nmesh: {mdns: true}\n")
	for name, test := range map[string]struct {
		o       LoadOptions
		profile string
		mdns    bool
	}{
		"no layer":              {LoadOptions{}, "default", true},
		"file, key beside it":   {LoadOptions{File: path}, "public", true},
		"environment":           {LoadOptions{Env: []string{"LMOSD_PROFILE=public"}}, "public", false},
		"flag over environment": {LoadOptions{Env: []string{"LMOSD_PROFILE=lan"}, Flags: flag("profile", "test")}, "test", false},
		"flag over file":        {LoadOptions{File: path, Flags: flag("profile", "lan")}, "lan", true},
	} {
		c, err := Load(test.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Profile != test.profile || c.Mesh.MDNS != test.mdns {
			t.Errorf("%s: profile %s, mdns %t; want %s, %t", name, c.Profile, c.Mesh.MDNS, test.profile, test.mdns)
		}
	}
}

func flag(key string, values ...string) map[string][]string { return map[string][]string{key: values} }

func TestEveryProfileLoads(t *testing.T) {
	t.Parallel()
	names := findKey(t, "profile").Values
	for _, p := range profiles {
		if !slices.Contains(names, p.name) {
			t.Errorf("the key profile does not list %s", p.name)
		}
		c, err := Load(LoadOptions{Flags: flag("profile", p.name)})
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		for _, k := range p.keys {
			if got, _ := c.Get(k[0]); got != strings.Join(k[1:], "\n") {
				t.Errorf("%s: %s is %q, want %q", p.name, k[0], got, k[1:])
			}
		}
	}
	if len(names) != len(profiles) {
		t.Errorf("the key profile lists %v, there are %d profiles", names, len(profiles))
	}
}

func findKey(t *testing.T, name string) Key {
	t.Helper()
	for _, k := range Keys() {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("no key %s", name)
	return Key{}
}

func TestTraits(t *testing.T) {
	t.Parallel()
	for profile, check := range map[string]func(Traits) bool{
		"default": func(t Traits) bool {
			return t == Traits{ConnsPerIP: 64, ConnRate: 5, GossipDegree: 5, Loopback: true, Relay: true, AutoNAT: true, PortMap: true}
		},
		"lan": func(t Traits) bool { t.PrivateRelays = !t.PrivateRelays; return t == defaultTraits },
		"federation": func(t Traits) bool {
			return t.Relay && t.PrivateRelays && !t.Diversity && !t.Loopback && !t.PortMap && t.AutoNAT && t.ConnsPerIP == 64
		},
		"public": func(t Traits) bool {
			return t.Relay && !t.PrivateRelays && t.Diversity && t.AutoNAT && t.PortMap && t.Internet && !t.Loopback && t.ConnsPerIP == 8
		},
		"lean": func(t Traits) bool { return t.GossipDegree == 4 && t.NoNoise && !t.AutoNAT && !t.PortMap },
		"test": func(t Traits) bool { return !t.Relay && !t.AutoNAT && !t.PortMap && t.Loopback },
	} {
		c := Default()
		c.Profile = profile
		if got := c.Traits(); !check(got) {
			t.Errorf("%s has %+v", profile, got)
		}
	}
}

func TestUnknownKeyHasPositionAndSuggestion(t *testing.T) {
	t.Parallel()
	path := file(t, "http:\n  lissten: 127.0.0.1:4668\n")
	p := problemsOf(t, LoadOptions{File: path})[0]
	want := Problem{Code: interact.ConfigUnknown, Where: path + ":2:3", Key: "http.lissten", Reason: `unknown key "lissten"`,
		Hint: `did you mean "listen"?`, Source: "    1 | http:\n>   2 |   lissten: 127.0.0.1:4668\n      |   ^"}
	if d := cmp.Diff(want, p); d != "" {
		t.Error(d)
	}
}

func TestEveryProblemIsReported(t *testing.T) {
	t.Parallel()
	path := file(t, "nope: 1\nmesh: {limits: {peers: {low: 9, high: 3}}}\nhttp: {auth: tokn}\n")
	o := LoadOptions{File: path, Env: []string{"LMOSD_MESH__BOOTSTRAPS=x"}, Flags: flag("bogus", "1")}
	var keys []string
	for _, p := range problemsOf(t, o) {
		keys = append(keys, p.Key)
		if p.Hint == "" || p.Where == "" {
			t.Errorf("%+v has no hint or no place", p)
		}
	}
	want := []string{"nope", "mesh.bootstraps", "bogus", "http.auth", "mesh.limits.peers.low"}
	if !slices.Equal(keys, want) {
		t.Errorf("got %v, want %v", keys, want)
	}
	_, err := Load(o)
	if e := interact.AsError(err); e.Code != interact.ConfigUnknown || !strings.Contains(e.Error(), "(and 4 more)") {
		t.Errorf("the error is %v %q", e.Code, e.Error())
	}
}

// wrongFiles has a file, the code, the place and a word of the message for each way to be wrong.
var wrongFiles = []struct {
	name, text string
	code       interact.Code
	at, says   string
}{
	{"a key of another section", "network: lmos\n", interact.ConfigUnknown, ":1:1", "network"},
	{"a key with dots", "http.listen: 127.0.0.1:1\n", interact.ConfigUnknown, ":1:1", "http.listen"},
	{"a number as key", "7: x\n", interact.ConfigUnknown, ":1:1", `"7"`},
	{"a list where a section is", "http: [a]\n", interact.ConfigInvalid, ":1:7", "mapping of the keys of http"},
	{"a string where a section is", "mesh: x\n", interact.ConfigInvalid, ":1:7", "got a string"},
	{"a list at the top", "- a\n", interact.ConfigInvalid, ":1:1", "mapping of keys"},
	{"a section where a value is", "profile: {a: b}\n", interact.ConfigInvalid, ":1:", "got a mapping"},
	{"a number where a string is", "mesh: {network: 5}\n", interact.ConfigInvalid, ":1:17", "expected a string"},
	{"a string where a bool is", "mesh: {mdns: \"true\"}\n", interact.ConfigInvalid, ":1:14", "expected a bool"},
	{"yes where a bool is", "mesh: {mdns: yes}\n", interact.ConfigInvalid, ":1:14", "expected a bool"},
	{"a fraction where a whole number is", "trust: {rate: {burst: 1.5}}\n", interact.ConfigInvalid, ":1:23", "whole number"},
	{"a string where a list is", "mesh: {bootstrap: /ip4/1.2.3.4}\n", interact.ConfigInvalid, ":1:19", "expected a list"},
	{"a number in a list", "http:\n  hosts:\n    - a\n    - 1\n", interact.ConfigInvalid, ":4:7", "a string in"},
	{"a list where a string is", "profile: [lan]\n", interact.ConfigInvalid, ":1:10", "got a list"},
	{"none of the values", "mesh: {dht: {mode: serve}}\n", interact.ConfigInvalid, ":1:20", "expected one of auto, server, client"},
	{"below the minimum", "mesh: {dht: {ttl: 1m}}\n", interact.ConfigInvalid, ":1:19", "the min is 10m"},
	{"above the maximum", "mesh: {dht: {ttl: 25h}}\n", interact.ConfigInvalid, ":1:19", "the max is 24h"},
	{"a duration without unit", "interact: {timeout: 30}\n", interact.ConfigInvalid, ":1:21", "with a unit"},
	{"a size without unit", "mesh: {limits: {memory: 5000000000}}\n", interact.ConfigInvalid, ":1:25", "256MiB"},
	{"a rate without unit", "trust: {rate: {per_peer: 50}}\n", interact.ConfigInvalid, ":1:26", "50/s"},
	{"an unknown version", "apiVersion: lmosd/v2\n", interact.ConfigInvalid, ":1:13", "lmosd/v1"},
	{"an unknown profile", "profile: lam\n", interact.ConfigInvalid, ":1:10", "lan"},
	{"the same key twice", "profile: lan\nprofile: lean\n", interact.ConfigFile, ":2:1", "profile"},
	{"broken syntax", "http: {listen: \n", interact.ConfigFile, ":1:", ""},
	{"an anchor", "http: &a {listen: x}\n", interact.ConfigInvalid, ":1:7", "anchor"},
	{"an alias", "http: &a {}\nmesh: *a\n", interact.ConfigInvalid, "", "anchor"},
	{"a tag", "profile: !!str lan\n", interact.ConfigInvalid, ":1:10", "a tag"},
	{"two documents", "profile: lan\n---\nprofile: lean\n", interact.ConfigInvalid, ":3:", "second"},
	{"deep nesting", "http: " + strings.Repeat("[", 70) + "\n", interact.ConfigFile, "", "nested"},
	{"a huge file", strings.Repeat("# nothing here\n", 20_000), interact.ConfigFile, "", "bytes"},
	{"an inline key", "node: {key: MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v}\n", interact.InlineSecret, ":1:13", "node.key"},
	{"an inline passphrase", "node: {passphrase: hunter2}\n", interact.InlineSecret, ":1:20", "node.passphrase"},
	{"standard error as a passphrase", "node: {passphrase: \"fd:2\"}\n", interact.InlineSecret, ":1:20", "node.passphrase"},
	{"a credential in another folder", "node: {passphrase: \"credential:../x\"}\n", interact.InlineSecret, ":1:20", "node.passphrase"},
	{"a key file without a name", "node: {key: \"file:\"}\n", interact.ConfigInvalid, ":1:13", "has no file name"},
	{"a method without its endpoint", "search: {method: hybrid, embeddings: {url: \"http://a/v1\", model: m}}\n", interact.ConfigInvalid, ":1:18", "search.model"},
	{"an endpoint without a model", "search:\n  embeddings: {url: \"http://a/v1\"}\n", interact.ConfigInvalid, ":2:21", "search.embeddings.model is missing"},
	{"an endpoint that is no URL", "search:\n  model: {url: localhost, model: m}\n", interact.ConfigInvalid, ":2:16", "an http URL"},
	{"a long name", "node: {name: " + strings.Repeat("x", 65) + "}\n", interact.ConfigInvalid, ":1:14", "64"},
	{"a home folder", "node: {data_dir: ~/lmosd}\n", interact.ConfigInvalid, ":1:", "~"},
	{"no multiaddr", "listen: {p2p: [\"0.0.0.0:4667\"]}\n", interact.ConfigInvalid, ":1:15", "multiaddr"},
	{"a bootstrap by an address as DID", "mesh: {bootstrap: [\"did:web:10.0.0.1\"]}\n", interact.ConfigInvalid, ":1:19", "did:web:10.0.0.1"},
	{"a bootstrap by a key", "mesh: {bootstrap: [\"did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp\"]}\n", interact.ConfigInvalid, ":1:19", "did:web or did:webvh"},
	{"a bootstrap without peer", "mesh: {bootstrap: [/ip4/1.2.3.4/tcp/1]}\n", interact.ConfigInvalid, ":1:19", "/p2p/"},
	{"an introduction over http", "mesh: {introductions: [\"http://things.example/td\"]}\n", interact.ConfigInvalid, ":1:23", "expected a did:web or an https URL"},
	{"an origin with a path", "http: {origins: [\"https://app.example/\"]}\n", interact.ConfigInvalid, ":1:17", "a web origin"},
	{"origins with a wildcard", "http: {origins: [\"https://*.example\"]}\n", interact.ConfigInvalid, ":1:17", "a web origin"},
	{"an origin with its default port", "http: {origins: [\"https://app.example:443\"]}\n", interact.ConfigInvalid, ":1:17", "a web origin"},
	{"a certificate without a key", "http: {tls: {cert: a.pem}}\n", interact.ConfigInvalid, ":1:20", "http.tls.key is not"},
	{"a certificate without a listener", "http: {listen: \"\", tls: {cert: a.pem, key: b.pem}}\n", interact.ConfigInvalid, ":1:32", "nothing uses"},
	{"a certificate and a plain URL", "http: {public_url: \"http://x\", tls: {cert: a.pem, key: b.pem}}\n", interact.ConfigInvalid, ":1:20", "over HTTPS"},
	{"any origin", "http: {origins: [\"*\"]}\n", interact.ConfigInvalid, ":1:17", "a web origin"},
	{"keys over http", "a2a: {key_origins: [\"http://keys.example\"]}\n", interact.ConfigInvalid, ":1:20", "an https origin"},
	{"keys at a path", "a2a: {key_origins: [\"https://keys.example/x\"]}\n", interact.ConfigInvalid, ":1:20", "an https origin"},
	{"cards too often", "a2a: {card_refresh: 1ms}\n", interact.ConfigInvalid, ":1:21", "1s"},
	{"an introduction by an address", "mesh: {introductions: [\"did:web:127.0.0.1\"]}\n", interact.ConfigInvalid, ":1:23", "got the address"},
	{"a network with a slash", "mesh: {network: a/b}\n", interact.ConfigInvalid, ":1:17", "network name"},
	{"low above high", "mesh: {limits: {peers: {low: 200}}}\n", interact.ConfigInvalid, ":1:30", "low is 200"},
	{"a retired list", "trust: {deny: [\"did:key:z1\", \"did:key:z2\"]}\n", interact.ConfigUnknown, ":1:9", `{deny: ["did:key:z1", "did:key:z2"], to: "*"}`},
	{"a retired mode", "trust: {policy: allowlist}\n", interact.ConfigUnknown, ":1:9", "trust: {untrusted: none}"},
	{"an unknown level of the audit log", "trust: {audit: {level: loud}}\n", interact.ConfigInvalid, ":1:24", "off, denied, restricted, all"},
	{"no file of the audit log", "trust: {audit: {keep: 0}}\n", interact.ConfigInvalid, ":1:23", "1"},
	{"a receiver without a port", "trust: {audit: {forward: \"syslog+udp://h\"}}\n", interact.ConfigInvalid, ":1:26", "syslog+udp"},
	{"a host name", "http: {listen: \"localhost:4668\"}\n", interact.ConfigInvalid, ":1:16", "localhost"},
	{"no port", "http: {listen: 127.0.0.1}\n", interact.ConfigInvalid, ":1:16", "port"},
	{"a port too high", "http: {listen: \"127.0.0.1:65536\"}\n", interact.ConfigInvalid, ":1:16", "port"},
	{"a port beside another", "listen: {p2p: [/ip4/0.0.0.0/tcp/4667]}\nhttp: {listen: \"127.0.0.1:4667\"}\n", interact.ConfigInvalid, ":2:16", "one port and different addresses"},
	{"TLS without a certificate", "listen: {p2p: [/ip4/0.0.0.0/tcp/443/tls/ws]}\n", interact.ConfigInvalid, ":1:15", "http.tls.cert"},
	{"a range that is none", "mesh: {filter: [10.8.0.1]}\n", interact.ConfigInvalid, ":1:16", "10.8.0.0/16"},
	{"open to the world, on a shared port", "listen: {p2p: [/ip4/0.0.0.0/tcp/443]}\nhttp: {listen: \"0.0.0.0:443\", auth: none}\n", interact.WildcardBind, ":2:37", "auth"},
	{"open to the world", "http: {listen: \"0.0.0.0:1\", auth: none}\n", interact.WildcardBind, ":1:35", "auth"},
	{"plain HTTP", "http: {listen: \"0.0.0.0:1\"}\n", interact.ConfigInvalid, ":1:16", "http.tls.mode: proxy"},
	{"plain HTTP at a plain URL", "http: {listen: \":1\", public_url: \"http://node.example\"}\n", interact.ConfigInvalid, ":1:16", "plain HTTP"},
	{"no host and no token", "http: {listen: \":1\", auth: none}\n", interact.WildcardBind, ":1:28", "auth"},
	{"nothing listens", "http: {listen: \"\", socket: none}\n", interact.ConfigInvalid, ":1:16", "would have no API"},
}

// Each key of an earlier version is an error that prints the lines that replace it: they are valid, wherever the key was set.
func TestRetiredKeys(t *testing.T) {
	t.Parallel()
	const one, two = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", "did:key:z6MkjchhfUsD6mmvni8mCdXHw216Xrm9bQe2mBH1P5RDjVJG"
	seen := map[string]bool{}
	for _, c := range []struct {
		key, text, value string // in YAML, and in a variable or a flag
		says             []string
		rules            int
	}{
		{"trust.policy", "open", "open", []string{"trust: {untrusted: open}"}, 0},
		{"trust.policy", "verified", "verified", []string{"trust: {untrusted: open}"}, 0},
		{"trust.policy", "allowlist", "allowlist", []string{"trust: {untrusted: none}"}, 0},
		{"trust.allow", "[" + one + ", \"" + two + "\"]", one + ", " + two, []string{`allow: ["` + one + `", "` + two + `"]`}, 1},
		{"trust.allow", one, one, []string{`allow: ["` + one + `"]`}, 1},
		{"trust.deny", "\n    - " + one + "\n    - '" + two + "'", one + "," + two, []string{`deny: ["` + one + `", "` + two + `"]`}, 1},
		{"trust.deny", "[]", "", []string{"remove it"}, 0},
		{"trust.deny", "", "", []string{"remove it"}, 0},
	} {
		seen[c.key] = true
		section, name, _ := strings.Cut(c.key, ".")
		flagged, ok := Retired(c.key, c.value)
		if !ok {
			t.Errorf("%s is not retired", c.key)
		}
		inFile := problemsOf(t, LoadOptions{File: file(t, section+":\n  "+name+": "+c.text+"\n")})[0]
		inEnv := problemsOf(t, LoadOptions{Env: []string{"LMOSD_" + strings.ToUpper(section+"__"+name) + "=" + c.value}})[0]
		if inFile.Code != interact.ConfigUnknown || inEnv.Code != interact.ConfigUnknown || inFile.Hint != flagged || inEnv.Hint != flagged {
			t.Errorf("%s: %s: %q in a file, %q in a variable, %q in a flag", c.key, c.text, inFile.Hint, inEnv.Hint, flagged)
		}
		for _, s := range c.says {
			if !strings.Contains(flagged, s) {
				t.Errorf("%s: %s: no %q in %q", c.key, c.text, s, flagged)
			}
		}
		if _, rules, ok := strings.Cut(flagged, "data directory: "); ok != (c.rules > 0) {
			t.Errorf("%s: %s: %q", c.key, c.text, flagged)
		} else if ok {
			b := access.NewBuilder(access.Options{})
			if err := b.AddYAML("policy.yaml", []byte(rules)); err != nil || len(b.Build().Entries()) != c.rules {
				t.Errorf("%s: the access rules %s: %v", c.key, rules, err)
			}
		}
		if _, line, ok := strings.Cut(flagged, "write trust: "); ok {
			section, _, _ := strings.Cut(line, "}")
			if _, err := Load(LoadOptions{File: file(t, "trust: "+section+"}\n")}); err != nil {
				t.Errorf("%s: %s: %v", c.key, section, err)
			}
		}
	}
	for key := range retired {
		if !seen[key] && moved[key] == "" {
			t.Errorf("the retired key %s has no case", key)
		}
	}
}

func TestWrongFile(t *testing.T) {
	t.Parallel()
	for _, test := range wrongFiles {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := file(t, test.text)
			p := problemsOf(t, LoadOptions{File: path})[0]
			if p.Code != test.code || !strings.HasPrefix(p.Where, path+test.at) || !strings.Contains(p.Reason+p.Hint, test.says) {
				t.Errorf("got %s %s: %s (%s); want %s at %s with %q", p.Code, p.Where, p.Reason, p.Hint, test.code, test.at, test.says)
			}
			if p.Hint == "" {
				t.Error("no hint")
			}
		})
	}
}

func TestInlineSecretIsNotShown(t *testing.T) {
	t.Parallel()
	const secret = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v"
	for name, o := range map[string]LoadOptions{
		"file":        {File: file(t, "node:\n  key: "+secret+"\n")},
		"environment": {Env: []string{"LMOSD_NODE__KEY=" + secret}},
		"flag":        {Flags: flag("node.key", secret)},
	} {
		p := problemsOf(t, o)[0]
		if text := p.Where + p.Reason + p.Hint + p.Source; strings.Contains(text, secret) || p.Code != interact.InlineSecret {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestPassphraseSources(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"prompt": true, "fd:0": true, "fd:3": true, "fd:12": true, "credential:lmosd-passphrase": true, "credential:a.b_c": true,
		"": false, "fd:1": false, "fd:2": false, "fd:03": false, "fd:-1": false, "fd:99999": false, "fd:": false, "fd:3 ": false, "credential:": false, "credential:.": false,
		"credential:..": false, "credential:a/b": false, "file:/x": false, "env:X": false, "Prompt": false, "hunter2": false, "prompt\n": false} {
		if got := IsPassphraseSource(text); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestCredentialIsTheKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	load := func(env ...string) *Config {
		t.Helper()
		c, err := Load(LoadOptions{Env: append(env, "HOME=/h", "LMOSD_DATA_DIR=/d")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	check := func(name string, c *Config, want string, credential bool) {
		t.Helper()
		if got, is := c.KeyFile(); got != want || is != credential {
			t.Errorf("%s: got %s, %v", name, got, is)
		}
	}
	env := "CREDENTIALS_DIRECTORY=" + dir
	check("no credentials", load(), "/d/identity.pem", false)
	check("other credentials", load(env), "/d/identity.pem", false)
	if err := os.WriteFile(filepath.Join(dir, "lmosd-identity"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	check("credential", load(env), filepath.Join(dir, "lmosd-identity"), true)
	check("a file by name", load(env, "LMOSD_NODE__KEY=file:/k"), "/k", false)
	check("without the variable", load(), "/d/identity.pem", false)
}

func TestAllowedFiles(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text, key, want string
	}{
		"an empty file":               {"", "profile", "default"},
		"only comments":               {"# nothing\n", "profile", "default"},
		"a section without keys":      {"mesh:\nprofile: lan\n", "profile", "lan"},
		"a list without elements":     {"http:\n  hosts:\n", "http.hosts", ""},
		"a null keeps the default":    {"profile: null\n", "profile", "default"},
		"JSON is YAML":                {`{"profile": "lan", "mesh": {"mdns": false}}`, "mesh.mdns", "false"},
		"a port without quotes":       {"http: {listen: 127.0.0.1:99}\n", "http.listen", "127.0.0.1:99"},
		"an empty listen, socket on":  {"http: {listen: \"\"}\n", "http.listen", ""},
		"wildcard with a certificate": {"http: {listen: \"0.0.0.0:1\", tls: {cert: a.pem, key: b.pem}}\n", "http.listen", "0.0.0.0:1"},
		"one port":                    {"listen: {p2p: [/ip4/0.0.0.0/tcp/443, /ip4/0.0.0.0/tcp/443/tls/ws]}\nhttp: {listen: \"0.0.0.0:443\", tls: {cert: a.pem, key: b.pem}}\n", "http.listen", "0.0.0.0:443"},
		"a certificate of the mesh":   {"listen: {p2p: [/ip4/0.0.0.0/tcp/443/tls/ws]}\nhttp: {listen: \"\", tls: {cert: a.pem, key: b.pem}}\n", "http.listen", ""},
		"peers of an organization":    {"mesh: {bootstrap: [\"did:web:acme.example%3A8443\"]}\n", "mesh.bootstrap", "did:web:acme.example%3A8443"},
		"peers of a domain":           {"mesh: {bootstrap: [/dnsaddr/example.org]}\n", "mesh.bootstrap", "/dnsaddr/example.org"},
		"wildcard behind a proxy":     {"http: {listen: \"0.0.0.0:1\", tls: {mode: proxy}}\n", "http.tls.mode", "proxy"},
		"wildcard at an https URL":    {"http: {listen: \"0.0.0.0:1\", public_url: \"https://node.example\"}\n", "http.listen", "0.0.0.0:1"},
		"wildcard, open directory":    {"http: {listen: \"0.0.0.0:1\", directory_auth: open}\n", "http.listen", "0.0.0.0:1"},
		"a certificate and its key":   {"http: {tls: {cert: a.pem, key: b.pem}}\n", "http.tls.key", "b.pem"},
		"no token on loopback":        {"http: {listen: \"[::1]:1\", auth: none}\n", "http.auth", "none"},
		"a rate per minute":           {"trust: {rate: {per_peer: 30/m}}\n", "trust.rate.per_peer", "30/m"},
		"Windows line ends":           {"mesh:\r\n  network: x\r\n", "mesh.network", "x"},
		"a list element by line":      {"http:\n  hosts:\n    - a.example\n    - b.example\n", "http.hosts", "a.example\nb.example"},
		"the first document is empty": {"---\nprofile: lan\n", "profile", "lan"},
		"a list replaces the default": {"listen: {p2p: [/ip4/127.0.0.1/tcp/0]}\n", "listen.p2p", "/ip4/127.0.0.1/tcp/0"},
	} {
		c, err := Load(LoadOptions{File: file(t, test.text)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, _ := c.Get(test.key); got != test.want {
			t.Errorf("%s: %s is %q, want %q", name, test.key, got, test.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	c, err := Load(LoadOptions{Env: []string{
		"LMOSD_NODE=http://127.0.0.1:1", "LMOSD_TOKEN=t", "LMOSD_CHROME=x", "LMOSD_DATA_DIR=/srv/lmosd", // no keys
		"LMOSD_PORT=tcp://10.0.0.1:4668", "LMOSD_SERVICE_HOST=10.0.0.1", // what Kubernetes sets
		"LMOSD_NODE__NAME=alpha", "LMOSD_HTTP__HOSTS= a.example, b.example ,", "LMOSD_MESH__DHT__TTL=2h",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Node.Name != "alpha" || !slices.Equal(c.HTTP.Hosts, []string{"a.example", "b.example"}) ||
		c.Mesh.DHT.TTL != Duration(2*time.Hour) {
		t.Errorf("got %+v %+v %v", c.Node, c.HTTP, c.Mesh.DHT)
	}
	if got := c.Origin("node.data_dir"); c.Node.DataDir != "/srv/lmosd" || got != "env LMOSD_DATA_DIR" {
		t.Errorf("data_dir is %s from %s", c.Node.DataDir, got)
	}
	p := problemsOf(t, LoadOptions{Env: []string{"LMOSD_HTTP__LISSTEN=x"}})[0]
	if p.Where != "env LMOSD_HTTP__LISSTEN" || p.Hint != `did you mean "LMOSD_HTTP__LISTEN"?` {
		t.Errorf("got %+v", p)
	}
	p = problemsOf(t, LoadOptions{Env: []string{"LMOSD_MESH__MDNS=maybe"}})[0]
	if p.Where != "env LMOSD_MESH__MDNS" || p.Code != interact.ConfigInvalid {
		t.Errorf("got %+v", p)
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "none.yaml")
	p := problemsOf(t, LoadOptions{File: path})[0]
	if p.Code != interact.ConfigFile || len(p.Next) != 1 || p.Next[0].Kind != interact.StepConfig || strings.Count(p.Where+p.Reason, path) != 1 {
		t.Errorf("got %+v", p)
	}
	p = problemsOf(t, LoadOptions{File: filepath.Dir(path)})[0]
	if p.Code != interact.ConfigFile {
		t.Errorf("a folder gave %+v", p)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	c, err := Load(LoadOptions{Flags: flag("node.data_dir", "/d")})
	if err != nil {
		t.Fatal(err)
	}
	keyFile := func() string { path, _ := c.KeyFile(); return path }
	got := []string{keyFile(), c.Socket(), c.CredentialsFile(), c.engine()}
	want := []string{"/d/identity.pem", "/d/lmosd.sock", "/d/credentials.json", "pebble"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	c.Node.Key, c.HTTP.Socket, c.Interact.Credentials, c.Storage.Engine = "file:/k", "none", "/c", "memory"
	got = []string{keyFile(), c.Socket(), c.CredentialsFile(), c.engine()}
	if want = []string{"/k", "", "/c", "memory"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWhereTheFilesAre(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	own := filepath.Join(home, ".config", "lmosd", "lmosd.yaml")
	env := []string{"HOME=" + home}
	if got := DataDir(append(env, "XDG_DATA_HOME=/x")); got != "/x/lmosd" {
		t.Errorf("XDG_DATA_HOME gives %s", got)
	}
	if got := DataDir(append(env, "XDG_DATA_HOME=relative")); got != filepath.Join(home, ".local", "share", "lmosd") {
		t.Errorf("a relative XDG_DATA_HOME gives %s", got)
	}
	if got := File(append(env, "LMOSD_CONFIG=/c.yaml")); got != "/c.yaml" {
		t.Errorf("LMOSD_CONFIG gives %s", got)
	}
	write(t, own, "")
	if got := File(env); got != own {
		t.Errorf("got %s, want %s", got, own)
	}
	if got := ContextsFile([]string{"USERPROFILE=" + home}); got != filepath.Join(filepath.Dir(own), "contexts.yaml") {
		t.Errorf("contexts are in %s", got)
	}
}

// FuzzReadYAML shows that no file stops the program, that every problem has a place in the file, and that a valid one is
// the same after it was written.
func FuzzReadYAML(f *testing.F) {
	for _, test := range wrongFiles {
		f.Add([]byte(test.text))
	}
	f.Add(Describe())
	f.Add([]byte("node:\n  name: |\n    two\n    lines\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		var ps problems
		c := Default()
		c.places = map[string]place{}
		c.apply(readYAML("x.yaml", source, &ps), &ps)
		c.check(&ps)
		for _, p := range ps.list {
			if p.Reason == "" || p.Where == "" || p.Hint == "" {
				t.Fatalf("problem %+v", p)
			}
		}
		if ps.err() == nil {
			again(t, c)
		}
	})
}

// again fails unless c, written as a file and read, is c.
func again(t *testing.T, c *Config) {
	t.Helper()
	var ps problems
	d := Default()
	d.places = map[string]place{}
	d.apply(readYAML("again.yaml", c.YAML(true), &ps), &ps)
	if err := ps.err(); err != nil {
		t.Fatalf("%v in\n%s", err, c.YAML(true))
	}
	if diff := cmp.Diff(c, d, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Fatal(diff)
	}
}

// The key of an endpoint is read from its file, which others must not be able to read.
func TestKeyOfAnEndpoint(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	c := Default()
	c.Search.Embeddings = Endpoint{URL: "http://127.0.0.1:1/v1", Model: "m", KeyFile: path}
	for _, step := range []struct {
		name, text string
		mode       os.FileMode
		code       interact.Code
	}{
		{"missing", "", 0, interact.ConfigInvalid},
		{"open to others", "sesame", 0o644, interact.KeyPermissions},
		{"too large", strings.Repeat("x", maxKey+1), 0o600, interact.ConfigInvalid},
		{"good", " sesame\n", 0o600, 0},
	} {
		if step.mode != 0 {
			if err := errors.Join(os.WriteFile(path, []byte(step.text), step.mode), os.Chmod(path, step.mode)); err != nil {
				t.Fatal(err)
			}
		}
		o, err := c.Options()
		switch e := interact.AsError(err); {
		case step.code == 0 && (err != nil || o.Search.Embeddings.Key != "sesame" || o.Search.Embeddings.Model != "m"):
			t.Errorf("%s: got %+v, %v", step.name, o.Search, err)
		case step.code != 0 && (e == nil || e.Code != step.code || strings.Contains(err.Error(), "sesame")):
			t.Errorf("%s: got %v", step.name, err)
		}
	}
}
