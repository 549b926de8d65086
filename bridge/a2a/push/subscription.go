package push

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/netguard"
)

const (
	// maxFollow limits the subscription to a task.
	maxFollow = 24 * time.Hour
	// pollEvery is the interval of requests to an agent without streams.
	pollEvery = 5 * time.Second
	// maxBroken is the number of failed requests in a row after which a task is given up.
	maxBroken = 10
)

// follow delivers the events of a task until it ends, and then removes its webhooks.
func (p *pushAgent) follow(at taskKey, s *subscription) {
	ctx, cancel := context.WithTimeout(p.ctx, maxFollow)
	defer cancel()
	defer func() {
		if broken := recover(); broken != nil {
			p.o.Log.Error("task subscription panicked", "agent", at.agent, "panic", fmt.Sprint(broken), "stack", string(debug.Stack()))
		}
		s.work.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.all[at] == s {
			delete(p.all, at)
		}
	}()
	var seen [sha256.Size]byte
	for broken, idleRounds := 0, 0; broken < maxBroken && ctx.Err() == nil; {
		r := p.subscribe(ctx, at, &seen)
		if r.ended {
			if s.work.Wait(); p.forget(at, s) {
				return
			}
			clear(seen[:]) // a webhook was added after the last event: deliver that again
			continue
		}
		if broken++; r.reached {
			broken = 0
		}
		if idleRounds++; r.changed {
			idleRounds = 0
		}
		_ = backoff.Sleep(ctx, min(p.o.Wait<<min(idleRounds, 8), pollEvery)) // the loop checks ctx
	}
}

// A round is the result of one subscription: the task has ended, the agent was reached, an event was new.
type round struct{ ended, reached, changed bool }

// forget removes a task that has ended, unless a webhook has received no event yet.
func (p *pushAgent) forget(at taskKey, s *subscription) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(s.hooks, func(h *webhook) bool { return !h.notified }) {
		return false
	}
	delete(p.all, at)
	return true
}

// subscribe subscribes to a task, or polls it if the agent has no streams. An agent may end the stream of a waiting task, and start the
// next one with the same task: seen is the hash of the last task that was delivered.
func (p *pushAgent) subscribe(ctx context.Context, at taskKey, seen *[sha256.Size]byte) (r round) {
	for event, err := range p.agent.Do(ctx, &protocol.Operation{Method: protocol.SubscribeToTask, Service: version,
		Params: protocol.Encode(protocol.Get{ID: at.task})}) {
		if err != nil {
			polled := p.poll(ctx, at, seen, err)
			return round{polled.ended, r.reached || polled.reached, r.changed || polled.changed}
		}
		if isFresh := isNew(event, seen); isFresh || r.reached {
			r.changed = true
			p.deliverAll(ctx, at, event)
		}
		r.reached = true
		if _, state := protocol.TaskOf(event); state.Terminal() {
			r.ended = true
			return r
		}
	}
	return r
}

// isNew reports whether an event differs from the last task, and records it.
func isNew(event json.RawMessage, seen *[sha256.Size]byte) bool {
	var e struct{ Task json.RawMessage }
	if json.Unmarshal(event, &e) != nil || e.Task == nil {
		return true
	}
	sum := sha256.Sum256(e.Task)
	if sum == *seen {
		return false
	}
	*seen = sum
	return true
}

// version has the service parameters of the node's own requests.
var version = map[string]string{protocol.VersionParam: "1.0"}

// poll gets a task that cannot be subscribed, for the reason why: the task may have ended, or its agent has no streams. A change is
// delivered.
func (p *pushAgent) poll(ctx context.Context, at taskKey, seen *[sha256.Size]byte, why error) round {
	task, err := protocol.Call(ctx, p.agent, &protocol.Operation{Method: protocol.GetTask, Service: version,
		Params: protocol.Encode(protocol.Get{ID: at.task})})
	if errors.Is(err, &protocol.Error{Code: protocol.TaskNotFound}) {
		return round{ended: true}
	}
	if err != nil {
		p.o.Log.Debug("task subscription failed", "agent", at.agent, "err", why)
		return round{}
	}
	r := round{reached: true}
	event := append(append([]byte(`{"task":`), task...), '}')
	if isNew(event, seen) {
		r.changed = true
		p.deliverAll(ctx, at, event)
	}
	_, state := protocol.TaskOf(event)
	r.ended = state.Terminal()
	return r
}

// deliverAll queues an event for each webhook of a task.
func (p *pushAgent) deliverAll(ctx context.Context, at taskKey, event json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.all[at]
	if s == nil {
		return
	}
	for _, h := range slices.Clone(s.hooks) {
		h.notified = true
		if h.size += len(event); h.size > maxQueue {
			p.dropLocked(s, h, "it accepts events too slowly")
			continue
		}
		if h.queue = append(h.queue, event); !h.busy {
			h.busy = true
			s.work.Go(func() { p.drain(ctx, s, h) })
		}
	}
}

// drain delivers the queued events of a webhook.
func (p *pushAgent) drain(ctx context.Context, s *subscription, h *webhook) {
	for {
		event, more := p.take(s, h)
		if !more {
			return
		}
		err := p.deliver(ctx, &h.config, event)
		p.mu.Lock()
		if h.failed++; err == nil {
			h.failed = 0
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case h.failed >= p.o.MaxFailed:
			p.dropLocked(s, h, "too many failed events in a row")
		default:
			p.o.Log.Warn("push notification dropped", "agent", p.ref, "host", hostOf(h.URL), "err", redacted(err))
		}
		p.mu.Unlock()
	}
}

// take returns the next event of a webhook, unless the webhook was removed.
func (p *pushAgent) take(s *subscription, h *webhook) (event json.RawMessage, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.busy = len(h.queue) > 0 && slices.Contains(s.hooks, h) && !p.closed; !h.busy {
		return nil, false
	}
	event, h.queue = h.queue[0], h.queue[1:]
	h.size -= len(event)
	return event, true
}

// dropLocked removes a webhook and logs the reason.
func (p *pushAgent) dropLocked(s *subscription, h *webhook, why string) {
	s.hooks = slices.DeleteFunc(s.hooks, func(have *webhook) bool { return have == h })
	p.o.Log.Warn("webhook removed", "agent", p.ref, "host", hostOf(h.URL), "reason", why)
}

// deliver posts an event until the webhook accepts it, or all tries failed.
func (p *Pusher) deliver(ctx context.Context, c *config, event json.RawMessage) (err error) {
	pauses := backoff.Backoff{First: p.o.Wait}
	for try := range p.o.Tries {
		if try > 0 {
			_ = pauses.Sleep(ctx) // the request fails when ctx ends
		}
		if err = p.post(ctx, c, event); err == nil || ctx.Err() != nil {
			return err
		}
		refused := &netguard.Error{}
		final := &refusal{}
		if errors.As(err, &refused) || errors.As(err, &final) && final.status < 500 && final.status != http.StatusTooManyRequests {
			return err // a further try would fail, too
		}
	}
	return err
}

// A refusal is a response with a status other than 2xx.
type refusal struct{ status int }

func (r *refusal) Error() string { return fmt.Sprintf("the webhook responded with %d", r.status) }

func (p *Pusher) post(ctx context.Context, c *config, event json.RawMessage) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(event))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/a2a+json")
	q.Header.Set(protocol.VersionParam, "1.0")
	if c.Auth != nil {
		q.Header.Set("Authorization", c.Auth.Scheme+" "+c.Auth.Credentials)
	}
	if c.Token != "" {
		for _, name := range tokenHeaders {
			q.Header.Set(name, c.Token)
		}
	}
	answer, err := p.client.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // so that the connection can be reused
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return &refusal{answer.StatusCode}
	}
	return nil
}

// hostOf returns the part of a webhook's URL for logs: path and query may contain secrets.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

// redacted returns an error without the URL of the webhook.
func redacted(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
