package mqtt

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Pauses before a failed observation is started again.
const (
	firstRetry = time.Second
	maxRetry   = time.Minute
)

// A proposal is a filter that a client may subscribe to.
type proposal struct {
	ref      string // the thing
	from     *did.Principal
	qos      byte
	subjects []subject // nil for a response topic
}

// propose checks the filter of a subscription; nil if the client may not subscribe.
func (b *Broker) propose(ctx context.Context, c *consumer, filter string, qos byte) *proposal {
	watched := 0
	b.mu.Lock()
	_, again := c.filters[filter]
	room := again || len(c.filters)+len(c.proposed) < maxClientFilters
	for other, p := range c.filters {
		if c.proposed[other] == nil && other != filter {
			watched += len(p.subjects)
		}
	}
	b.mu.Unlock()
	for _, p := range c.proposed {
		if p != nil {
			watched += len(p.subjects)
		}
	}
	s, ok := parseFilter(filter)
	switch {
	case !room:
		b.crowded.warn(b.o.Log, "mqtt client has too many subscriptions", "remote", c.client.Net.Remote, "limit", maxClientFilters)
		return nil
	case !ok && isReply(filter):
		return &proposal{qos: qos}
	case !ok:
		return nil
	}
	d, err := b.find(ctx, c.from, s.thing)
	if err != nil {
		b.o.Log.Info("mqtt subscription refused", "remote", c.client.Net.Remote, "filter", quoted(filter), "err", err)
		return nil
	}
	p := &proposal{ref: d.Ref(), from: c.from, qos: qos, subjects: s.subjects(d.Thing)}
	if b.o.Permits != nil {
		p.subjects = slices.DeleteFunc(p.subjects, func(s subject) bool { return !b.o.Permits(c.from, d, s.typ, s.name) })
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p.subjects) == 0 {
		return nil
	}
	if len(b.watches)+len(p.subjects) > maxWatches || watched+len(p.subjects) > maxClientWatches {
		b.crowded.warn(b.o.Log, "mqtt client observes too much", "remote", c.client.Net.Remote, "limit", maxClientWatches,
			"of_all", maxWatches)
		return nil
	}
	return p
}

// A watchKey identifies an observation, independent of the spelling of the thing and the affordance.
type watchKey struct {
	ref  string // of the description (td.Description.Ref)
	typ  interact.Type
	name string
	from *did.Principal // clients of one principal share an observation
}

func (p *proposal) key(s subject) watchKey { return watchKey{p.ref, s.typ, s.name, p.from} }

// A watch is one observation at the mesh, and its subscribed clients.
type watch struct {
	watchKey
	end     context.CancelFunc
	members map[*consumer]map[string]membership // by filter; broker.mu guards it
}

// A membership is a subscription by one filter of a client, with the topic in the spelling of the filter.
type membership struct {
	topic string
	qos   byte
}

// subscribe adds c to the watches of p.
func (b *Broker) subscribe(c *consumer, filter string, p *proposal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.life.Err() != nil {
		return
	}
	old := c.filters[filter]
	c.filters[filter] = p
	now := map[watchKey]bool{}
	for _, s := range p.subjects {
		key := p.key(s)
		now[key] = true
		w := b.watches[key]
		if w == nil {
			w = b.beginLocked(key)
		}
		if w != nil && w.members[c] == nil {
			w.members[c] = map[string]membership{}
		}
		if w != nil {
			w.members[c][filter] = membership{s.topic, p.qos}
		}
	}
	if old != nil { // subjects that it no longer covers
		gone := *old
		gone.subjects = slices.DeleteFunc(slices.Clone(old.subjects), func(s subject) bool { return now[old.key(s)] })
		b.forgetLocked(c, filter, &gone)
	}
}

// beginLocked starts an observation; nil if the broker has ended.
func (b *Broker) beginLocked(key watchKey) *watch {
	ctx, cancel := context.WithCancel(b.life)
	w := &watch{watchKey: key, end: cancel, members: map[*consumer]map[string]membership{}}
	if !b.spawnLocked(func() { b.observe(ctx, w) }) {
		cancel()
		return nil
	}
	b.watches[key] = w
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
	b.forgetLocked(c, filter, p)
}

// forgetLocked removes c from the watches of p. The last member ends the observation.
func (b *Broker) forgetLocked(c *consumer, filter string, p *proposal) {
	for _, s := range p.subjects {
		w := b.watches[p.key(s)]
		if w == nil {
			continue
		}
		if delete(w.members[c], filter); len(w.members[c]) == 0 {
			delete(w.members, c)
		}
		if len(w.members) == 0 {
			delete(b.watches, w.watchKey)
			w.end()
		}
	}
}

// observe observes the mesh until ctx ends, and delivers to the members.
func (b *Broker) observe(ctx context.Context, w *watch) {
	after := ""
	pauses := backoff.Backoff{First: firstRetry, Max: maxRetry}
	for {
		m := &interact.Message{Type: w.typ, Thing: w.ref, Name: w.name, From: w.from, ID: interact.NewID(), After: after, Accept: interact.JSON}
		err := b.safely("an observation", func() error {
			for r, err := range b.o.Mesh.Do(ctx, m) {
				if err != nil {
					return err
				}
				b.deliver(w, r)
				pauses.Reset()
				if r.ID != "" {
					after = r.ID
				}
			}
			return errors.New("the observation ended")
		})
		if ctx.Err() != nil {
			return
		}
		pause := pauses.Next()
		b.o.Log.Warn("mqtt observation failed", "thing", w.ref, "name", w.name, "retry_in", pause, "err", err)
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// deliver sends a reading or event to all members, once on each of their topics.
func (b *Broker) deliver(w *watch, r *interact.Message) {
	first := newOutgoing("", r, interact.JSON)
	first.add(propID, r.ID)
	if !r.Time.IsZero() {
		first.add(propTime, r.Time.UTC().Format(time.RFC3339Nano))
	}
	var stuck []*consumer
	b.mu.Lock()
	for c, filters := range w.members {
		topics := map[string]byte{}
		for _, h := range filters {
			topics[h.topic] = max(topics[h.topic], h.qos)
		}
		for topic, qos := range topics {
			p := *first
			if p.topic = topic; c.send(&p, qos) {
				stuck = append(stuck, c)
			}
		}
	}
	b.mu.Unlock()
	for _, c := range stuck {
		c.stop()
	}
}

// newOutgoing returns a message with r, in the preferred type if r can be converted.
func newOutgoing(topic string, r *interact.Message, accept string) *outgoing {
	p := &outgoing{topic: topic, data: r.Data, media: r.Media()}
	if data, media, err := interact.Transcode(r.Data, r.Media(), accept); err == nil {
		p.data, p.media = data, media
	}
	p.media = mediaOf(p.media, "application/octet-stream")
	if len(p.data) == 0 {
		p.media = ""
	}
	return p
}
