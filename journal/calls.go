package journal

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

const (
	maxCalls    = 500
	timedASec   = 50  // calls whose stages are measured in a second, which costs objects and bytes on the wire
	maxIDLength = 256 // interact.Message.ID
)

// A callLog has the last calls. The owner holds a lock.
type callLog struct {
	ring[*call]
	last uint64 // the number of the last ended call
	lost uint64 // the number of the last ended call that was dropped, or of the last one before the start

	second int64 // for which timed counts
	timed  int   // the calls whose stages are measured
}

// A call is an interaction. Its fields after replied are owned by Journal.mu.
type call struct {
	j       *Journal
	self    did.DID
	request *interact.Message
	started time.Time
	yield   func(*interact.Message, error) bool
	replied func(*interact.Message, error) bool // reply

	id, thing, action, trace string
	op                       interact.Type
	from                     *did.Principal
	seq                      uint64 // of the end; 0 while it runs
	listed                   bool
	status                   string
	code                     string
	parts                    int
	first, took              time.Duration
	in, out                  int64
	final                    bool // a reply ended it
	measured                 bool
	timing                   interact.Timing
}

// Middleware records the interactions of the consumers of the node self. It belongs inside of [interact.Trace], whose ids it uses. The stages of up to
// 50 interactions a second are measured, and of those that request it.
func (j *Journal) Middleware(self did.DID) interact.Middleware {
	return func(next interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				c := j.newCall()
				c.self, c.request, c.yield = self, m, yield
				defer c.end(ctx)
				next.Do(ctx, c.begin(m))(c.replied)
			}
		})
	}
}

// newCall returns a call: one that ended and would be dropped next, or a new one.
func (j *Journal) newCall() *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	log := &j.calls
	if log.n < maxCalls || (*log.at(0)).seq == 0 {
		c := &call{j: j}
		c.replied = c.reply
		return c
	}
	c := log.pop()
	log.lost = max(log.lost, c.seq)
	*c = call{j: j, replied: c.replied, thing: c.thing, action: c.action} // begin compares with the texts
	return c
}

// begin records a call that begins, and returns the message for the next stage.
func (c *call) begin(m *interact.Message) *interact.Message {
	c.started = time.Now()
	c.id, c.thing, c.action, c.trace = m.ID[:min(len(m.ID), maxIDLength)], kept(c.thing, m.Thing), kept(c.action, m.Name), m.TraceID()
	c.op, c.from, c.in, c.status = m.Type, m.From, int64(len(m.Data)), api.CallRunning
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	log := &c.j.calls
	c.j.listLocked(c)
	if second := c.started.Unix(); log.second != second {
		log.second, log.timed = second, 0
	}
	if m.Timing != nil || m.Type.Long() || log.timed >= timedASec {
		return m
	}
	log.timed++
	timed := *m // an action that outlives its consumer keeps it
	timed.Timing = &interact.Timing{}
	return &timed
}

// kept returns a copy of text that is not too long: text may be a part of a long request line. It is before if that is the same, so that the same calls
// again allocate nothing.
func kept(before, text string) string {
	if text == before || len(text) > maxText && short(text) == before {
		return before
	}
	return strings.Clone(short(text))
}

// listLocked appends a call to the list, in place of the oldest one.
func (j *Journal) listLocked(c *call) {
	log := &j.calls
	if log.n == maxCalls {
		old := log.pop()
		old.listed = false
		log.lost = max(log.lost, old.seq)
	}
	c.listed = true
	log.push(c, maxCalls)
}

// reply records a reply.
func (c *call) reply(r *interact.Message, err error) bool {
	now := time.Since(c.started)
	c.j.mu.Lock()
	if err != nil {
		e := interact.AsError(err)
		c.code, c.status, c.final = e.Code.String(), api.CallFailed, true
		if e.Code == interact.Cancelled {
			c.status = api.CallCanceled
		}
	} else {
		if c.parts++; c.parts == 1 {
			c.first = now
		}
		c.out += int64(len(r.Data))
		c.final = r.Status.Final() || c.op != interact.InvokeAction || c.request.Detach
		if r.Timing != nil {
			c.measured, c.timing = true, *r.Timing
		}
		switch r.Status {
		case interact.StatusFailed:
			c.status = api.CallFailed
		case interact.StatusCancelled:
			c.status = api.CallCanceled
		}
	}
	c.j.mu.Unlock()
	return c.yield(r, err)
}

// end records the end. A consumer that leaves before the last reply of an action has canceled it.
func (c *call) end(ctx context.Context) {
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	c.took = time.Since(c.started)
	switch {
	case c.status != api.CallRunning:
	case c.final, c.parts > 0 && ctx.Err() == nil && c.op != interact.InvokeAction:
		c.status = api.CallCompleted
	default:
		c.status = api.CallCanceled
	}
	c.seq, _ = c.j.nextLocked()
	c.j.calls.last = c.seq
	if !c.listed { // it lasted longer than the next 500
		c.j.listLocked(c)
	}
	c.request, c.yield = nil, nil // what is not shown is not kept in memory
	c.j.any.notify()
}

// Calls returns the last calls, newest first, with those that run. Their names and, in a list, APIVersion and Kind are empty.
func (j *Journal) Calls() []api.Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make([]api.Call, 0, j.calls.n)
	for i := range j.calls.n {
		all = append(all, (*j.calls.at(i)).showLocked())
	}
	slices.Reverse(all)
	return all
}

// Ended returns an event for each call that ended after the number after, up to upTo, oldest first. If such calls are not kept any more, lost is the
// number of the last of them, else 0.
func (j *Journal) Ended(after, upTo uint64) (found []api.NodeEvent, lost uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if after < j.calls.lost {
		lost = j.calls.lost
	}
	for i := range j.calls.n {
		c := *j.calls.at(i)
		if c.seq <= after || c.seq > upTo {
			continue
		}
		text := c.status
		if c.action != "" {
			text = c.action + " " + text
		}
		found = append(found, api.NodeEvent{Seq: c.seq, At: c.started.Add(c.took).UTC(), Kind: api.EventCallDone, DID: c.hostLocked(), Thing: c.thing,
			Code: c.code, Text: text, ID: c.id, TraceID: c.trace})
	}
	slices.SortFunc(found, func(a, b api.NodeEvent) int { return int(int64(a.Seq - b.Seq)) })
	return found, lost
}

// hostLocked returns the node that called the agent; empty if it is not known.
func (c *call) hostLocked() did.DID {
	if c.measured {
		return cmp.Or(c.timing.Node, c.self)
	}
	return ""
}

func (c *call) showLocked() api.Call {
	shown := api.Call{ID: c.id, At: c.started.UTC(), Thing: c.thing, Action: c.action, Op: c.op.Op(), From: c.from.ID(), Status: c.status, Code: c.code,
		Parts: c.parts, First: api.Milliseconds(c.first), Took: api.Milliseconds(c.took), BytesIn: c.in, BytesOut: c.out, TraceID: c.trace}
	if c.seq == 0 {
		shown.Took = api.Milliseconds(time.Since(c.started))
	}
	if !c.measured {
		return shown
	}
	t := &c.timing
	shown.Stages = &api.CallStages{Resolve: api.Milliseconds(t.Resolve), Dial: api.Milliseconds(t.Dial), Host: api.Milliseconds(t.Host), Agent: api.Milliseconds(t.Agent)}
	if shown.Via, shown.Path = t.Path, []did.DID{c.self}; t.Path == "" {
		shown.Via = "local"
	}
	if shown.Host = c.hostLocked(); shown.Host != "" && shown.Host != c.self {
		shown.Path = append(shown.Path, shown.Host)
	}
	return shown
}
