package explore

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Limits of the shown states.
const (
	maxStates = 1024 // introductions
	maxReason = 500  // bytes of the error of an exploration
)

// states have what became of each current introduction, for operators.
type states struct {
	mu  sync.Mutex
	all map[string]*api.Discovery // by name; owned by mu
}

// change records that an introduction came, changed or ended. inMesh is set for a node of the same mesh, which is not explored.
func (s *states) change(c change, inMesh bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Gone {
		delete(s.all, c.Name)
		return
	}
	if s.all == nil {
		s.all = map[string]*api.Discovery{}
	}
	if s.all[c.Name] == nil && len(s.all) >= maxStates {
		return
	}
	one := &api.Discovery{Name: c.Instance, Source: "dns-sd", URL: c.URL, Type: c.Type, Host: c.Host, Addrs: []string{}, Network: c.Network,
		State: api.DiscoveryWaiting, At: now.UTC()}
	for _, a := range c.Addrs {
		one.Addrs = append(one.Addrs, a.String())
	}
	if c.configuredHost != "" {
		one.Source = "configured"
	}
	if inMesh {
		one.State = api.DiscoveryMesh
	}
	s.all[c.Name] = one
}

// resolved records whether an entry of the configuration was read. One that was not has no introduction.
func (s *states) resolved(where string, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, where)
	if err == nil {
		return
	}
	if s.all == nil {
		s.all = map[string]*api.Discovery{}
	}
	s.all[where] = &api.Discovery{Name: where, Source: "configured", URL: where, Addrs: []string{}, State: api.DiscoveryFailed,
		Error: interact.Excerpt(err.Error(), maxReason), At: now.UTC()}
}

// explored records the end of an exploration.
func (s *states) explored(name string, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[name]
	if one == nil {
		return
	}
	one.State, one.Error, one.At = api.DiscoveryExplored, "", now.UTC()
	if err != nil {
		one.State, one.Error = api.DiscoveryFailed, interact.Excerpt(err.Error(), maxReason)
	}
}

// Introduced returns the current introductions, ordered by source and name, each with the Things that it has brought; never nil.
func (d *Discoveries) Introduced() []api.Discovery {
	things := map[string][]string{} // by the name of the introduction
	for _, t := range d.things.matching(func(*td.Description) bool { return true }) {
		things[t.in.Name] = append(things[t.in.Name], t.Ref())
	}
	d.states.mu.Lock()
	defer d.states.mu.Unlock()
	all := make([]api.Discovery, 0, len(d.states.all))
	for _, name := range slices.Sorted(maps.Keys(d.states.all)) {
		one := *d.states.all[name]
		one.Things = append([]string{}, things[name]...)
		if one.State == api.DiscoveryFailed && len(one.Things) > 0 {
			one.State = api.DiscoveryExplored // partly: Error has the rest
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b api.Discovery) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Name, b.Name))
	})
	return all
}

// Introduced implements the method of the gateway's directory that lists introductions.
func (v View) Introduced() []api.Discovery { return v.Discoveries.Introduced() }
