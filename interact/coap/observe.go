package coap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	// backlog limits the notifications that wait for a slow consumer. Above it, the oldest value of a property is dropped, and a
	// subscription to an event ends.
	backlog = 64
	// defaultAge is the Max-Age of a response without one (RFC 7252 §5.10.5).
	defaultAge = time.Minute
	// grace is the minimal extra time for a notification; the maximum is three times that (RFC 7641 §3.3.1: 5 to 15 s).
	grace = 5 * time.Second
	// wrap and old separate newer notifications from older ones (RFC 7641 §3.4).
	wrap = 1 << 23
	old  = 128 * time.Second
)

// A watcher is one running observation and its latest value.
type watcher struct {
	r     *request
	yield func(*interact.Message) bool

	registered bool      // the agent sends notifications
	seq        uint32    // of the last notification
	at         time.Time // time of its arrival
	hasValue   bool      // there is a value, in the next three members
	format     uint32
	last       []byte
	etag       []byte
	parts      map[string]string // the last value of each property, if all are observed
}

// watch observes the resource of the form until the consumer leaves or it ends with an error.
func (r *request) watch(ctx context.Context, yield func(*interact.Message) bool) error {
	w := &watcher{r: r, yield: yield, parts: make(map[string]string)}
	err := w.observe(ctx)
	if err == errPoll {
		err = w.poll(ctx)
	}
	return err
}

// errPoll means that the resource cannot be observed.
var errPoll = errors.New("the agent does not support observation")

// event reports whether events are observed. Each event is delivered; of a property only the newest value is.
func (w *watcher) event() bool {
	return w.r.Message.Type == interact.SubscribeEvent || w.r.Message.Type == interact.SubscribeAllEvents
}

// observe registers with the agent and yields its notifications. It registers again after the Max-Age of the last value, which detects
// an agent that has restarted or left (RFC 7641 §3.3.1).
func (w *watcher) observe(ctx context.Context) error {
	r := w.r
	e, err := r.client.pool.Get(ctx, r.target())
	if err != nil {
		return r.lost(ctx, err)
	}
	defer e.Release()
	k := e.Call(backlog)
	k.Newest = !w.event()
	defer k.End()
	answer, err := w.register(ctx, e, k)
	if err != nil {
		return err
	}
	defer func() {
		if w.registered {
			w.deregister(k)
		}
	}()
	isResponse := true
	for {
		if err := w.notification(ctx, e, answer, isResponse); err != nil {
			return err
		}
		late := time.NewTimer(age(answer) + grace + rand.N(2*grace))
		isResponse = false
		select {
		case answer = <-k.Answers:
		case <-late.C:
			isResponse = true
			answer, err = w.register(ctx, e, k)
		case <-k.Over:
			err = interact.Errorf(interact.Overloaded, "read faster, or subscribe to less",
				"%s: more than %d events wait for the consumer", r.What(), backlog)
		case <-ctx.Done():
			err = r.lost(ctx, &messaging.Loss{Cause: ctx.Err(), Started: true, Acked: true})
		case <-e.Ended():
			err = r.lost(ctx, e.Why())
		}
		if late.Stop(); err != nil {
			return err
		}
	}
}

// register registers for notifications and returns the first response.
func (w *watcher) register(ctx context.Context, e *messaging.Lease, k *messaging.Call) (*messaging.Packet, error) {
	within, cancel := context.WithTimeout(ctx, form.DefaultTimeout)
	defer cancel()
	p := w.r.packet()
	p.AddUint(message.Observe, 0) // RFC 7641 §2: register
	a, err := w.r.transfer(k).upload(within, p, w.r.Body)
	if err != nil {
		return nil, w.r.lostOn(within, e, err)
	}
	return a, nil
}

// deregister ends the registration without waiting: if the message is lost, the next notification is rejected.
func (w *watcher) deregister(k *messaging.Call) {
	p := w.r.packet()
	p.AddUint(message.Observe, 1) // RFC 7641 §2: deregister
	p.Kind = message.NonConfirmable
	if len(w.r.Body) <= 1024 {
		p.Payload = w.r.Body
	}
	ctx, cancel := context.WithTimeout(context.Background(), messaging.Writing)
	defer cancel()
	_, err := k.Send(ctx, p)
	w.r.client.log.Debug("observation ended", "thing", w.r.Thing.ID, "name", w.r.Message.Name, "err", err)
}

// age returns the time in which the value in p is fresh.
func age(p *messaging.Packet) time.Duration {
	if seconds, ok := p.Uint(message.MaxAge); ok {
		return min(time.Duration(seconds)*time.Second, maxPoll)
	}
	return defaultAge
}

// notification handles one message of an observation. isResponse means that the message is the response to a registration.
func (w *watcher) notification(ctx context.Context, c *messaging.Lease, p *messaging.Packet, isResponse bool) error {
	if !p.Good() {
		return refused(w.r.What(), p) // RFC 7641 §3.2: it ends the observation
	}
	seq, observed := p.Uint(message.Observe)
	now := time.Now()
	w.registered = observed
	stale := w.hasValue && !c.Stream() && !newer(w.seq, seq, now.Sub(w.at))
	if observed && stale && !w.event() && !isResponse {
		return nil
	}
	isResponse = isResponse || !c.Stream() && p.Kind == message.Acknowledgement // a notification can arrive before it
	w.seq, w.at = seq, now
	whole, err := w.whole(ctx, c, p)
	if err != nil {
		return err
	}
	switch {
	case !observed && w.event():
		w.note(whole) // a value before the subscription is not an event
		return errPoll
	case isResponse && w.event() && len(whole.Payload) == 0:
		w.hasValue = true
		return nil // the subscription is confirmed
	}
	if !isResponse || w.changed(whole) {
		err = w.yieldValue(whole)
	}
	if err == nil && !observed {
		err = errPoll
	}
	return err
}

// newer reports whether a notification with the number seq is newer than one with the number last (RFC 7641 §3.4).
func newer(last, seq uint32, since time.Duration) bool {
	return last < seq && seq-last < wrap || last > seq && last-seq > wrap || since > old
}

// whole fetches the rest of a notification, which has only its first block (RFC 7959 §3.4). The requests have a separate token.
func (w *watcher) whole(ctx context.Context, c *messaging.Lease, p *messaging.Packet) (*messaging.Packet, error) {
	if b, ok := p.Block(message.Block2); !ok || !b.More {
		if len(p.Payload) > w.r.client.limit {
			return nil, transfer{r: w.r}.tooLarge()
		}
		return p, nil
	}
	within, cancel := context.WithTimeout(ctx, form.DefaultTimeout)
	defer cancel()
	k := c.Call(1)
	defer k.End()
	whole, err := w.r.transfer(k).complete(within, w.r.packet(), p)
	if err != nil {
		return nil, w.r.lost(within, err)
	}
	return whole, nil
}

// changed reports whether p differs from the latest value.
func (w *watcher) changed(p *messaging.Packet) bool {
	format, _ := p.Uint(message.ContentFormat)
	return !w.hasValue || format != w.format || !bytes.Equal(p.Payload, w.last)
}

// note records p as the latest value.
func (w *watcher) note(p *messaging.Packet) {
	w.hasValue, w.last = true, p.Payload
	w.format, _ = p.Uint(message.ContentFormat)
	w.etag, _ = p.Option(message.ETag)
}

// yieldValue yields p: a reading or an event, or one for each member of the object if all are observed.
func (w *watcher) yieldValue(p *messaging.Packet) error {
	w.note(p)
	data, media, err := w.r.settle(p)
	if err != nil {
		return err
	}
	switch w.r.Message.Type {
	case interact.ObserveProperty:
		return w.give(interact.PropertyReading, w.r.Message.Name, data, media)
	case interact.SubscribeEvent:
		return w.give(interact.Event, w.r.Message.Name, data, media)
	}
	v, ok, err := interact.Value(data, media)
	values, object := v.(map[string]any)
	if err != nil || !ok || !object {
		return w.r.broken("expected an object of values by name for an observation of all")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		one, err := json.Marshal(values[name])
		if err != nil {
			return w.r.broken("%s", err)
		}
		t := interact.Event
		if !w.event() {
			t = interact.PropertyReading
			if w.parts[name] == string(one) {
				continue
			}
			w.parts[name] = string(one)
		}
		if err := w.give(t, name, one, interact.JSON); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) give(t interact.Type, name string, data []byte, media string) error {
	m := w.r.Message.Reply(t, media, data)
	m.Name, m.Time = name, time.Now().UTC()
	if !w.yield(m) {
		return form.ErrLeft
	}
	return nil
}

// poll requests the resource repeatedly and yields changes.
func (w *watcher) poll(ctx context.Context) error {
	for pause := w.r.terms.poll; ; {
		if err := backoff.Sleep(ctx, pause); err != nil {
			return w.r.lost(ctx, err)
		}
		p, err := w.request(ctx)
		if err != nil {
			return err
		}
		pause = w.r.terms.poll
		switch {
		case p.Code == codes.TooManyRequests: // RFC 8516 §3: Max-Age is the pause
			pause = max(pause, age(p))
		case !p.Good():
			return refused(w.r.What(), p)
		case p.Code == codes.Valid || !w.changed(p):
		default:
			if err := w.yieldValue(p); err != nil {
				return err
			}
		}
	}
}

// request requests the resource once, with the ETag of the latest value (RFC 7252 §5.10.6.2).
func (w *watcher) request(ctx context.Context) (*messaging.Packet, error) {
	within, cancel := context.WithTimeout(ctx, form.DefaultTimeout)
	defer cancel()
	p := w.r.packet()
	if len(w.etag) > 0 {
		p.Add(message.ETag, w.etag)
	}
	return w.r.exchange(within, p, w.r.Body)
}
