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
type Cell struct{ short, full, color string }

// Text returns a cell with the same text everywhere.
func Text(s string) Cell { return Cell{short: s, full: s} }

// Short returns a cell that is shorter on a terminal.
func Short(onTerminal, full string) Cell { return Cell{short: onTerminal, full: full} }

// In returns c with a color, or none if it is empty. The text says the same as the color.
func (c Cell) In(color string) Cell {
	c.color = color
	return c
}

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
	lines := t.short(s)
	widths := t.fit(lines, s.Width)
	s.Line(s.Paint(Bold, aligned(lines[0], widths, s.Plain("…"), nil)))
	for i, line := range lines[1:] {
		s.Line(aligned(line, widths, s.Plain("…"), func(column int, text string) string { return s.Paint(t.rows[i][column].color, text) }))
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
func (t *Table) short(s *Screen) [][]string {
	lines := [][]string{t.header}
	for _, row := range t.rows {
		line := make([]string, len(row))
		for i, c := range row {
			line[i] = s.Plain(OneLine(c.short))
		}
		lines = append(lines, line)
	}
	return lines
}

const (
	gap      = 2 // columns between cells
	minWidth = 8 // of a cut cell
)

// fit returns the widths of the columns, so that a line has at most width columns: it narrows the widest one that may be cut, then omits columns
// from the right, which get the width 0, those that may be cut first. The first column stays, because its values are copied into commands.
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
	for _, keep := range []bool{false, true} {
		for i := len(widths) - 1; i > 0 && total > width && !t.wide; i-- {
			if t.keep[i] == keep {
				total -= widths[i] + gap
				widths[i] = 0
			}
		}
	}
	return t.widen(lines, widths, width-total)
}

// widen returns widths after room columns were distributed among the columns that were cut, the first ones first.
func (t *Table) widen(lines [][]string, widths []int, room int) []int {
	for i := range widths {
		for _, line := range lines {
			if more := min(Columns(line[i])-widths[i], room); more > 0 && widths[i] > 0 {
				widths[i] += more
				room -= more
			}
		}
	}
	return widths
}

// aligned returns a line of cells, without trailing spaces. A nil paint adds no colors.
func aligned(line []string, widths []int, tail string, paint func(column int, text string) string) string {
	var b strings.Builder
	space := 0 // before the next cell
	for i, c := range line {
		if widths[i] == 0 {
			continue
		}
		text := strings.TrimRight(runewidth.Truncate(c, widths[i], tail), " ")
		if text != "" {
			b.WriteString(strings.Repeat(" ", space))
			space = 0
		}
		space += widths[i] + gap - Columns(text)
		if paint != nil {
			text = paint(i, text)
		}
		b.WriteString(text)
	}
	return b.String()
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
		if name == "" && to.Width-width-2*gap < minValue { // the values are below the name
			to.Item(strings.Repeat(" ", 2*gap), 2*gap, r[1])
			continue
		}
		to.Item("  "+to.Paint(Dim, runewidth.FillRight(name, width))+"  ", width+2*gap, r[1])
	}
}

// minValue is the least width of a value that is on the line of its name.
const minValue = 30
