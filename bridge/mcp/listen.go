package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

const (
	// firstPause is the first delay before an ended subscription is renewed. It doubles up to maxPause.
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
	// debounce is the delay after a change in which further changes are combined.
	debounce = 50 * time.Millisecond
	// idleAfter is the time without calls after which the subscription at a program ends, so that the program can stop.
	idleAfter = 2 * time.Minute
)

// describeLimit is the rate of new descriptions of a server, readLimit the rate of reading an observed resource. Changes in between are
// combined.
var (
	describeLimit = ratelimit.Every(8, 5*time.Second)
	readLimit     = ratelimit.Every(32, 100*time.Millisecond)
)

// listen yields the notifications of a subscription until it ends, and then the reason. Of several pending changes it yields the first.
func (s *server) listen(ctx context.Context, m *interact.Message, want map[string]any) iter.Seq2[*protocol.Message, error] {
	return func(yield func(*protocol.Message, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		acks, changes, ended := make(chan *protocol.Message, 1), make(chan *protocol.Message, 1), make(chan error, 1)
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel()
		work.Go(func() {
			_, err := s.send(ctx, protocol.Listen, map[string]any{"notifications": want}, m, map[string]any{}, func(n *protocol.Message) error {
				to := changes
				if n.Method() == protocol.Acknowledged {
					to = acks
				}
				select {
				case to <- n:
				default:
				}
				return nil
			})
			ended <- err
		})
		for {
			select {
			case n := <-acks:
				if !yield(n, nil) {
					return
				}
			case n := <-changes:
				if !yield(n, nil) {
					return
				}
			case err := <-ended:
				yield(nil, err)
				return
			}
		}
	}
}

// observe handles ObserveProperty. Notifications of MCP contain no value, so it reads the resource after each.
func (s *server) observe(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	uri, err := s.address(m)
	if err != nil {
		yield(nil, err)
		return
	}
	var rate ratelimit.Bucket
	again := false // interrupted: the resource may have changed in between
	pauses := backoff.Backoff{First: firstPause, Max: maxPause}
	for {
		for n, err := range s.listen(ctx, m, map[string]any{"resourceSubscriptions": []string{uri}}) {
			refused := (*protocol.Error)(nil)
			switch {
			case errors.As(err, &refused) || err != nil && ctx.Err() != nil:
				yield(nil, interactError(err, m))
				return
			case err != nil || n == nil:
				continue // ended
			case n.Method() == protocol.Acknowledged && !acknowledges(n, uri):
				yield(nil, interact.Errorf(interact.NotAllowed, "read it periodically", "%s is not observable: the server sends no notifications", m.Name))
				return
			case n.Method() == protocol.Acknowledged && !again:
				continue
			}
			pauses.Reset()
			if err := waitRate(ctx, &rate, readLimit); err != nil {
				yield(nil, err)
				return
			}
			r, err := s.reading(ctx, m, uri)
			if err != nil {
				yield(nil, interactError(err, m))
				return
			}
			if r.Time = time.Now(); !yield(r, nil) {
				return
			}
		}
		again = true
		if err := pauses.Sleep(ctx); err != nil {
			yield(nil, err)
			return
		}
	}
}

// waitRate waits for a token and takes it.
func waitRate(ctx context.Context, b *ratelimit.Bucket, l ratelimit.Limit) error {
	err := backoff.Sleep(ctx, b.Wait(l, 1, time.Now()))
	b.Take(l, 1, time.Now())
	return err
}

// acknowledges reports whether an acknowledgment contains a resource.
func acknowledges(ack *protocol.Message, uri string) bool {
	raw, _ := ack.Param("notifications", "resourceSubscriptions")
	var all []string
	_ = json.Unmarshal(raw, &all)
	return slices.Contains(all, uri)
}

// changes yields a new draft after each change of the server. It is nil for a server without change notifications.
func (s *server) changes(target string, o bridge.Import, last []byte) func(context.Context) iter.Seq[[]byte] {
	want := map[string]any{}
	can := s.can.Load()
	for name, supported := range map[string]bool{"toolsListChanged": can.Tools != nil && can.Tools.Changes,
		"promptsListChanged": can.Prompts != nil && can.Prompts.Changes, "resourcesListChanged": can.Resources != nil && can.Resources.Changes} {
		if supported {
			want[name] = true
		}
	}
	if len(want) == 0 {
		return nil
	}
	return func(ctx context.Context) iter.Seq[[]byte] {
		return func(yield func([]byte) bool) {
			pauses := backoff.Backoff{First: firstPause, Max: maxPause}
			var rate ratelimit.Bucket
			for ctx.Err() == nil {
				if received, left := s.listenWhileInUse(ctx, want, func() bool {
					if waitRate(ctx, &rate, describeLimit) != nil {
						return true // cancelled
					}
					doc := s.redescribe(ctx, target, o, last)
					if doc == nil {
						return true
					}
					last = doc
					return yield(doc)
				}); left {
					return
				} else if received {
					pauses.Reset()
				}
				s.waitForCall(ctx)
				_ = pauses.Sleep(ctx) // the loop checks the context
			}
		}
	}
}

// listenWhileInUse calls changed once at the start, and for each notification, while the subscription lasts and the server is in use.
func (s *server) listenWhileInUse(ctx context.Context, want map[string]any, changed func() bool) (received, left bool) {
	ctx, stop := s.whileInUse(ctx)
	defer stop()
	for n, err := range s.listen(ctx, &interact.Message{}, want) {
		if err != nil || n == nil {
			continue // ended
		}
		received = true
		if !changed() {
			return true, true
		}
	}
	return received, false
}

// redescribe describes the server again; nil if it did not respond, or nothing changed.
func (s *server) redescribe(ctx context.Context, target string, o bridge.Import, last []byte) []byte {
	if backoff.Sleep(ctx, debounce) != nil {
		return nil
	}
	doc, warnings, err := s.describe(ctx, target, o)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("MCP server changed, new description failed", "server", target, "err", err)
		}
		return nil
	}
	if bytes.Equal(doc, last) {
		return nil
	}
	s.log.Info("MCP server changed", "server", target, "warnings", warnings)
	return doc
}

// use records a call; the function records its end.
func (s *server) use() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.wakeLocked()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy--; s.busy == 0 && s.idleTimer != nil {
			s.idleTimer.Reset(idleAfter)
		}
	}
}

func (s *server) wakeLocked() {
	if s.idleTimer != nil {
		s.idleTimer.Stop()
	}
	if s.sleeping != nil {
		close(s.sleeping)
		s.sleeping = nil
	}
}

// whileInUse returns the context of a subscription. For a program it ends when there was no call for a while.
func (s *server) whileInUse(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	if s.source.persistent {
		return ctx, cancel
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := time.AfterFunc(idleAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy == 0 && s.sleeping == nil {
			s.sleeping = make(chan struct{})
			cancel()
		}
	})
	s.idleTimer = idle
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		idle.Stop()
		s.idleTimer = nil // a call that ends later must not set the timer again
		cancel()
	}
}

// waitForCall waits for the next call while the server is idle.
func (s *server) waitForCall(ctx context.Context) {
	s.mu.Lock()
	sleeps := s.sleeping
	s.mu.Unlock()
	if sleeps == nil {
		return
	}
	select {
	case <-sleeps:
	case <-ctx.Done():
	}
}
