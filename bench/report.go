package main

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A report is the output of a section: Markdown, and the goals of its figures.
type report struct {
	text  strings.Builder
	goals []goal
}

// table begins a table. Columns, as the cells of its rows, are separated by |.
func (r *report) table(columns string) {
	if r.text.Len() > 0 {
		r.text.WriteByte('\n')
	}
	r.row("%s", columns)
	fmt.Fprintln(&r.text, strings.Repeat("|---", 1+strings.Count(columns, "|"))+"|")
}

func (r *report) row(format string, cells ...any) { fmt.Fprintf(&r.text, "| "+format+" |\n", cells...) }

// say adds a paragraph.
func (r *report) say(format string, args ...any) {
	if r.text.Len() > 0 {
		r.text.WriteByte('\n')
	}
	fmt.Fprintf(&r.text, format+"\n", args...)
}

// A goal is a bound of a figure, the largest or the least permitted value.
type goal struct {
	what            string
	measured, bound float64
	least           bool
	unit            string // with the space before it; empty: a ratio or a count
}

func (r *report) atMost(what string, measured, bound float64, unit string) {
	r.goals = append(r.goals, goal{what, measured, bound, false, unit})
}

func (r *report) atLeast(what string, measured, bound float64, unit string) {
	r.goals = append(r.goals, goal{what, measured, bound, true, unit})
}

// result is met or missed, by the figure and not by its rounded form.
func (g goal) result() string {
	if g.least && g.measured >= g.bound || !g.least && g.measured <= g.bound {
		return "met"
	}
	return "missed"
}

// cells returns the goal and the figure.
func (g goal) cells() string {
	sign := "≤"
	if g.least {
		sign = "≥"
	}
	return fmt.Sprintf("%s %s%s | %s%s", sign, number(g.bound), g.unit, number(g.measured), g.unit)
}

// number formats a figure with three digits, or all those of an integer part that has more.
func number(v float64) string {
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	if v == 0 || digits < 0 || v == math.Trunc(v) {
		digits = 0
	}
	return strconv.FormatFloat(v, 'f', min(digits, 3), 64)
}

// markdown returns the report with a table of its goals at the end.
func (r *report) markdown() string {
	whole := &report{}
	whole.text.WriteString(r.text.String())
	if len(r.goals) > 0 {
		whole.table("figure | goal | measured | result")
	}
	for _, g := range r.goals {
		whole.row("%s | %s | %s", g.what, g.cells(), g.result())
	}
	return whole.text.String()
}

// regions finds the generated parts of a page and their names.
var regions = regexp.MustCompile(`(?s)<!-- bench:([a-z0-9-]+) -->\n.*?<!-- /bench -->\n`)

// replaced returns the page with the region of a section replaced by text. It keeps the rest.
func replaced(page []byte, name, text string) ([]byte, error) {
	for _, at := range regions.FindAllSubmatchIndex(page, -1) {
		if string(page[at[2]:at[3]]) == name {
			region := fmt.Sprintf("<!-- bench:%s -->\n%s<!-- /bench -->\n", name, text)
			return bytes.Join([][]byte{page[:at[0]], []byte(region), page[at[1]:]}, nil), nil
		}
	}
	return nil, fmt.Errorf("the page has no region of %s: add the lines <!-- bench:%s --> and <!-- /bench -->", name, name)
}
