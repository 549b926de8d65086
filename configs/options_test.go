package configs

import (
	"testing"

	"github.com/lmosd/lmosd/audit"
)

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
