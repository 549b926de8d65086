package terminal

// A Column is a column of a table of items.
type Column[T any] struct {
	Name string
	Cell func(item T) Cell
	// Keep means that it is never cut, because it is copied into commands.
	Keep bool
	// Wide means that only a wide table has it.
	Wide bool
}

// TableOf returns a table with a row for each item.
func TableOf[T any](items []T, wide bool, columns []Column[T]) *Table {
	t := &Table{Wide: wide}
	var shown []Column[T]
	for _, c := range columns {
		if c.Wide && !wide {
			continue
		}
		if c.Keep {
			t.Keep = append(t.Keep, len(shown))
		}
		t.Header, shown = append(t.Header, c.Name), append(shown, c)
	}
	for _, item := range items {
		row := make([]Cell, len(shown))
		for i, c := range shown {
			row[i] = c.Cell(item)
		}
		t.Add(row...)
	}
	return t
}

// TextOf returns the function of a column whose cells are the same text everywhere.
func TextOf[T any](text func(item T) string) func(T) Cell {
	return func(item T) Cell { return Text(text(item)) }
}
