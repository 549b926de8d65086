package push

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/wire"
	"github.com/lmosd/lmosd/internal/outbound"
)

const (
	// maxFollow is how long a task is followed.
	maxFollow = 24 * time.Hour
	// pollEvery is how often an agent that does not stream is asked.
	pollEvery = 5 * time.Second
	// maxBroken is how many times in a row a task may not be reached.
	maxBroken = 10
)

// follow delivers what happens to a task until it ends, and forgets its webhooks.
func (p *pushed) follow(at place) {
	ctx, cancel := context.WithTimeout(p.ctx, maxFollow)
	defer cancel()
	defer func() {
		if broken := recover(); broken != nil {
			p.o.Log.Error("following a task panicked", "agent", at.agent, "panic", fmt.Sprint(broken), "stack", string(debug.Stack()))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.all, at)
	}()
	said := wire.State("")
	for broken := 0; broken < maxBroken && ctx.Err() == nil; broken++ {
		over, heard := p.subscribed(ctx, at, &said)
		if heard {
			broken = 0
		}
		if over {
			return
		}
		sleep(ctx, min(p.o.Wait<<broken, pollEvery))
	}
}

// subscribed follows a task by its stream, and by asking for it where there is none.
func (p *pushed) subscribed(ctx context.Context, at place, said *wire.State) (over, heard bool) {
	for event, err := range p.agent.Do(ctx, &wire.Operation{Method: wire.SubscribeToTask, Service: version,
		Params: wire.Encode(wire.Get{ID: at.task})}) {
		if err != nil {
			return p.polled(ctx, at, said, err), heard
		}
		_, state := wire.TaskOf(event)
		p.deliverAll(ctx, at, event)
		if heard = true; state != "" {
			*said = state
		}
		if state.Terminal() {
			return true, true
		}
	}
	return false, heard
}

// version is what this node speaks to agents of its own accord.
var version = map[string]string{wire.VersionParam: "1.0"}

// polled asks for a task that cannot be followed: it may have ended, or its agent does not stream. What has changed is delivered.
func (p *pushed) polled(ctx context.Context, at place, said *wire.State, why error) (over bool) {
	task, err := wire.Ask(ctx, p.agent, &wire.Operation{Method: wire.GetTask, Service: version,
		Params: wire.Encode(wire.Get{ID: at.task})})
	gone := &wire.Error{}
	if errors.As(err, &gone) && gone.Code == wire.TaskNotFound {
		return true
	}
	if err != nil {
		p.o.Log.Debug("a task cannot be followed now", "agent", at.agent, "err", why)
		return false
	}
	event := append(append([]byte(`{"task":`), task...), '}')
	_, state := wire.TaskOf(event)
	if state != *said {
		*said = state
		p.deliverAll(ctx, at, event)
	}
	return state.Terminal()
}

func (p *pushed) deliverAll(ctx context.Context, at place, event json.RawMessage) {
	for _, c := range p.configs(at.task) {
		if err := p.deliver(ctx, &c, event); err != nil && ctx.Err() == nil {
			p.o.Log.Warn("a push notification was given up", "agent", at.agent, "host", hostOf(c.URL), "err", redacted(err))
		}
	}
}

// deliver posts an event until it is taken, or has been tried often enough.
func (p *Pusher) deliver(ctx context.Context, c *config, event json.RawMessage) (err error) {
	for try := range p.o.Tries {
		if try > 0 {
			sleep(ctx, p.o.Wait<<(try-1))
		}
		if err = p.post(ctx, c, event); err == nil || ctx.Err() != nil {
			return err
		}
		refused := &outbound.Error{}
		final := &refusal{}
		if errors.As(err, &refused) || errors.As(err, &final) && final.status < 500 && final.status != http.StatusTooManyRequests {
			return err // it would be refused again
		}
	}
	return err
}

// A refusal is an answer that takes nothing.
type refusal struct{ status int }

func (r *refusal) Error() string { return fmt.Sprintf("the webhook answers %d", r.status) }

func (p *Pusher) post(ctx context.Context, c *config, event json.RawMessage) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(event))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/a2a+json")
	q.Header.Set(wire.VersionParam, "1.0")
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
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // so that the connection can be used again
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return &refusal{answer.StatusCode}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// hostOf is what a log may say of a webhook: its path and query may be secrets.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

// redacted is an error without the address of the webhook.
func redacted(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
