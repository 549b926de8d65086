package task

import "github.com/lmosd/lmosd/interact"

// whole is the completed state final with the output of the task, also where the output came in parts.
func (t *task) whole(final *interact.Message) *interact.Message {
	if len(final.Data) > 0 || len(t.parts) == 0 {
		return final
	}
	c := *final
	c.Data, c.ContentType = interact.Join(t.parts)
	return &c
}
