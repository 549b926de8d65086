package mqtt

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// Pauses before an observation that failed is begun again.
const (
	firstRetry = time.Second
	maxRetry   = time.Minute
)

// A proposal is a filter that a client may subscribe to.
type proposal struct {
	ref      string // the thing
	qos      byte
	subjects []subject // what is published on it; nil if it is that of a reply
}

// propose checks a filter that a client wants to subscribe to; nil if it may not.
func (b *Broker) propose(ctx context.Context, c *consumer, filter string, qos byte) *proposal {
	b.mu.Lock()
	_, again := c.filters[filter]
	room := again || len(c.filters)+len(c.proposed) < maxClientFilters
	b.mu.Unlock()
	s, ok := parseFilter(filter)
	switch {
	case !room:
		b.o.Log.Warn("mqtt client has too many subscriptions", "remote", c.client.Net.Remote)
		return nil
	case !ok && isReply(filter):
		return &proposal{qos: qos}
	case !ok:
		return nil
	}
	d, err := b.find(ctx, s.thing)
	if err != nil {
		b.o.Log.Info("mqtt subscription refused", "remote", c.client.Net.Remote, "filter", interact.Clip(interact.Readable(filter), 200), "err", err)
		return nil
	}
	p := &proposal{ref: d.Ref(), qos: qos, subjects: s.subjects(d.Thing)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p.subjects) == 0 || len(b.watches)+len(p.subjects) > maxWatches {
		return nil
	}
	return p
}

// A watch is one observation at the mesh, and the clients who hear of it.
type watch struct {
	subject
	ref     string
	end     context.CancelFunc
	members map[*consumer]map[string]byte // the QoS by filter; broker.mu guards it
}

// subscribe makes c hear of what p covers.
func (b *Broker) subscribe(c *consumer, filter string, p *proposal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.life.Err() != nil {
		return
	}
	old := c.filters[filter]
	c.filters[filter] = p
	for _, s := range p.subjects {
		w := b.watches[s.topic]
		if w == nil {
			w = b.beginLocked(s, p.ref)
		}
		if w != nil && w.members[c] == nil {
			w.members[c] = map[string]byte{}
		}
		if w != nil {
			w.members[c][filter] = p.qos
		}
	}
	if old != nil { // what it covered then, and does not cover now
		gone := slices.DeleteFunc(slices.Clone(old.subjects), func(s subject) bool { return slices.Contains(p.subjects, s) })
		b.forgetLocked(c, filter, gone)
	}
}

// beginLocked begins an observation; nil if the broker has ended.
func (b *Broker) beginLocked(s subject, ref string) *watch {
	ctx, cancel := context.WithCancel(b.life)
	w := &watch{subject: s, ref: ref, end: cancel, members: map[*consumer]map[string]byte{}}
	if !b.spawnLocked(func() { b.observe(ctx, w) }) {
		cancel()
		return nil
	}
	b.watches[s.topic] = w
	return w
}

func (b *Broker) unsubscribe(c *consumer, filter string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsubscribeLocked(c, filter)
}

func (b *Broker) unsubscribeLocked(c *consumer, filter string) {
	p := c.filters[filter]
	if p == nil {
		return
	}
	delete(c.filters, filter)
	b.forgetLocked(c, filter, p.subjects)
}

// forgetLocked takes c from the watches of subjects. The last one ends the observation.
func (b *Broker) forgetLocked(c *consumer, filter string, subjects []subject) {
	for _, s := range subjects {
		w := b.watches[s.topic]
		if w == nil {
			continue
		}
		if delete(w.members[c], filter); len(w.members[c]) == 0 {
			delete(w.members, c)
		}
		if len(w.members) == 0 {
			delete(b.watches, s.topic)
			w.end()
		}
	}
}

// observe asks the mesh until ctx ends, and tells the members.
func (b *Broker) observe(ctx context.Context, w *watch) {
	after := ""
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		m := &interact.Message{Type: w.typ, Thing: w.ref, Name: w.name, ID: interact.NewID(), After: after, Accept: interact.JSON}
		err := errors.New("it ended")
		for r, failed := range b.o.Mesh.Do(ctx, m) {
			if failed != nil {
				err = failed
				break
			}
			b.tell(w, r)
			pause = firstRetry
			if r.ID != "" {
				after = r.ID
			}
		}
		if ctx.Err() != nil {
			return
		}
		b.o.Log.Warn("mqtt observation failed, it is begun again", "thing", w.ref, "name", w.name, "in", pause, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// tell gives a reading or event to all members.
func (b *Broker) tell(w *watch, r *interact.Message) {
	p := newParcel(w.topic, r, interact.JSON)
	p.add(propID, r.ID)
	if !r.Time.IsZero() {
		p.add(propTime, r.Time.UTC().Format(time.RFC3339Nano))
	}
	var stuck []*consumer
	b.mu.Lock()
	for c, filters := range w.members {
		if c.send(p, slices.Max(slices.Collect(maps.Values(filters)))) {
			stuck = append(stuck, c)
		}
	}
	b.mu.Unlock()
	for _, c := range stuck {
		c.stop()
	}
}

// newParcel makes a message of r, in the type that is liked if r can be written so.
func newParcel(topic string, r *interact.Message, accept string) *parcel {
	p := &parcel{topic: topic, data: r.Data, media: r.Media()}
	if data, media, err := interact.Transcode(r.Data, r.Media(), accept); err == nil {
		p.data, p.media = data, media
	}
	p.media = mediaOf(p.media, "application/octet-stream")
	if len(p.data) == 0 {
		p.media = ""
	}
	return p
}
