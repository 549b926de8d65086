package configs

import (
	"testing"

	"github.com/lmosd/lmosd/audit"
)

// The router is asked for a port by nodes of other networks only.
func TestPortMapOptions(t *testing.T) {
	t.Parallel()
	const outside, inside = "mesh: {bootstrap: [/dns/node.example/tcp/4667/p2p/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5]}\n",
		"mesh: {bootstrap: [/ip4/192.168.1.4/tcp/4667/p2p/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5]}\n"
	for text, want := range map[string]bool{"profile: default\n": false, "profile: default\n" + inside: false, "profile: default\n" + outside: true,
		"profile: lan\n" + outside: true, "profile: federation\n" + outside: false, "profile: test\n" + outside: false, "profile: public\n": true} {
		c, err := Load(LoadOptions{File: file(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.Options()
		if err != nil || o.NAT.PortMap != want {
			t.Errorf("%q: %v, %v", text, o.NAT.PortMap, err)
		}
	}
}

func TestAuditOptions(t *testing.T) {
	t.Parallel()
	path := file(t, "profile: public\nnode: {data_dir: /d}\ntrust: {audit: {keep: 3, forward: \"syslog+tcp://[::1]:601\"}}\n")
	c, err := Load(LoadOptions{File: path})
	if err != nil {
		t.Fatal(err)
	}
	got := c.Audit()
	if got.Dir != "/d/audit" || got.Level != audit.Restricted || got.Keep != 3 || got.Forward != (audit.Target{Syslog: true, Network: "tcp", Address: "[::1]:601"}) {
		t.Errorf("got %+v", got)
	}
}
