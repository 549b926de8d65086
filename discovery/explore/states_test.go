package explore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/discovery/dnssd"
)

// What became of an introduction is reported until it ends.
func TestIntroduced(t *testing.T) {
	t.Parallel()
	d := newDiscoveries(t, Options{Network: "home"})
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	came := func(name, network, configured string) change {
		return change{dnssd.Change{Introduction: dnssd.Introduction{Name: name, Instance: name, URL: "http://192.0.2.9/td", Type: "Thing", Network: network,
			Host: "lamp.local", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}}, configured}
	}
	states := func() (got []string) {
		for _, one := range d.Introduced() {
			got = append(got, one.Name+" "+one.Source+" "+one.State+" "+one.Error)
		}
		return got
	}
	if all := d.Introduced(); all == nil || len(all) != 0 {
		t.Errorf("at the start: %v", all)
	}
	d.states.change(came("lamp", "", ""), false, at)
	d.states.change(came("node", "home", ""), true, at)
	d.states.change(came("https://things.example/td", "", "things.example"), false, at)
	d.states.resolved("did:web:nowhere.example", errors.New("no such host"), at)
	d.states.explored("lamp", nil, at)
	d.states.explored("https://things.example/td", errors.New("status 500"), at)
	d.states.explored("gone", nil, at)
	want := []string{"did:web:nowhere.example configured failed no such host", "https://things.example/td configured failed status 500",
		"lamp dns-sd explored ", "node dns-sd mesh "}
	if got := states(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if one := d.Introduced()[2]; one.Host != "lamp.local" || one.Addrs[0] != "192.0.2.9" || one.Things == nil || !one.At.Equal(at) || one.State != api.DiscoveryExplored {
		t.Errorf("%+v", one)
	}
	ended := came("lamp", "", "")
	ended.Gone = true
	d.states.change(ended, false, at)
	d.states.resolved("did:web:nowhere.example", nil, at)
	if got := states(); !slices.Equal(got, []string{want[1], want[3]}) {
		t.Errorf("got %q", got)
	}
	for i := range maxStates + 10 {
		d.states.change(came(fmt.Sprint(i), "", ""), false, at)
	}
	if n := len(d.Introduced()); n != maxStates {
		t.Errorf("%d introductions", n)
	}
}

// The Things of an introduction are reported with it.
func TestIntroducedThings(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"/lamp": lamp("urn:dev:lamp")})
	o := s.Options
	o.Configured = []string{"https://example.com:" + s.port + "/lamp", "did:web:nowhere.example"}
	d := newDiscoveries(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	thing := d.has(t, 1)[0]
	all := d.Introduced()
	i := slices.IndexFunc(all, func(one api.Discovery) bool { return one.Name == o.Configured[0] })
	if i < 0 || !slices.Equal(all[i].Things, []string{thing.Ref()}) || all[i].Source != "configured" {
		t.Errorf("%+v", all)
	}
	cancel()
	<-done
}
