package terminal

import (
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// A Table has rows of cells below a header.
type Table struct {
	Header []string
	// Keep holds the columns, from 0, that are never cut: what is copied into the next command. Of a wide table none is cut.
	Keep []int
	Wide bool
	rows [][]Cell
}

// A Cell is what one place of a table shows: short on a terminal, full in a pipe.
type Cell struct{ short, full string }

// Text is a cell that is the same everywhere.
func Text(s string) Cell { return Cell{s, s} }

// Texts are cells that are the same everywhere.
func Texts(all ...string) []Cell {
	cells := make([]Cell, len(all))
	for i, s := range all {
		cells[i] = Text(s)
	}
	return cells
}

// Short is a cell that shows less on a terminal than in a pipe.
func Short(onTerminal, full string) Cell { return Cell{onTerminal, full} }

// Add adds a row: a cell for each column of the header.
func (t *Table) Add(cells ...Cell) { t.rows = append(t.rows, cells) }

// Write prints t: aligned and cut to the width on a terminal, else as lines of full values with tabs between them. An
// empty table is nothing on a terminal, and its header elsewhere.
func (t *Table) Write(s *Screen) {
	if s.TTY && len(t.rows) == 0 {
		return
	}
	if !s.TTY {
		s.Line(strings.Join(t.Header, "\t"))
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

// tabbed returns the full values of a row, free of tabs.
func tabbed(row []Cell) string {
	values := make([]string, len(row))
	for i, c := range row {
		values[i] = OneLine(c.full)
	}
	return strings.Join(values, "\t")
}

// short returns the header and the rows as a terminal shows them.
func (t *Table) short() [][]string {
	lines := [][]string{t.Header}
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
	minWidth = 6 // of a cell that is cut
)

// fit returns the width of each column, so that a line has at most width columns where that is possible: the widest that
// may be cut is made narrower until it fits.
func (t *Table) fit(lines [][]string, width int) []int {
	widths := make([]int, len(t.Header))
	total := gap * (len(widths) - 1)
	for i := range widths {
		for _, line := range lines {
			widths[i] = max(widths[i], Columns(line[i]))
		}
		total += widths[i]
	}
	for ; total > width && !t.Wide; total-- {
		widest := -1
		for i, w := range widths {
			if w > minWidth && !slices.Contains(t.Keep, i) && (widest < 0 || w > widths[widest]) {
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

// A Sheet is one thing with what is known about it, a line each.
type Sheet struct{ rows [][2]string }

// Add adds a line for each value that is not empty.
func (s *Sheet) Add(name string, values ...string) {
	for _, value := range values {
		if value != "" {
			s.rows = append(s.rows, [2]string{name, value})
		}
	}
}

// Write prints s: aligned on a terminal, else name, tab, value. On a terminal a name that repeats is shown once, and a value
// that is too long goes on below itself.
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

// minValue is the width of a value on the narrowest terminal.
const minValue = 30
