// Package exposition reads metrics in the text format of Prometheus, and prints them for people.
package exposition

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// A Metric is a metric with its series. Unit is seconds, bytes, timestamp (Unix time in seconds), or empty for a number.
type Metric struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"` // counter, gauge, histogram, summary or untyped
	Unit   string   `json:"unit,omitempty"`
	Help   string   `json:"help"`
	Series []Series `json:"series"`
}

// A Series is one combination of labels. A histogram or a summary has a count, a sum and quantiles in place of a value. Numbers that JSON lacks are left
// out.
type Series struct {
	Labels    map[string]string  `json:"labels"`
	Value     *float64           `json:"value,omitempty"`
	Count     *uint64            `json:"count,omitempty"`
	Sum       *float64           `json:"sum,omitempty"`
	Quantiles map[string]float64 `json:"quantiles,omitempty"` // of a histogram: estimates by linear interpolation in its buckets
}

// Parse reads metrics, and returns them by name.
func Parse(text []byte) ([]Metric, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	list := []Metric{}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		m := Metric{Name: name, Type: strings.ToLower(f.GetType().String()), Unit: unitOf(name), Help: f.GetHelp(), Series: []Series{}}
		for _, one := range f.GetMetric() {
			m.Series = append(m.Series, seriesOf(one))
		}
		slices.SortStableFunc(m.Series, func(a, b Series) int { return cmp.Compare(a.labels(), b.labels()) })
		list = append(list, m)
	}
	return list, nil
}

// unitOf returns the unit that a name ends with.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for suffix, unit := range map[string]string{"_timestamp_seconds": "timestamp", "_time_seconds": "timestamp", "_seconds": "seconds", "_bytes": "bytes"} {
		if strings.HasSuffix(name, suffix) && (suffix != "_seconds" || !strings.HasSuffix(name, "_time_seconds") && !strings.HasSuffix(name, "_timestamp_seconds")) {
			return unit
		}
	}
	return ""
}

func seriesOf(m *dto.Metric) Series {
	s := Series{Labels: map[string]string{}}
	for _, l := range m.GetLabel() {
		s.Labels[l.GetName()] = l.GetValue()
	}
	switch {
	case m.Histogram != nil:
		h := m.GetHistogram()
		s.Count, s.Sum = new(h.GetSampleCount()), finite(h.GetSampleSum())
		s.Quantiles = map[string]float64{}
		for _, q := range []float64{0.5, 0.99} {
			if v := finite(quantile(q, h)); v != nil {
				s.Quantiles[strconv.FormatFloat(q, 'g', -1, 64)] = *v
			}
		}
	case m.Summary != nil:
		s.Count, s.Sum = new(m.GetSummary().GetSampleCount()), finite(m.GetSummary().GetSampleSum())
		s.Quantiles = map[string]float64{}
		for _, q := range m.GetSummary().GetQuantile() {
			if v := finite(q.GetValue()); v != nil {
				s.Quantiles[strconv.FormatFloat(q.GetQuantile(), 'g', -1, 64)] = *v
			}
		}
	case m.Counter != nil:
		s.Value = finite(m.GetCounter().GetValue())
	case m.Gauge != nil:
		s.Value = finite(m.GetGauge().GetValue())
	default:
		s.Value = finite(m.GetUntyped().GetValue())
	}
	return s
}

// finite returns v, or nil if JSON has no such number.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// quantile estimates a quantile as histogram_quantile of Prometheus does: by linear interpolation in the bucket; the last finite bound for values above it.
// It is NaN without samples.
func quantile(q float64, h *dto.Histogram) float64 {
	rank := q * float64(h.GetSampleCount())
	below, start := 0.0, 0.0
	for _, b := range h.GetBucket() {
		count, end := float64(b.GetCumulativeCount()), b.GetUpperBound()
		switch {
		case count == 0 || count < rank:
		case math.IsInf(end, 1):
			return start
		default:
			return start + (end-start)*(rank-below)/(count-below)
		}
		below, start = count, end
	}
	return math.NaN()
}

// labels returns the labels as text: op=invokeaction, result=ok.
func (s *Series) labels() string {
	texts := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		texts = append(texts, name+"="+s.Labels[name])
	}
	return strings.Join(texts, ", ")
}

// IsZero reports whether nothing was counted.
func (s *Series) IsZero() bool {
	return s.Value != nil && *s.Value == 0 || s.Count != nil && *s.Count == 0
}

// text returns the value for people.
func (s *Series) text(unit string) string {
	if s.Count == nil {
		if s.Value == nil {
			return "–"
		}
		return number(*s.Value, unit)
	}
	text := ""
	for _, q := range slices.Sorted(maps.Keys(s.Quantiles)) {
		if f, _ := strconv.ParseFloat(q, 64); f == 0.5 || f >= 0.99 {
			text += fmt.Sprintf("p%g %s, ", 100*f, number(s.Quantiles[q], unit))
		}
	}
	return text + "n " + strconv.FormatUint(*s.Count, 10)
}

// number returns a value with its unit for people.
func number(v float64, unit string) string {
	switch {
	case unit == "timestamp" && v > 0 && v < 1<<40:
		return time.Unix(int64(v), 0).UTC().Format(time.RFC3339)
	case unit == "seconds" && math.Abs(v) < 100:
		if v < 0 {
			return "-" + terminal.Millis(-v*1000)
		}
		return terminal.Millis(v * 1000)
	case unit == "seconds":
		return fmt.Sprintf("%.0f s", v)
	case unit == "bytes" && v >= 0 && v < 1<<53:
		return terminal.Size(int(v))
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// A row is one series in a table; s is nil for the heading of a metric.
type row struct {
	m *Metric
	s *Series
}

// Write prints metrics as a table; wide has the texts that explain them. On a terminal, the labels stand below the name.
func Write(to *terminal.Screen, list []Metric, wide bool) {
	var rows []row
	onTerminal := to.TTY && !wide
	for i := range list {
		m := &list[i]
		if onTerminal && len(m.Series) > 0 && len(m.Series[0].Labels) > 0 {
			rows = append(rows, row{m: m})
		}
		for j := range m.Series {
			rows = append(rows, row{m, &m.Series[j]})
		}
	}
	name := terminal.Column[row]{Name: "METRIC", Keep: true, Cell: terminal.TextOf(func(r row) string { return r.m.Name })}
	value := terminal.Column[row]{Name: "VALUE", Keep: true, Cell: terminal.TextOf(func(r row) string {
		if r.s == nil {
			return ""
		}
		return r.s.text(r.m.Unit)
	})}
	if onTerminal {
		name.Keep = false
		name.Cell = func(r row) terminal.Cell {
			if r.s == nil || len(r.s.Labels) == 0 {
				return terminal.Text(r.m.Name)
			}
			return terminal.Text("· " + r.s.labels())
		}
		terminal.TableOf(rows, false, []terminal.Column[row]{name, value}).Write(to)
		return
	}
	terminal.TableOf(rows, wide, []terminal.Column[row]{name,
		{Name: "LABELS", Cell: terminal.TextOf(func(r row) string { return r.s.labels() })}, value,
		{Name: "HELP", Wide: true, Cell: terminal.TextOf(func(r row) string { return r.m.Help })},
	}).Write(to)
}
