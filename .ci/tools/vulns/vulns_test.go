package main

import (
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func tables(t *testing.T) ([]entry, exceptions) {
	t.Helper()
	all, err := parseTable(tableText)
	if err != nil || len(all) < 100 {
		t.Fatal(len(all), err)
	}
	except, err := parseExceptions(exceptionText)
	if err != nil {
		t.Fatal(err)
	}
	return all, except
}

// Each build was affected once, or would be by going back to a version before the fix.
func TestAVersionThatIsAffectedIsFound(t *testing.T) {
	all, except := tables(t)
	for _, c := range []struct{ module, version, pkg, want string }{
		{"github.com/antchfx/xpath", "v1.3.4", "github.com/antchfx/xpath", "GO-2026-4526"},
		{"github.com/antchfx/xpath", "v1.3.6", "github.com/antchfx/xpath", ""},
		{"github.com/eclipse/paho.mqtt.golang", "v1.5.0", "github.com/eclipse/paho.mqtt.golang/packets", "GO-2025-4173"},
		{"github.com/eclipse/paho.mqtt.golang", "v1.5.1", "github.com/eclipse/paho.mqtt.golang/packets", ""},
		{"github.com/getkin/kin-openapi", "v0.133.0", "github.com/getkin/kin-openapi/openapi3filter", "GO-2026-6095 GO-2026-6112"},
		{"github.com/getkin/kin-openapi", "v0.133.0", "github.com/getkin/kin-openapi/openapi3", ""},   // what is affected is not built
		{"github.com/libp2p/go-libp2p-kad-dht", "v0.42.2", "github.com/libp2p/go-libp2p-kad-dht", ""}, // excepted
	} {
		b := build{dir: ".", modules: map[string]string{c.module: c.version}, packages: map[string]bool{c.pkg: true}}
		var got []string
		for _, p := range b.affected(all, except) {
			got = append(got, strings.TrimSuffix(strings.Fields(p)[1], ":"))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %s with %s: %q, want %q", c.module, c.version, c.pkg, got, c.want)
		}
	}
	dht := build{modules: map[string]string{"github.com/libp2p/go-libp2p-kad-dht": "v0.42.2"},
		packages: map[string]bool{"github.com/libp2p/go-libp2p-kad-dht/records": true}}
	if got := dht.affected(all, nil); len(got) != 1 || !strings.Contains(got[0], "GO-2024-3218") || !strings.Contains(got[0], "none yet") {
		t.Errorf("without its exception: %q", got)
	}
}

func TestRangesOfVersions(t *testing.T) {
	all, err := parseTable("GO-1\tx.org/a\t..v1.2.0,v1.3.0..v1.3.2\t\nGO-2\tx.org/b\tv2.0.0..\tx.org/b/c,x.org/b/d\n")
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]bool{"v1.1.9": true, "v1.2.0": false, "v1.3.0": true, "v1.3.2": false, "v1.2.0-rc.1": true,
		"v0.0.0-20230101000000-abcdefabcdef": true} {
		if all[0].holds(version) != want {
			t.Errorf("%s: %v", version, !want)
		}
	}
	if all[1].holds("v1.9.0") || !all[1].holds("v9.0.0") || all[1].built(map[string]bool{"x.org/b": true}) ||
		!all[1].built(map[string]bool{"x.org/b/d": true}) || all[0].built(map[string]bool{"x.org/abc": true}) {
		t.Errorf("%+v", all)
	}
	for _, wrong := range []string{"GO-1\tx", "GO-1\tx\tv1\t", "GO-1\tx\tone..two\t"} {
		if _, err := parseTable(wrong); err == nil {
			t.Errorf("%q is a table", wrong)
		}
	}
}

func TestAnExceptionEnds(t *testing.T) {
	except, err := parseExceptions("# id, last day, reason\nGO-1\t2026-11-22\ttoday still\nGO-2\t2026-11-21\tuntil yesterday\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := except.ended(now); len(got) != 1 || !strings.Contains(got[0], "GO-2") {
		t.Errorf("%q", got)
	}
	for _, wrong := range []string{"GO-1\t2026-11-22", "GO-1\t2026-11-22\t", "GO-1\tnever\tx"} {
		if _, err := parseExceptions(wrong); err == nil {
			t.Errorf("%q is an exception", wrong)
		}
	}
}

func TestOutputOfGovulncheck(t *testing.T) {
	got, err := calledOf(strings.NewReader(`{"config":{"scanner_name":"govulncheck"}} {"osv":{"id":"GO-1"}}
{"finding":{"osv":"GO-1","trace":[{"module":"x.org/a"}]}}
{"finding":{"osv":"GO-2","trace":[{"module":"x.org/b","function":"Parse"},{"function":"main"}]}}
{"finding":{"osv":"GO-2","trace":[{"function":"Parse"}]}}`))
	if err != nil || len(got) != 1 || got[0] != "GO-2" {
		t.Errorf("%q %v", got, err)
	}
	if _, err := calledOf(strings.NewReader(`{"finding":`)); err == nil {
		t.Error("an answer cut short is one")
	}
	if unreachable("http://127.0.0.1:1") == "" || unreachable("file:///tmp") != "" {
		t.Error("who is reachable")
	}
}
