// Package top measures and shows the load of a node for lmosd top.
package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// A Node is asked for its state (api.Client).
type Node interface {
	Status(ctx context.Context) (*api.Status, error)
	Peers(ctx context.Context) (*api.PeerList, error)
	Calls(ctx context.Context, q api.CallQuery) (*api.CallList, error)
	Series(ctx context.Context, window time.Duration) (*api.Series, error)
}

// A Snapshot is the document of lmosd top.
type Snapshot struct {
	cli.Head
	At        time.Time     `json:"at"`
	DID       did.DID       `json:"did"`
	Name      string        `json:"name,omitempty"`
	State     string        `json:"state"`
	Version   string        `json:"version"`
	Uptime    float64       `json:"uptime_s"`
	Peers     Peers         `json:"peers"`
	Local     int           `json:"agents_local"`
	Known     int           `json:"agents_known"`
	Calls     uint64        `json:"calls_total"`
	Rate      *float64      `json:"calls_per_s"`  // since the last snapshot; null: this is the first one
	ErrorRate *float64      `json:"errors_per_s"` // of these
	P50       float64       `json:"p50_ms"`
	P99       float64       `json:"p99_ms"`
	Queue     int           `json:"queue"`
	RSS       *float64      `json:"rss_bytes"` // null: unknown
	Warnings  []api.Warning `json:"warnings"`
	Connected []api.Peer    `json:"connected"`
	Called    []Called      `json:"called"` // the agents of the last calls, the most called first; empty without full rights
	LastCalls int           `json:"last_calls"`
}

// Peers are the numbers of connected nodes.
type Peers struct {
	Total   int `json:"total"`
	Direct  int `json:"direct"`
	Relayed int `json:"relayed"`
}

// Called is an agent with its share of the last calls.
type Called struct {
	Agent   string    `json:"agent"`
	Calls   int       `json:"calls"`
	Errors  int       `json:"errors"`
	Running int       `json:"running"`
	Slowest float64   `json:"slowest_ms"`
	Last    time.Time `json:"last"`
}

// A Sampler takes snapshots of one node.
type Sampler struct {
	node   Node
	last   time.Time
	calls  uint64
	errors uint64
}

// New returns a sampler.
func New(node Node) *Sampler { return &Sampler{node: node} }

// Take takes a snapshot. Rates are those since the last one.
func (s *Sampler) Take(ctx context.Context) (*Snapshot, error) {
	st, err := s.node.Status(ctx)
	if err != nil {
		return nil, err
	}
	peers, err := s.node.Peers(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	x := &Snapshot{Head: cli.NewHead("Top"), At: now.UTC(), DID: st.DID, Name: st.Name, State: st.State, Version: st.Version, Uptime: st.Uptime,
		Peers: Peers{st.Peers.Total, st.Peers.Direct, st.Peers.Relayed}, Local: st.Agents.Local, Known: st.Agents.Known, Calls: uint64(st.Calls.Total),
		P50: st.Calls.P50, P99: st.Calls.P99, Queue: int(st.Calls.Queue), Warnings: st.Warnings, Connected: peers.Items, Called: []Called{}}
	if total, failed := uint64(st.Calls.Total), uint64(st.Calls.Errors); !s.last.IsZero() {
		seconds := max(now.Sub(s.last).Seconds(), 0.001)
		rate, errors := float64(total-min(s.calls, total))/seconds, float64(failed-min(s.errors, failed))/seconds
		x.Rate, x.ErrorRate = &rate, &errors
	}
	s.last, s.calls, s.errors = now, uint64(st.Calls.Total), uint64(st.Calls.Errors)
	if series, err := s.node.Series(ctx, 10*time.Second); err == nil && len(series.Items.RSS) > 0 {
		x.RSS = series.Items.RSS[len(series.Items.RSS)-1]
	}
	if calls, err := s.node.Calls(ctx, api.CallQuery{}); err == nil { // it needs full rights
		x.Called, x.LastCalls = called(calls.Items), len(calls.Items)
	}
	return x, nil
}

// called groups calls by their agents.
func called(all []api.Call) []Called {
	byAgent := map[string]*Called{}
	for _, c := range all {
		name := cmp.Or(c.Name, c.Thing)
		one := byAgent[name]
		if one == nil {
			one = &Called{Agent: name}
			byAgent[name] = one
		}
		one.Calls++
		switch {
		case c.Status == api.CallRunning:
			one.Running++
		case c.Code != "":
			one.Errors++
		}
		if one.Slowest = max(one.Slowest, c.Took); c.At.After(one.Last) {
			one.Last = c.At
		}
	}
	list := make([]Called, 0, len(byAgent))
	for _, one := range byAgent {
		list = append(list, *one)
	}
	slices.SortFunc(list, func(a, b Called) int { return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Agent, b.Agent)) })
	return list
}

// minRows is the number of lines that each table has at least, if there is room.
const minRows = 3

// Lines returns the snapshot as at most height lines of at most width columns; 0: without a limit.
func (x *Snapshot) Lines(s *terminal.Screen, width, height int) []string {
	color, ok := map[string]string{"ready": terminal.Green, "degraded": terminal.Yellow, "starting": terminal.Yellow}[x.State]
	if !ok {
		color = terminal.Red
	}
	cut := func(text string) string {
		if width > 0 {
			text = terminal.Cut(text, width)
		}
		return text
	}
	head := "● " + terminal.OneLine(x.State)
	lines := []string{s.Paint(color, cut(head)) + cut2(width, head, "  "+render.PeerName(x.Name, x.DID)+" · up "+
		terminal.Span(time.Duration(x.Uptime*float64(time.Second)))+" · "+x.At.Local().Format(time.TimeOnly))}
	for _, row := range []string{
		fmt.Sprintf("calls   %s · %s · p50 %s, p99 %s · queue %d", rate(x.Rate, "/s"), rate(x.ErrorRate, " errors/s"), terminal.Millis(x.P50), terminal.Millis(x.P99), x.Queue),
		fmt.Sprintf("peers   %d (%d direct, %d relayed)", x.Peers.Total, x.Peers.Direct, x.Peers.Relayed),
		fmt.Sprintf("agents  %d local, %d known", x.Local, x.Known),
		"memory  " + memory(x.RSS),
	} {
		lines = append(lines, cut(row))
	}
	for _, w := range x.Warnings {
		lines = append(lines, s.Paint(terminal.Yellow, cut("! "+terminal.OneLine(w.Code+" "+w.Text))))
	}
	agents, peers := x.agentRows(), x.peerRows()
	if height > 0 {
		lines = lines[:min(len(lines), height)]
		room := max(height-len(lines), 0)
		most := max(room-min(len(peers)+1, minRows+2), room/2)
		agents = agents[:min(len(agents), max(most-2, 0))]
		if len(agents) > 0 {
			room -= len(agents) + 1
		}
		peers = peers[:min(len(peers), max(room-2, 0))]
	}
	for _, table := range [][]string{agents, peers} {
		for i, row := range table {
			if i == 0 {
				lines = append(lines, "", s.Paint(terminal.Bold, cut(row)))
				continue
			}
			lines = append(lines, cut(row))
		}
	}
	if height > 0 {
		lines = lines[:min(len(lines), height)]
	}
	return lines
}

// cut2 returns what fits behind a text.
func cut2(width int, before, text string) string {
	if width <= 0 {
		return text
	}
	return terminal.Cut(text, width-terminal.Columns(before))
}

// agentRows returns the table of called agents with its header; nil without any.
func (x *Snapshot) agentRows() []string {
	if len(x.Called) == 0 {
		return nil
	}
	rows := []string{fmt.Sprintf("%-24s %6s %6s %8s %9s %5s", fmt.Sprintf("AGENT (last %d calls)", x.LastCalls), "CALLS", "ERRORS", "RUNNING", "SLOWEST", "LAST")}
	for _, c := range x.Called {
		rows = append(rows, fmt.Sprintf("%s %6d %6d %8d %9s %5s", padded(c.Agent), c.Calls, c.Errors, c.Running, terminal.Millis(c.Slowest), terminal.Ago(c.Last, x.At)))
	}
	return rows
}

// peerRows returns the table of peers with its header, the nearest first; nil without any.
func (x *Snapshot) peerRows() []string {
	if len(x.Connected) == 0 {
		return nil
	}
	peers := slices.Clone(x.Connected)
	slices.SortStableFunc(peers, func(a, b api.Peer) int {
		far := func(p api.Peer) float64 { return cmp.Or(p.RTT, 1e9) } // not measured: last
		return cmp.Compare(far(a), far(b))
	})
	rows := []string{fmt.Sprintf("%-24s %9s %-8s %5s", "PEER", "RTT", "PATH", "AGE")}
	for _, p := range peers {
		rtt, path := "-", "direct"
		if p.RTT > 0 {
			rtt = terminal.Millis(p.RTT)
		}
		if p.Relay != "" {
			path = "relayed"
		}
		rows = append(rows, fmt.Sprintf("%s %9s %-8s %5s", padded(render.PeerName(p.Name, p.DID)), rtt, path, terminal.Span(time.Duration(p.Since*float64(time.Second)))))
	}
	return rows
}

// padded returns a name in 24 columns.
func padded(name string) string {
	name = terminal.Cut(terminal.OneLine(name), 24)
	return name + strings.Repeat(" ", max(24-terminal.Columns(name), 0))
}

func rate(v *float64, unit string) string {
	if v == nil {
		return "-" + unit
	}
	return fmt.Sprintf("%.1f%s", *v, unit)
}

func memory(rss *float64) string {
	if rss == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.0f MB", *rss/1e6)
}
