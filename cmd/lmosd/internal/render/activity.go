package render

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// Events returns the table of events.
func Events(items []api.NodeEvent, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.NodeEvent]{
		{Name: "TIME", Keep: true, Cell: func(e api.NodeEvent) terminal.Cell { return clock(e.At) }},
		{Name: "KIND", Keep: true, Cell: terminal.TextOf(func(e api.NodeEvent) string { return e.Kind })},
		{Name: "SUBJECT", Cell: func(e api.NodeEvent) terminal.Cell { return terminal.Short(subject(e, true), subject(e, false)) }},
		{Name: "DETAIL", Cell: terminal.TextOf(detail)},
		{Name: "SEQ", Wide: true, Cell: terminal.TextOf(func(e api.NodeEvent) string { return number(e.Seq) })},
		{Name: "TRACE", Wide: true, Cell: terminal.TextOf(func(e api.NodeEvent) string { return e.TraceID })},
	})
}

// Event prints an event on one line.
func Event(s *terminal.Screen, e api.NodeEvent) {
	if !s.TTY {
		s.Line(strings.Join([]string{stampOf(e.At), e.Kind, terminal.OneLine(subject(e, false)), terminal.OneLine(detail(e))}, "\t"))
		return
	}
	at := "        " // a gap has no time
	if !e.At.IsZero() {
		at = e.At.Local().Format("15:04:05")
	}
	kind := terminal.OneLine(e.Kind)
	s.Item(s.Paint(terminal.Dim, at)+"  "+s.Paint(terminal.Bold, kind)+"  ", len(at)+4+terminal.Columns(kind), Join("  ", subject(e, true), detail(e)))
}

// clock returns a time: of the day on a terminal.
func clock(at time.Time) terminal.Cell {
	if at.IsZero() {
		return terminal.Text("")
	}
	return terminal.Short(at.Local().Format("15:04:05"), stampOf(at))
}

func stampOf(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// subject returns what an event is about.
func subject(e api.NodeEvent, short bool) string {
	switch {
	case e.Thing != "" && e.Name != "" && short:
		return e.Name
	case e.Thing != "":
		return e.Thing
	case strings.HasPrefix(e.Kind, "bootstrap."):
		return e.Name
	case e.DID != "" && short:
		return PeerName(e.Name, e.DID)
	case e.DID != "":
		return string(e.DID)
	}
	return e.Name
}

func detail(e api.NodeEvent) string {
	if e.Kind == api.EventGap {
		what := "events"
		if e.Name != "" {
			what = e.Name + "s"
		}
		return fmt.Sprintf("%s up to %d are not stored any more", what, e.To)
	}
	text := e.Text
	if text == e.Name {
		text = ""
	}
	return Join(" · ", e.Code, text)
}

// Calls returns the table of calls.
func Calls(items []api.Call, wide bool, now time.Time) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Call]{
		{Name: "CALL", Keep: true, Cell: func(c api.Call) terminal.Cell { return terminal.Short(c.ID[:min(len(c.ID), shortTask)], c.ID) }},
		{Name: "STARTED", Keep: true, Cell: func(c api.Call) terminal.Cell { return terminal.Short(terminal.Ago(c.At, now), stampOf(c.At)) }},
		{Name: "AGENT", Cell: func(c api.Call) terminal.Cell {
			if c.Name == "" {
				return terminal.Text(c.Thing)
			}
			return terminal.Short(c.Name, c.Thing)
		}},
		{Name: "ACTION", Cell: terminal.TextOf(func(c api.Call) string { return c.Action })},
		{Name: "STATUS", Keep: true, Cell: terminal.TextOf(func(c api.Call) string { return Join(" ", c.Status, c.Code) })},
		{Name: "TOOK", Keep: true, Cell: terminal.TextOf(func(c api.Call) string { return measured(c.Took) })},
		{Name: "PATH", Cell: terminal.TextOf(func(c api.Call) string { return c.Via })},
		{Name: "FROM", Cell: terminal.TextOf(func(c api.Call) string { return c.From })},
		{Name: "OPERATION", Wide: true, Cell: terminal.TextOf(func(c api.Call) string { return c.Op })},
		{Name: "PARTS", Wide: true, Cell: terminal.TextOf(func(c api.Call) string { return strconv.Itoa(c.Parts) })},
		{Name: "TRACE", Wide: true, Cell: terminal.TextOf(func(c api.Call) string { return c.TraceID })},
	})
}

// Call prints a call, on a terminal with the times of its stages as bars.
func Call(s *terminal.Screen, c *api.Call) {
	sheet := &terminal.Sheet{}
	sheet.Add("call", c.ID)
	sheet.Add("agent", Join(" · ", c.Name, c.Thing))
	sheet.Add("action", Join(" · ", c.Action, c.Op))
	sheet.Add("from", c.From)
	sheet.Add("began", Stamp(c.At))
	sheet.Add("status", Join(" ", c.Status, c.Code))
	sheet.Add("path", Join(" · ", c.Via, strings.Join(shortDIDs(c.Path), " → ")))
	sheet.Add("host", string(c.Host))
	sheet.Add("replies", strconv.Itoa(c.Parts))
	sheet.Add("sent", fmt.Sprintf("%s, received %s", terminal.Size(int(c.BytesIn)), terminal.Size(int(c.BytesOut))))
	sheet.Add("first reply", firstReply(c))
	sheet.Add("took", measured(c.Took))
	if c.Stages != nil {
		for _, stage := range waterfall(c) {
			text := measured(stage.took)
			if s.TTY {
				text = fmt.Sprintf("%-10s %s", text, bar(stage.from, stage.took, c.Took))
			}
			sheet.Add(stage.name, text)
		}
	}
	sheet.Add("trace", c.TraceID)
	sheet.Write(s)
}

func firstReply(c *api.Call) string {
	if c.Parts == 0 {
		return ""
	}
	return measured(c.First)
}

func shortDIDs(all []did.DID) (short []string) {
	for _, d := range all {
		short = append(short, d.Short())
	}
	return short
}

// A stage is a part of the time of a call, in milliseconds from its beginning.
type stage struct {
	name       string
	from, took float64
}

// waterfall returns the stages of a call. The host is in the middle of what follows its connection, and the agent in the middle of that.
func waterfall(c *api.Call) []stage {
	x := c.Stages
	connected := x.Resolve + x.Dial
	host := connected + max(c.Took-connected-x.Host, 0)/2
	if x.Host == 0 {
		host = connected
	}
	agent := host + max(x.Host-x.Agent, 0)/2
	return []stage{{"time find", 0, x.Resolve}, {"time connect", x.Resolve, x.Dial}, {"time host", host, x.Host}, {"time agent", agent, x.Agent}}
}

const barWidth = 40

// bar returns the place of a stage in the whole time.
func bar(from, took, total float64) string {
	if total <= 0 || took <= 0 {
		return ""
	}
	at := min(int(from/total*barWidth), barWidth-1)
	width := min(max(int(math.Round(took/total*barWidth)), 1), barWidth-at)
	return strings.Repeat("·", at) + strings.Repeat("█", width) + strings.Repeat("·", barWidth-at-width)
}

// Series prints samples: as lines of blocks on a terminal, elsewhere as the last, the least and the greatest value of each.
func Series(s *terminal.Screen, x *api.Series) {
	i := &x.Items
	rows := []struct {
		name   string
		values []*float64
		text   func(float64) string
	}{
		{"calls/s", i.Calls, plainNumber}, {"errors/s", i.Errors, plainNumber}, {"p50", i.P50, terminal.Millis}, {"p99", i.P99, terminal.Millis},
		{"peers", i.Peers, plainNumber}, {"agents", i.Agents, plainNumber}, {"memory", i.RSS, func(v float64) string { return fmt.Sprintf("%.0f MB", v/1e6) }},
	}
	sheet := &terminal.Sheet{}
	for _, r := range rows {
		last, low, high, ok := extent(r.values)
		switch {
		case !ok:
			sheet.Add(r.name, "unknown")
		case s.TTY:
			sheet.Add(r.name, fmt.Sprintf("%s  %s, at most %s", spark(r.values, high), r.text(last), r.text(high)))
		default:
			sheet.Add(r.name, fmt.Sprintf("last %s, from %s to %s", r.text(last), r.text(low), r.text(high)))
		}
	}
	sheet.Write(s)
}

func plainNumber(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// extent returns the last, the least and the greatest known value.
func extent(values []*float64) (last, low, high float64, ok bool) {
	for _, v := range values {
		if v == nil {
			continue
		}
		if last = *v; !ok {
			low, high, ok = last, last, true
		}
		low, high = min(low, last), max(high, last)
	}
	return last, low, high, ok
}

// sparks is the number of characters of a line of blocks.
const sparks = 60

// spark returns the values as a line of blocks, the greatest of each group; an unknown one is a dot.
func spark(values []*float64, high float64) string {
	var b strings.Builder
	group := max((len(values)+sparks-1)/sparks, 1)
	for from := 0; from < len(values); from += group {
		_, _, most, ok := extent(values[from:min(from+group, len(values))])
		switch {
		case !ok:
			b.WriteRune('·')
		case high <= 0:
			b.WriteRune('▁')
		default:
			b.WriteRune([]rune("▁▂▃▄▅▆▇█")[min(int(most/high*8), 7)])
		}
	}
	return b.String()
}
