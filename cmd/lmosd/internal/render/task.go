package render

import (
	"fmt"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// Tasks returns the table of tasks.
func Tasks(items []api.Task, now time.Time) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.Task]{
		{Name: "TASK", Keep: true, Cell: func(i api.Task) terminal.Cell { return terminal.Short(i.ID[:min(len(i.ID), shortTask)], i.ID) }},
		{Name: "AGENT", Cell: func(i api.Task) terminal.Cell { return terminal.Short(i.Name, i.Thing) }},
		{Name: "ACTION", Cell: terminal.TextOf(func(i api.Task) string { return i.Action })},
		{Name: "STATUS", Keep: true, Cell: func(i api.Task) terminal.Cell {
			if i.Status == api.UnknownTask {
				return terminal.Text(fmt.Sprintf("%s (%s %s ago)", i.Status, i.LastStatus, terminal.Ago(i.LastSeen, now))).In(terminal.Yellow)
			}
			return terminal.Text(i.Status).In(taskColors[i.Status])
		}},
		{Name: "STARTED", Keep: true, Cell: func(i api.Task) terminal.Cell {
			return terminal.Short(terminal.Ago(i.Requested, now), i.Requested.Format(time.RFC3339))
		}},
		{Name: "TOOK", Keep: true, Cell: func(i api.Task) terminal.Cell { return duration(i, now) }},
	})
}

// taskColors are the colors of states.
var taskColors = map[string]string{"completed": terminal.Green, "failed": terminal.Red, "cancelled": terminal.Yellow, "input-required": terminal.Yellow}

// duration returns how long a task took, or has taken until now.
func duration(i api.Task, now time.Time) terminal.Cell {
	if i.Status == api.UnknownTask {
		return terminal.Text("–")
	}
	if !i.Ended.IsZero() {
		now = i.Ended
	}
	took := now.Sub(i.Requested)
	return terminal.Short(terminal.Span(took), took.Round(time.Millisecond).String())
}

// shortTask is the length of an id on a terminal: a UUID up to its first hyphen.
const shortTask = 8
