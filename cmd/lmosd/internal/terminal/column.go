package terminal

// A Column is a column of a table of items.
type Column[T any] struct {
	Name string
	Cell func(item T) Cell
	// Keep means that it is never cut, because it is copied into commands. A wide table is never cut.
	Keep bool
	// Wide means that only a wide table has it.
	Wide bool
}

// TableOf returns a table with a row for each item.
func TableOf[T any](items []T, wide bool, columns []Column[T]) *Table {
	t := &Table{wide: wide, rows: make([][]Cell, len(items))}
	for _, c := range columns {
		if c.Wide && !wide {
			continue
		}
		t.header, t.keep = append(t.header, c.Name), append(t.keep, c.Keep)
		for i, item := range items {
			t.rows[i] = append(t.rows[i], c.Cell(item))
		}
	}
	return t
}

// TextOf returns the function of a column whose cells are the same text everywhere.
func TextOf[T any](text func(item T) string) func(T) Cell {
	return func(item T) Cell { return Text(text(item)) }
}
