package facade

import "github.com/lmosd/lmosd/interact"

// states is the table of states (MCP 2026-07-28, extension "Tasks"): what a task is as a run of an action, both ways. A
// run that failed is a task that failed; but one whose agent says that it failed is completed, with isError.
var states = []struct {
	task   string
	failed bool // isError of the result
	status interact.Status
}{
	{"working", false, interact.StatusRunning},
	{"working", false, interact.StatusPending},
	{"input_required", false, interact.StatusInputRequired},
	{"completed", false, interact.StatusCompleted},
	{"completed", true, interact.StatusFailed},
	{"failed", false, interact.StatusFailed},
	{"cancelled", false, interact.StatusCancelled},
}

// StatusOf is what a task of MCP is as a run; failed is the isError of its result. StatusNone is for what is not in the table: nobody
// knows what it means.
func StatusOf(task string, failed bool) interact.Status {
	for _, row := range states {
		if row.task == task && row.failed == failed {
			return row.status
		}
	}
	return interact.StatusNone
}

// taskOf is what a run is as a task; said tells of one that failed that its agent says so. It is empty for what is not in the table.
func taskOf(s interact.Status, said bool) string {
	for _, row := range states {
		if row.status == s && row.failed == (said && s == interact.StatusFailed) {
			return row.task
		}
	}
	return ""
}
