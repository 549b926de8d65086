package render

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// Paths returns the table of the paths to an agent.
func Paths(items []api.Path) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.Path]{
		{Name: "PATH", Keep: true, Cell: terminal.TextOf(func(p api.Path) string { return p.Name })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(p api.Path) string {
			if p.Down {
				return "down"
			}
			return "up"
		})},
		{Name: "TOOK", Keep: true, Cell: terminal.TextOf(func(p api.Path) string { return measured(p.Took) })},
		{Name: "ADDRESS", Cell: terminal.TextOf(func(p api.Path) string { return p.Href })},
	})
}

// PingPath returns the path of a ping with its relay, and with the time until a direct connection replaced it.
func PingPath(p *api.Ping) string {
	text := p.Path
	if p.Relay != "" {
		text += " " + p.Relay.Short()
	}
	if p.Upgrade > 0 {
		text += ", direct after " + terminal.Millis(p.Upgrade)
	}
	return text
}

// Ping returns the sheet of a measurement.
func Ping(p *api.Ping) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("host", string(p.Node))
	s.Add("path", PingPath(p))
	if len(p.RTT) == 0 || slices.Max(p.RTT) == 0 {
		return s // this node is the host
	}
	sum, each := 0.0, make([]string, len(p.RTT))
	for i, rtt := range p.RTT {
		sum += rtt
		each[i] = terminal.Millis(rtt)
	}
	s.Add("rtt", strings.Join(each, "  "))
	if len(p.RTT) > 1 {
		s.Add("least", terminal.Millis(slices.Min(p.RTT)))
		s.Add("mean", terminal.Millis(sum/float64(len(p.RTT))))
		s.Add("most", terminal.Millis(slices.Max(p.RTT)))
	}
	return s
}
