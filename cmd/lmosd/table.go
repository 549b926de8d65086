package main

import (
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// A table has rows of cells below a header.
type table struct {
	header []string
	rows   [][]cell
	// keep holds the columns that are never cut: what is copied into the next command. Of a wide table none is cut.
	keep []int
	wide bool
}

// A cell is what one place of a table shows: short on a terminal, full in a pipe.
type cell struct{ short, full string }

// text is a cell that is the same everywhere.
func text(s string) cell { return cell{s, s} }

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// write prints t: aligned and cut to the width on a terminal, else as lines of full values with tabs between them. An
// empty table is nothing on a terminal, and its header elsewhere.
func (t *table) write(s *screen) {
	if s.tty && len(t.rows) == 0 {
		return
	}
	if !s.tty {
		s.line(strings.Join(t.header, "\t"))
		for _, row := range t.rows {
			s.line(tabbed(row))
		}
		return
	}
	lines := t.short()
	widths := t.fit(lines, s.width)
	for i, line := range lines {
		painted := aligned(line, widths)
		if i == 0 {
			painted = s.paint(bold, painted)
		}
		s.line(painted)
	}
}

// tabbed returns the full values of a row, free of tabs.
func tabbed(row []cell) string {
	values := make([]string, len(row))
	for i, c := range row {
		values[i] = oneLine(c.full)
	}
	return strings.Join(values, "\t")
}

// short returns the header and the rows as a terminal shows them.
func (t *table) short() [][]string {
	lines := [][]string{t.header}
	for _, row := range t.rows {
		line := make([]string, len(row))
		for i, c := range row {
			line[i] = oneLine(c.short)
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
func (t *table) fit(lines [][]string, width int) []int {
	widths := make([]int, len(t.header))
	total := gap * (len(widths) - 1)
	for i := range widths {
		for _, line := range lines {
			widths[i] = max(widths[i], runewidth.StringWidth(line[i]))
		}
		total += widths[i]
	}
	for ; total > width && !t.wide; total-- {
		widest := -1
		for i, w := range widths {
			if w > minWidth && !slices.Contains(t.keep, i) && (widest < 0 || w > widths[widest]) {
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

// A sheet is one thing with what is known about it, a line each.
type sheet struct{ rows [][2]string }

// add adds a line; one without a value is left out.
func (s *sheet) add(name, value string) {
	if value != "" {
		s.rows = append(s.rows, [2]string{name, value})
	}
}

// write prints s: aligned on a terminal, else name, tab, value. On a terminal a name that repeats is shown once, and a value
// that is too long goes on below itself.
func (s *sheet) write(to *screen) {
	width := 0
	for _, r := range s.rows {
		width = max(width, runewidth.StringWidth(r[0]))
	}
	last := ""
	for _, r := range s.rows {
		if !to.tty {
			to.line(r[0] + "\t" + oneLine(r[1]))
			continue
		}
		name := r[0]
		if name == last {
			name = ""
		}
		last = r[0]
		to.item("  "+to.paint(dim, runewidth.FillRight(name, width))+"  ", width+2*gap, r[1])
	}
}

// minValue is the width of a value on the narrowest terminal.
const minValue = 30
