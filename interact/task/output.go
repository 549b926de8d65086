package task

import "github.com/lmosd/lmosd/interact"

// whole returns the completed state final with the whole output of the task, also if the output came in parts.
func (t *task) whole(final *interact.Message) *interact.Message {
	if len(final.Data) > 0 || len(t.parts) == 0 {
		return final
	}
	c := *final
	c.Data, c.ContentType = interact.Join(t.parts)
	return &c
}
