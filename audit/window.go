package audit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// A key has the members in which equal decisions are equal.
type key struct {
	who, consumer string // Principal.Base and Principal.Name
	org           did.DID
	via           did.Via
	op            string
	thing, name   string
	rule          string
	code          interact.Code
}

// limits bound the lines of a window.
type limits struct {
	most        int             // different decisions in one second
	node, total ratelimit.Limit // lines of one node, and of all; a Rate of 0 is no limit
	nodes       int             // nodes with a count of their own in a minute
}

// The limits of both windows. At the rates for denials, lines of 330 bytes are 4.8 MB an hour, and the longest of callers without an
// organization, 1,000 bytes, are 15 MB an hour: 10 files hold the denials of 44 hours or more.
var (
	allowLimits  = limits{most: 4096}
	denialLimits = limits{most: 4096, nodes: 1024, node: ratelimit.Limit{Burst: 128, Rate: 1}, total: ratelimit.Limit{Burst: 4096, Rate: 4}}
)

// A window holds the decisions of one second, each once, and counts those beyond the limits by node. It is not safe for concurrent use.
type window struct {
	limits
	lines  map[key]*Line
	order  []*Line          // of lines, by time
	counts map[string]*Line // by node
	others *Line            // of nodes without a count; nil if there are none
	budget *ratelimit.Limiter[string]
	all    ratelimit.Bucket
}

func newWindow(l limits) window {
	w := window{limits: l, lines: map[key]*Line{}, counts: map[string]*Line{}}
	w.budget = ratelimit.NewLimiter[string](l.node, max(l.most, 1))
	return w
}

// empty reports whether the window has no lines of the current second.
func (w *window) empty() bool { return len(w.order) == 0 }

// idle reports whether the window has no lines at all.
func (w *window) idle() bool { return w.empty() && len(w.counts) == 0 && w.others == nil }

// add counts a decision. Repetitions do not allocate.
func (w *window) add(d *Decision, now time.Time) {
	k := key{op: d.Op, thing: cut(d.Thing), name: cut(d.Name), rule: cut(d.Rule), code: d.Code}
	if d.Who != nil {
		k.who, k.consumer, k.org, k.via = d.Who.Base(), cut(cmp.Or(d.Who.Name, string(d.Who.Agent()))), d.Who.Org, d.Who.Via
	}
	switch l := w.lines[k]; {
	case l != nil:
		l.Times++
	case w.admits(k.who, now):
		k.thing, k.name, k.rule, k.consumer = strings.Clone(k.thing), strings.Clone(k.name), strings.Clone(k.rule), strings.Clone(k.consumer)
		l = newLine(d, &k, now)
		w.lines[k], w.order = l, append(w.order, l)
	default:
		w.count(k.who, now)
	}
}

// admits reports whether a node may have another line.
func (w *window) admits(node string, now time.Time) bool {
	if len(w.order) >= w.most {
		return false
	}
	if w.total.Rate == 0 {
		return true
	}
	if w.all.Wait(w.total, 1, now) > 0 || w.budget.Take(node, 1, now) > 0 {
		return false
	}
	return w.all.Take(w.total, 1, now)
}

// count counts a decision beyond the limits: for its node if there is room, else for all nodes.
func (w *window) count(node string, now time.Time) {
	l := w.counts[node]
	switch {
	case l != nil:
	case len(w.counts) < w.nodes && w.all.Take(w.total, 1, now):
		l = &Line{Time: now, Event: EventDenials, Who: node, Verdict: deny, Detail: "beyond the limit of lines of this caller"}
		w.counts[node] = l
	case w.others == nil && w.nodes == 0:
		w.others = &Line{Time: now, Event: EventLost, Detail: "more than 4096 different requests in a second"}
		l = w.others
	default:
		if w.others == nil {
			w.others = &Line{Time: now, Event: EventDenials, Verdict: deny, Detail: "beyond the limits of lines, of several callers"}
		}
		l = w.others
	}
	l.Times++
	l.Until = now
}

// take returns and removes the lines of the window; the counts of nodes as well if counts is true.
func (w *window) take(counts bool) []Line {
	var lines []Line
	for _, l := range w.order {
		lines = append(lines, *l)
	}
	w.order = w.order[:0]
	clear(w.lines)
	if counts {
		from := len(lines)
		for _, l := range w.counts {
			lines = append(lines, *l)
		}
		if w.others != nil {
			lines = append(lines, *w.others)
		}
		slices.SortStableFunc(lines[from:], func(a, b Line) int { return a.Time.Compare(b.Time) })
		clear(w.counts)
		w.others = nil
	}
	return lines
}

// cut returns the first bytes of a text for a key; newLine shortens it for display.
func cut(text string) string { return text[:min(len(text), maxText+1)] }

func newLine(d *Decision, k *key, now time.Time) *Line {
	l := &Line{Time: now, Op: k.op, Thing: shorten(k.thing, maxText), Name: shorten(k.name, maxText), Verdict: deny, Rule: shorten(k.rule, maxText),
		Trace: shorten(strings.Clone(d.Trace), maxText), Via: k.via, Org: k.org, Times: 1}
	if d.Allow {
		l.Verdict = allow
	}
	if d.Code != 0 {
		l.Code = d.Code.String()
	}
	if d.Who != nil {
		l.Who, l.Roles = shorten(d.Who.ID(), 2*maxText), d.Who.Roles[:min(len(d.Who.Roles), maxRoles)]
	}
	return l
}

// maxRoles limits the roles in a line.
const maxRoles = 32
