package sdk

import "encoding/json"

func init() {
	contract["tasks"] = func(a *caller) {
		if a.from == "go" { // its client of tasks has tests of its own
			return
		}
		a.runs("slow", `{"text":"done"}`, `[["wait"]]`, `[["done","completed"],["completed","completed"]]`)
		a.runs("fail", "", `[["wait"]]`, `[["LMOS-1502","failed"],["failed","failed"]]`)
		a.runs("place", "", `[["wait"],["answer",{"name":"attic","dim":true}],["wait",20]]`,
			`[["LMOS-1428","input-required"],[null,"running"],["attic, dimly","completed"],["completed","completed"]]`)
		a.runs("place", "", `[["wait"],["decline"],["wait"]]`,
			`[["LMOS-1428","input-required"],[null,"running"],["nowhere","completed"],["completed","completed"]]`)
		hung := a.hung()
		a.runs("sleep", "", `[["wait",0.05],["cancel"],["wait"]]`,
			`[["LMOS-1504","running"],[null,"cancelled"],["LMOS-1499","cancelled"],["cancelled","cancelled"]]`)
		until(a.T, "the action has ended", func() error { return above(a.hung(), hung) })
	}
}

// runs starts an action as a task, and calls the methods of the task; want has the result and the status after each, and after that of the task
// that the node returns by its id.
func (a *caller) runs(action, input, steps, want string) {
	a.Helper()
	r := request{Op: "task", Agent: a.agent, Name: action, Steps: json.RawMessage(steps)}
	if input != "" {
		r.Input = json.RawMessage(input)
	}
	if got, err := a.client(r, nil); err != nil || !same(got, want) {
		a.Errorf("%s %s: got %s, %v; want %s", action, steps, got, err, want)
	}
}
