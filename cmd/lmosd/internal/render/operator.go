package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// LogHeader has the columns of [Log] without a terminal.
const LogHeader = "TIME\tLEVEL\tLOGGER\tTEXT"

// Logs prints log records: a line for each on a terminal, otherwise a table.
func Logs(s *terminal.Screen, items []api.LogRecord, wide bool) {
	if s.TTY && !wide {
		for _, r := range items {
			Log(s, r)
		}
		return
	}
	terminal.TableOf(items, wide, []terminal.Column[api.LogRecord]{
		{Name: "TIME", Keep: true, Cell: func(r api.LogRecord) terminal.Cell { return clock(r.At) }},
		{Name: "LEVEL", Keep: true, Cell: terminal.TextOf(func(r api.LogRecord) string { return r.Level })},
		{Name: "LOGGER", Keep: true, Cell: terminal.TextOf(func(r api.LogRecord) string { return r.Logger })},
		{Name: "TEXT", Keep: true, Cell: terminal.TextOf(logText)},
		{Name: "SEQ", Wide: true, Cell: terminal.TextOf(func(r api.LogRecord) string { return number(r.Seq) })},
	}).Write(s)
}

// Log prints a log record on one line.
func Log(s *terminal.Screen, r api.LogRecord) {
	if !s.TTY {
		s.Line(strings.Join([]string{stampOf(r.At), r.Level, terminal.OneLine(r.Logger), terminal.OneLine(logText(r))}, "\t"))
		return
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(r.Level)) // an unknown one is info
	line := terminal.LogLine(s, r.At, level, r.Text) + "  " + s.Paint(terminal.Dim, terminal.OneLine(r.Logger))
	for _, name := range slices.Sorted(maps.Keys(r.Fields)) {
		line += terminal.LogAttr(s, name, valueText(r.Fields[name]))
	}
	s.Line(line)
}

// LogGap prints that records are missing.
func LogGap(s *terminal.Screen, g *api.LogGap) {
	s.Line(s.Paint(terminal.Yellow, terminal.Count(int(g.To-g.From+1), "record is missing", "records are missing")+": the node does not keep older ones"))
}

// logText returns the text of a record with its fields.
func logText(r api.LogRecord) string {
	text := r.Text
	for _, name := range slices.Sorted(maps.Keys(r.Fields)) {
		text += " " + name + "=" + valueText(r.Fields[name])
	}
	return text
}

// valueText returns a value of JSON as text.
func valueText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		texts := make([]string, len(v))
		for i, one := range v {
			texts[i] = valueText(one)
		}
		return strings.Join(texts, ", ")
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// LogLevels returns the levels of the loggers.
func LogLevels(l api.LogLevels) *terminal.Sheet {
	s := &terminal.Sheet{}
	for _, name := range slices.Sorted(maps.Keys(l.Levels)) {
		s.Add(name, l.Levels[name])
	}
	return s
}

// Doctor prints the checks of a node. hint returns the remedy of a check.
func Doctor(s *terminal.Screen, d *api.Doctor, hint func(string, []interact.Step) string) {
	width, counts := 0, map[string]int{}
	for _, c := range d.Items {
		width = max(width, len(terminal.OneLine(c.Name)))
		counts[c.Status]++
	}
	for _, c := range d.Items {
		remedy := hint(c.Hint, c.Next)
		if !s.TTY {
			s.Line(strings.Join([]string{c.Status, terminal.OneLine(c.Name), terminal.OneLine(c.Text), remedy}, "\t"))
			continue
		}
		sign := s.Paint(terminal.Green, "✓")
		switch c.Status {
		case api.CheckWarn:
			sign = s.Paint(terminal.Yellow, "!")
		case api.CheckFail:
			sign = s.Paint(terminal.Red, "✗")
		case api.CheckSkip:
			sign = s.Paint(terminal.Dim, "–")
		}
		s.Item("  "+sign+" "+fmt.Sprintf("%-*s  ", width, terminal.OneLine(c.Name)), width+6, terminal.OneLine(c.Text))
		if remedy != "" && c.Status != api.CheckPass {
			s.Item(strings.Repeat(" ", width+6), width+6, "remedy: "+remedy)
		}
	}
	if s.TTY {
		s.Line(fmt.Sprintf("  %d passed, %s, %d failed", counts[api.CheckPass], terminal.Count(counts[api.CheckWarn], "warning", "warnings"), counts[api.CheckFail]) +
			mark(counts[api.CheckSkip] > 0, fmt.Sprintf(", %d skipped", counts[api.CheckSkip])))
	}
}

// Bridges returns the table of bridges.
func Bridges(items []api.BridgeInfo, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.BridgeInfo]{
		{Name: "NAME", Keep: true, Cell: terminal.TextOf(func(b api.BridgeInfo) string { return b.Name })},
		{Name: "STATUS", Keep: true, Cell: terminal.TextOf(func(b api.BridgeInfo) string { return Join(": ", b.Status, b.Text) })},
		{Name: "REQUESTS", Keep: true, Cell: terminal.TextOf(func(b api.BridgeInfo) string { return fmt.Sprint(b.Requests) })},
		{Name: "ERRORS", Keep: true, Cell: terminal.TextOf(func(b api.BridgeInfo) string { return fmt.Sprint(b.Errors) })},
		{Name: "LAST", Cell: func(b api.BridgeInfo) terminal.Cell {
			if b.Last.IsZero() {
				return terminal.Text("")
			}
			return terminal.Short(terminal.Ago(b.Last, time.Now()), stampOf(b.Last))
		}},
		{Name: "PATHS", Cell: terminal.TextOf(func(b api.BridgeInfo) string { return strings.Join(b.Paths, " ") })},
	})
}

// Discovered returns the table of introductions.
func Discovered(items []api.Discovery, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Discovery]{
		{Name: "NAME", Keep: true, Cell: terminal.TextOf(func(d api.Discovery) string { return d.Name })},
		{Name: "SOURCE", Keep: true, Cell: terminal.TextOf(func(d api.Discovery) string { return d.Source })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(d api.Discovery) string { return Join(": ", d.State, d.Error) })},
		{Name: "AGENTS", Keep: true, Cell: terminal.TextOf(func(d api.Discovery) string { return fmt.Sprint(len(d.Things)) })},
		{Name: "URL", Cell: terminal.TextOf(func(d api.Discovery) string { return d.URL })},
		{Name: "NETWORK", Wide: true, Cell: terminal.TextOf(func(d api.Discovery) string { return d.Network })},
		{Name: "ADDRESSES", Wide: true, Cell: terminal.TextOf(func(d api.Discovery) string { return strings.Join(d.Addrs, " ") })},
	})
}

// Trust returns what a node knows about organizations and groups, in numbers.
func Trust(t *api.TrustOverview) *terminal.Sheet {
	s := &terminal.Sheet{}
	if t.Organization != nil {
		s.Add("organization", t.Organization.Name+", "+t.Organization.State)
	} else {
		s.Add("organization", "none")
	}
	s.Add("partners", fmt.Sprint(len(t.Partners)))
	s.Add("groups", fmt.Sprint(len(t.Groups)))
	s.Add("credentials", terminal.Count(len(t.Credentials), "foreign credential", "foreign credentials")+" of "+terminal.Count(len(t.Issuers), "issuer", "issuers"))
	s.Add("invitations", fmt.Sprint(len(t.Invitations))+" open")
	s.Add("waiting", fmt.Sprint(len(t.Waiting)))
	return s
}

// Waiting returns the table of what waits for a person. hint returns what to do.
func Waiting(items []api.TrustWaiting, wide bool, hint func(string, []interact.Step) string) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.TrustWaiting]{
		{Name: "WAITING", Keep: true, Cell: terminal.TextOf(func(w api.TrustWaiting) string { return w.Kind })},
		{Name: "NAME", Keep: true, Cell: terminal.TextOf(func(w api.TrustWaiting) string { return cmp.Or(w.Name, w.DID.Short()) })},
		{Name: "WORDS", Cell: terminal.TextOf(func(w api.TrustWaiting) string { return strings.Join(w.Words, " ") })},
		{Name: "NEXT", Cell: terminal.TextOf(func(w api.TrustWaiting) string { return hint("", w.Next) })},
		{Name: "SCID", Wide: true, Cell: terminal.TextOf(func(w api.TrustWaiting) string { return w.SCID })},
	})
}

// Config returns the table of the configuration of a node.
func Config(items []api.ConfigItem, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.ConfigItem]{
		{Name: "KEY", Keep: true, Cell: terminal.TextOf(func(i api.ConfigItem) string { return i.Key })},
		{Name: "VALUE", Keep: true, Cell: terminal.TextOf(func(i api.ConfigItem) string { return valueText(i.Value) })},
		{Name: "ORIGIN", Keep: true, Cell: terminal.TextOf(func(i api.ConfigItem) string { return cmp.Or(Join(" ", i.Origin, i.Where), api.OriginDefault) })},
	})
}
