package terminal

import (
	"strings"

	"github.com/mattn/go-runewidth"
)

// A Table has rows of cells below a header. Create it with [TableOf].
type Table struct {
	header []string
	keep   []bool // the columns that are never cut
	wide   bool   // no column is cut
	rows   [][]Cell
}

// A Cell is one value of a table: short on a terminal, full in a pipe.
type Cell struct{ short, full string }

// Text returns a cell with the same text everywhere.
func Text(s string) Cell { return Cell{s, s} }

// Short returns a cell that is shorter on a terminal.
func Short(onTerminal, full string) Cell { return Cell{onTerminal, full} }

// Write prints t: aligned and cut to the width on a terminal, else as lines of full values separated by tabs. An empty table prints nothing
// on a terminal, else its header.
func (t *Table) Write(s *Screen) {
	if s.TTY && len(t.rows) == 0 {
		return
	}
	if !s.TTY {
		s.Line(strings.Join(t.header, "\t"))
		for _, row := range t.rows {
			s.Line(tabbed(row))
		}
		return
	}
	lines := t.short()
	widths := t.fit(lines, s.Width)
	for i, line := range lines {
		painted := aligned(line, widths)
		if i == 0 {
			painted = s.Paint(Bold, painted)
		}
		s.Line(painted)
	}
}

// tabbed returns the full values of a row, without tabs.
func tabbed(row []Cell) string {
	values := make([]string, len(row))
	for i, c := range row {
		values[i] = OneLine(c.full)
	}
	return strings.Join(values, "\t")
}

// short returns the header and the rows for a terminal.
func (t *Table) short() [][]string {
	lines := [][]string{t.header}
	for _, row := range t.rows {
		line := make([]string, len(row))
		for i, c := range row {
			line[i] = OneLine(c.short)
		}
		lines = append(lines, line)
	}
	return lines
}

const (
	gap      = 2 // columns between cells
	minWidth = 6 // of a cut cell
)

// fit returns the widths of the columns, so that a line has at most width columns if possible: it narrows the widest one that may be cut.
func (t *Table) fit(lines [][]string, width int) []int {
	widths := make([]int, len(t.header))
	total := gap * (len(widths) - 1)
	for i := range widths {
		for _, line := range lines {
			widths[i] = max(widths[i], Columns(line[i]))
		}
		total += widths[i]
	}
	for ; total > width && !t.wide; total-- {
		widest := -1
		for i, w := range widths {
			if w > minWidth && !t.keep[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths
}

func aligned(line []string, widths []int) string {
	cells := make([]string, len(line))
	for i, c := range line {
		cells[i] = runewidth.FillRight(runewidth.Truncate(c, widths[i], "…"), widths[i]+gap)
	}
	return strings.TrimRight(strings.Join(cells, ""), " ")
}

// A Sheet describes one object, one property per line.
type Sheet struct{ rows [][2]string }

// Add adds a line for each value that is not empty.
func (s *Sheet) Add(name string, values ...string) {
	for _, value := range values {
		if value != "" {
			s.rows = append(s.rows, [2]string{name, value})
		}
	}
}

// Write prints s: aligned on a terminal, else name, tab, value. On a terminal a repeated name is shown once, and a long value is wrapped
// below itself.
func (s *Sheet) Write(to *Screen) {
	width := 0
	for _, r := range s.rows {
		width = max(width, Columns(r[0]))
	}
	last := ""
	for _, r := range s.rows {
		if !to.TTY {
			to.Line(r[0] + "\t" + OneLine(r[1]))
			continue
		}
		name := r[0]
		if name == last {
			name = ""
		}
		last = r[0]
		to.Item("  "+to.Paint(Dim, runewidth.FillRight(name, width))+"  ", width+2*gap, r[1])
	}
}

// minValue is the least width of a value.
const minValue = 30
