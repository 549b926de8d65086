// Package push delivers A2A push notifications to webhooks, at least once and in order. The node that serves a client calls its webhooks
// and subscribes to the task, wherever it is, so no other node connects to a URL that an untrusted client chose.
//
// An event is sent again until the webhook accepts it or all tries failed. Webhooks do not delay each other, and a webhook is removed after
// several failed events in a row.
//
// Sources: A2A 1.0.1 §3.1.7 to §3.1.10, §4.3, §13.2.
package push

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/netguard"
)

// Options configure a [Pusher]. The zero value works.
type Options struct {
	// Private allows webhooks at addresses that are not on the public internet.
	Private bool
	// Timeout limits one delivery; 0 means 15 s. Tries is the number of tries per event; 0 means 5. Wait is the pause before the second
	// try, and doubles for each further one; 0 means 1 s.
	Timeout time.Duration
	Tries   int
	Wait    time.Duration
	// MaxFailed is the number of failed events in a row after which a webhook is removed; 0 means 5.
	MaxFailed int
	// MaxTasks limits the tasks with webhooks, MaxConfigs the webhooks of a task; 0 means 500 and 8. A principal may have as many tasks
	// with webhooks as remain free for others: a single principal, half of MaxTasks.
	MaxTasks, MaxConfigs int
	Log                  *slog.Logger
}

// A Pusher stores webhooks and calls them. It is safe for concurrent use.
type Pusher struct {
	o      Options
	client *http.Client
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	all    map[taskKey]*subscription
	closed bool
}

// A taskKey identifies a task of a principal at an agent.
type taskKey struct{ agent, principal, task string }

// A subscription is a task with webhooks. Its fields but work are owned by Pusher.mu.
type subscription struct {
	hooks   []*webhook
	running bool
	work    sync.WaitGroup // deliveries
}

// A webhook is a config with its undelivered events. Its fields but config are owned by Pusher.mu.
type webhook struct {
	config
	queue    []json.RawMessage
	size     int  // of queue, in bytes
	busy     bool // its events are being delivered
	notified bool // an event was queued
	failed   int  // failed events in a row
}

// maxQueue limits the undelivered events of a webhook, in bytes.
const maxQueue = 8 << 20

// A config is a webhook (A2A 1.0 §4.3.1, TaskPushNotificationConfig).
type config struct {
	Tenant string `json:"tenant,omitempty"`
	TaskID string `json:"taskId"`
	ID     string `json:"id"`
	URL    string `json:"url"`
	Token  string `json:"token,omitempty"`
	Auth   *auth  `json:"authentication,omitempty"`
}

type auth struct {
	Scheme      string `json:"scheme"`
	Credentials string `json:"credentials,omitempty"`
}

const maxRedirects = 10

// New returns a Pusher, which the caller must close.
func New(o Options) *Pusher {
	o.Timeout, o.Tries, o.Wait = cmp.Or(o.Timeout, 15*time.Second), cmp.Or(o.Tries, 5), cmp.Or(o.Wait, time.Second)
	o.MaxTasks, o.MaxConfigs, o.MaxFailed = cmp.Or(o.MaxTasks, 500), cmp.Or(o.MaxConfigs, 8), cmp.Or(o.MaxFailed, 5)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	guard := netguard.Public()
	if o.Private {
		guard = netguard.Any()
	}
	p := &Pusher{o: o, all: map[taskKey]*subscription{}}
	p.client = clientOf(guard.DialContext)
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// clientOf returns a client that connects with dial, also after redirects, and sends no secrets to another host.
func clientOf(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return errors.New("too many redirects")
			}
			if r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
				for _, secret := range append(tokenHeaders, "Authorization") {
					r.Header.Del(secret)
				}
			}
			return nil
		}}
}

// tokenHeaders carry the token: 1.0 defines none, 0.3 and the JavaScript library use the first, the Go library the second.
var tokenHeaders = []string{"X-A2A-Notification-Token", "A2A-Notification-Token"}

// Close ends all deliveries, and waits for them.
func (p *Pusher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.work.Wait()
	p.client.CloseIdleConnections()
}

// Agent returns a with push notifications for a principal: it handles the operations on webhooks, and the webhook of a message. ref
// identifies the agent.
func (p *Pusher) Agent(a protocol.Agent, ref, principal string) protocol.Agent {
	return &pushAgent{p, a, ref, principal}
}

type pushAgent struct {
	*Pusher
	agent          protocol.Agent
	ref, principal string
}

// Do implements [protocol.Agent].
func (p *pushAgent) Do(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	switch op.Method {
	case protocol.CreatePush:
		return protocol.Once(p.create(ctx, op))
	case protocol.GetPush:
		return protocol.Once(p.get(ctx, op))
	case protocol.ListPush:
		return protocol.Once(p.list(ctx, op))
	case protocol.DeletePush:
		return protocol.Once(p.remove(ctx, op))
	case protocol.SendMessage, protocol.SendStreamingMessage:
		if c, without, e := inline(op); e != nil {
			return protocol.Once(nil, e)
		} else if c != nil {
			return p.sendWith(ctx, without, c)
		}
	}
	return p.agent.Do(ctx, op)
}

// authorize decodes the params of op, and checks that the caller may get the task.
func (p *pushAgent) authorize(ctx context.Context, op *protocol.Operation, c *config) error {
	if e := protocol.Read(op.Params, c); e != nil {
		return e
	}
	zero := 0
	_, err := protocol.Call(ctx, p.agent, &protocol.Operation{Method: protocol.GetTask, Service: op.Service,
		Params: protocol.Encode(protocol.Get{ID: c.TaskID, HistoryLength: &zero})})
	return err
}

func (p *pushAgent) create(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	var c config
	if err := p.authorize(ctx, op, &c); err != nil {
		return nil, err
	}
	if err := p.add(&c); err != nil {
		return nil, err
	}
	return protocol.Encode(c), nil
}

func (p *pushAgent) get(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	var c config
	if err := p.authorize(ctx, op, &c); err != nil {
		return nil, err
	}
	for _, have := range p.configs(c.TaskID) {
		if have.ID == c.ID || c.ID == "" { // clients of 0.3 may omit the id: the first (A2A 0.3.0 §7.6)
			return protocol.Encode(have), nil
		}
	}
	return nil, protocol.Errorf(protocol.TaskNotFound, "the task has no such push notification config")
}

func (p *pushAgent) list(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	var c config
	if err := p.authorize(ctx, op, &c); err != nil {
		return nil, err
	}
	return protocol.Encode(map[string]any{"configs": p.configs(c.TaskID), "nextPageToken": ""}), nil
}

// remove removes a webhook. It succeeds also if there is none.
func (p *pushAgent) remove(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	var c config
	if err := p.authorize(ctx, op, &c); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.all[taskKey{p.ref, p.principal, c.TaskID}]; s != nil {
		s.hooks = slices.DeleteFunc(s.hooks, func(have *webhook) bool { return have.ID == c.ID })
	}
	return json.RawMessage("{}"), nil
}

func (p *pushAgent) configs(task string) []config {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []config{}
	if s := p.all[taskKey{p.ref, p.principal, task}]; s != nil {
		for _, h := range s.hooks {
			all = append(all, h.config)
		}
	}
	return all
}

// check rejects an invalid webhook. The address is checked when it is dialed.
func (c *config) check() *protocol.Error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil:
		return protocol.Errorf(protocol.InvalidParams, "expected an https URL for the webhook").At("url")
	case strings.ContainsAny(c.Token, "\r\n") || len(c.Token) > 4096:
		return protocol.Errorf(protocol.InvalidParams, "the token is not a valid header value").At("token")
	case c.Auth != nil && (c.Auth.Scheme == "" || len(c.Auth.Credentials) > 8192 ||
		strings.ContainsAny(c.Auth.Scheme+c.Auth.Credentials, "\r\n")):
		return protocol.Errorf(protocol.InvalidParams, "the authentication is not a valid header value").At("authentication")
	}
	return nil
}

// add stores a webhook, in place of one with the same id, and subscribes to its task.
func (p *pushAgent) add(c *config) error {
	if e := c.check(); e != nil {
		return e
	}
	c.ID = cmp.Or(c.ID, rand.Text())
	c.Tenant = ""
	p.mu.Lock()
	defer p.mu.Unlock()
	at := taskKey{p.ref, p.principal, c.TaskID}
	s := p.all[at]
	if s == nil {
		s = &subscription{}
	}
	s.hooks = slices.DeleteFunc(s.hooks, func(have *webhook) bool { return have.ID == c.ID })
	switch {
	case p.closed:
		return interact.ShutdownError("try again in a moment")
	case len(s.hooks) >= p.o.MaxConfigs:
		return interact.Errorf(interact.Overloaded, "delete one", "a task has at most %d webhooks", p.o.MaxConfigs)
	case p.all[at] == nil && len(p.all) >= p.o.MaxTasks:
		return interact.Errorf(interact.Overloaded, "try again later", "%d tasks have webhooks already", p.o.MaxTasks)
	case p.all[at] == nil && p.ownLocked() >= p.o.MaxTasks-len(p.all):
		return interact.Errorf(interact.Overloaded, "wait until a task has ended, or delete the webhooks of one",
			"%d tasks of this caller have webhooks already: as many must remain free for others", p.ownLocked())
	}
	s.hooks = append(s.hooks, &webhook{config: *c})
	p.all[at] = s
	if !s.running {
		s.running = true
		p.work.Go(func() { p.follow(at, s) })
	}
	return nil
}

// ownLocked returns the number of the principal's tasks with webhooks.
func (p *pushAgent) ownLocked() (n int) {
	for at := range p.all {
		if at.principal == p.principal {
			n++
		}
	}
	return n
}

// inline returns the webhook of a message, and the message without it; nil if it has none.
func inline(op *protocol.Operation) (*config, *protocol.Operation, *protocol.Error) {
	if !bytes.Contains(op.Params, []byte("ush")) {
		return nil, op, nil
	}
	var outer, inner map[string]json.RawMessage
	params := protocol.Normal(op.Params)
	if json.Unmarshal(params, &outer) != nil || json.Unmarshal(outer["configuration"], &inner) != nil {
		return nil, op, nil
	}
	raw := inner["taskPushNotificationConfig"]
	if raw == nil || string(raw) == "null" {
		return nil, op, nil
	}
	c := &config{}
	if e := protocol.Read(raw, c); e != nil {
		return nil, nil, e
	}
	delete(inner, "taskPushNotificationConfig")
	outer["configuration"] = protocol.Encode(inner)
	without := *op
	without.Params = protocol.Encode(outer)
	return c, &without, c.check()
}

// sendWith sends a message whose task gets a webhook. It always requests a stream, because its first event has the task. For SendMessage
// it returns the task at the end of the stream.
func (p *pushAgent) sendWith(ctx context.Context, op *protocol.Operation, c *config) iter.Seq2[json.RawMessage, error] {
	streamed := *op
	streamed.Method = protocol.SendStreamingMessage
	var params protocol.Send
	_ = protocol.Read(op.Params, &params) // the agent reports the error
	return func(yield func(json.RawMessage, error) bool) {
		last, added := json.RawMessage(nil), false
		for event, err := range p.agent.Do(ctx, &streamed) {
			noStreams := &protocol.Error{Code: protocol.UnsupportedOperation}
			if errors.Is(err, noStreams) && last == nil && op.Method == protocol.SendMessage {
				p.sendOnce(ctx, op, c, yield)
				return
			}
			if id, _ := protocol.TaskOf(event); err == nil && id != "" && !added {
				c.TaskID, added = id, true
				err = p.add(c)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if last = event; op.Method == protocol.SendMessage && (!added || params.Configuration.Immediately) {
				break
			}
			if op.Method == protocol.SendStreamingMessage && !yield(event, nil) {
				return
			}
		}
		if op.Method == protocol.SendStreamingMessage {
			return
		}
		if added {
			task, err := protocol.Call(ctx, p.agent, &protocol.Operation{Method: protocol.GetTask, Service: op.Service,
				Params: protocol.Encode(protocol.Get{ID: c.TaskID, HistoryLength: params.Configuration.HistoryLength})})
			last = append(append([]byte(`{"task":`), task...), '}')
			if err != nil {
				yield(nil, err)
				return
			}
		}
		yield(last, nil)
	}
}

// sendOnce is sendWith for an agent without streams.
func (p *pushAgent) sendOnce(ctx context.Context, op *protocol.Operation, c *config, yield func(json.RawMessage, error) bool) {
	result, err := protocol.Call(ctx, p.agent, op)
	if id, _ := protocol.TaskOf(result); err == nil && id != "" {
		c.TaskID = id
		err = p.add(c)
	}
	yield(result, err)
}
