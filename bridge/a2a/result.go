package a2a

import (
	"slices"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
)

// maxOutcome is the size limit of an outcome, in bytes. Further parts are omitted; the task has them.
const maxOutcome = 12 << 20

// An outcome collects the result of a turn: the current artifacts, without those of earlier turns of the task that the agent does not
// send again.
type outcome struct {
	bridge.Outcome
	size int
}

// room counts the size of parts, and reports whether the limit allows them.
func (o *outcome) room(parts []protocol.Part) bool {
	for _, p := range parts {
		o.size += len(p.Data) + len(p.Metadata)
		for _, text := range []*string{p.Text, p.Raw, p.URL} {
			if text != nil {
				o.size += len(*text)
			}
		}
	}
	return o.size <= maxOutcome
}

// message adds a message that the agent returned in place of a task.
func (o *outcome) message(m *protocol.Message) {
	if o.room(m.Parts) {
		o.Message, o.Metadata = partsOf(m.Parts), m.Metadata
	}
}

// task adds the parts of a task that are not known yet.
func (o *outcome) task(t *protocol.Task, known map[string]int) {
	if len(t.Metadata) > 0 {
		o.Metadata = t.Metadata
	}
	for _, a := range t.Artifacts {
		n := min(known[a.ID], len(a.Parts))
		if n == len(a.Parts) {
			continue
		}
		rest := *a
		rest.Parts = a.Parts[n:]
		o.artifact(&rest, o.index(a.ID) >= 0)
	}
}

func (o *outcome) index(id string) int {
	return slices.IndexFunc(o.Artifacts, func(a bridge.Artifact) bool { return a.ID == id })
}

// artifact adds an artifact, or further parts of it. Consecutive text is one part.
func (o *outcome) artifact(a *protocol.Artifact, more bool) {
	if !o.room(a.Parts) {
		return
	}
	parts := partsOf(a.Parts)
	i := o.index(a.ID)
	if i < 0 {
		i = len(o.Artifacts)
		o.Artifacts = append(o.Artifacts, bridge.Artifact{ID: a.ID})
	}
	to := &o.Artifacts[i]
	if a.Name != "" {
		to.Name = a.Name
	}
	if a.Description != "" {
		to.Description = a.Description
	}
	if len(a.Metadata) > 0 {
		to.Metadata = a.Metadata
	}
	if !more {
		to.Parts = parts
		return
	}
	if n := len(to.Parts); n > 0 && len(parts) > 0 && continues(to.Parts[n-1], parts[0]) {
		text := *to.Parts[n-1].Text + *parts[0].Text
		to.Parts[n-1].Text = &text
		parts = parts[1:]
	}
	to.Parts = append(to.Parts, parts...)
}

func continues(a, b bridge.Part) bool {
	return a.Text != nil && b.Text != nil && a.Filename == b.Filename && a.MediaType == b.MediaType && string(a.Metadata) == string(b.Metadata)
}

// end completes the outcome of a turn whose task did not fail.
func (o *outcome) end(task, context string, s protocol.Status) bridge.Outcome {
	o.Task, o.Context, o.State = task, context, bridge.TurnCompleted
	switch s.State {
	case protocol.InputRequired:
		o.State = bridge.TurnInputRequired
	case protocol.AuthRequired:
		o.State = bridge.TurnAuthRequired
	}
	if s.Message != nil && o.room(s.Message.Parts) {
		o.Message = partsOf(s.Message.Parts)
	}
	return o.Outcome
}

func partsOf(parts []protocol.Part) (all []bridge.Part) {
	for _, p := range parts {
		one := bridge.Part{Text: p.Text, URL: p.URL, Data: p.Data, Filename: p.Filename, MediaType: p.MediaType, Metadata: p.Metadata}
		if p.Raw != nil {
			one.Raw, _ = p.Bytes() // empty if it is not base64
		}
		all = append(all, one)
	}
	return all
}
