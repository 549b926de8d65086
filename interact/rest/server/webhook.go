package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/netguard"
)

const (
	maxCallback = 2 << 10  // bytes of the URL of a callback
	tries       = 5        // to deliver one event
	maxMissed   = 5        // consecutive undelivered events; then the webhook ends
	maxEnded    = 256      // ended webhooks whose state is kept
	maxReply    = 64 << 10 // bytes of a response of the consumer
)

// A hook posts changes or events to the callback URL of a consumer (WoT Profile, HTTP Webhook).
type hook struct {
	*hooks
	id       string
	ref      string // the thing as the consumer named it
	callback string
	self     func(name string) string // the URL of an affordance
	message  *interact.Message
	mesh     interact.Thing
	cancel   context.CancelFunc
	after    string // the ID of the last event that was delivered or dropped; owned by run
	missed   int    // consecutive undelivered events; owned by run
	lease    *time.Timer

	// hooks.mu guards the fields that GET returns.
	delivered, failed uint64
	lastError         string
	expires, ended    time.Time
}

// A hookState is the state of a hook as GET returns it.
type hookState struct {
	CallbackURL string `json:"callbackURL"`
	Operation   string `json:"operation"`
	Name        string `json:"name,omitempty"`
	Delivered   uint64 `json:"delivered"`
	Failed      uint64 `json:"failed"` // events that could not be delivered
	LastError   string `json:"lastError,omitempty"`
	Expires     string `json:"expires,omitempty"` // of an active webhook
	Ended       string `json:"ended,omitempty"`   // of an ended webhook; lastError is the reason
}

// hooks are the webhooks of a server. Each has a lease, which the same subscription renews: the WoT Profile has no duration of a
// subscription, and a crashed consumer does not unsubscribe. The profile has no message for the end of a subscription: a consumer
// queries the state.
type hooks struct {
	client *http.Client
	server *Options
	max    int
	ctx    context.Context
	stop   context.CancelFunc
	wait   sync.WaitGroup

	// mu guards the rest.
	mu   sync.Mutex
	all  map[string]*hook
	past []*hook // that were not ended by their consumers, oldest first
}

// open initializes h. Its hooks end with ctx.
func (h *hooks) open(ctx context.Context, o *Options) {
	dial := o.CallbackDial
	switch {
	case dial == nil && o.PrivateCallbacks:
		dial = netguard.Any().DialContext
	case dial == nil:
		dial = netguard.Public().DialContext
	}
	h.client = &http.Client{
		Transport: &http.Transport{DialContext: dial, MaxIdleConns: 64, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second},
		Timeout: o.pace.deliver,
		// Redirects are not followed: only the callback URL was checked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	h.server, h.max, h.all = o, o.MaxCallbacks, map[string]*hook{}
	h.max = cmp.Or(h.max, 256)
	h.ctx, h.stop = context.WithCancel(ctx)
}

// close ends all hooks and waits for them.
func (h *hooks) close() {
	h.stop()
	h.mu.Lock()
	h.max = -1 // no hook can be added
	h.mu.Unlock()
	h.wait.Wait()
	h.client.CloseIdleConnections()
}

// subscribe creates a webhook from the body of the request.
func (v *visit) subscribe(t interact.Type) error {
	media, err := inputType(v.r, nil)
	if err != nil {
		return err
	}
	body, err := problem.ReadBody(v.w, v.r, rest.MaxBody)
	if err != nil {
		return err
	}
	return v.subscribeWith(t, body, media)
}

// subscribeWith creates a webhook. The body is an object with the callbackURL and the subscription data of an event.
func (v *visit) subscribeWith(t interact.Type, body []byte, media string) error {
	var want struct {
		CallbackURL string          `json:"callbackURL"`
		Data        json.RawMessage `json:"data"`
	}
	if err := decodeBody(body, media, &want); err != nil || want.CallbackURL == "" {
		return interact.Errorf(interact.Invalid, `send {"callbackURL":"https://…"}, or Accept: text/event-stream`,
			"expected an object with a callbackURL as body")
	}
	if p := did.PrincipalOf(v.r.Context()); p != nil && p.Via == did.Session { // it would outlive the session
		return interact.Errorf(interact.Forbidden, "use a token, or Accept: text/event-stream", "a session creates no webhooks")
	}
	if err := checkCallback(want.CallbackURL); err != nil {
		return err
	}
	m, err := v.message(t)
	if err != nil {
		return err
	}
	m.Data, m.Accept = want.Data, interact.JSON
	if a := v.affordance(); a != nil && len(a.URIVariables) > 0 {
		if err := v.loadVariables(m, a); err != nil {
			return err
		}
	}
	if err := v.check(m); err != nil {
		return err
	}
	k, err := v.addHook(m, want.CallbackURL)
	if err != nil {
		return err
	}
	v.w.Header().Set("Location", v.path("subscriptions", k.id))
	return v.writeJSON(http.StatusCreated, &interact.Message{Accept: wanted(v.r.Header)}, k.state())
}

// checkCallback checks the text of an address. The dialer checks its IP address for each connection.
func checkCallback(text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxCallback || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil || u.Fragment != "" {
		return interact.Errorf(interact.Invalid, "for example https://consumer.example/notify",
			"expected as callbackURL an http or https URL of at most %d bytes, without user and fragment", maxCallback)
	}
	return nil
}

// addHook creates a webhook, or renews the lease of the same one. For a consumer that continues after an event, a new webhook replaces the
// old one.
func (v *visit) addHook(m *interact.Message, callback string) (*hook, error) {
	h, kind, base := &v.hooks, v.at.kind, v.o.Base(v.r)
	ref := v.ref
	k := &hook{hooks: h, id: interact.NewID(), ref: ref, callback: callback, message: m, mesh: v.o.Mesh, after: m.After,
		self: func(name string) string { return base + thingPath(ref, kind, name) }}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case v.ending.Err() != nil:
		return nil, stopping()
	case h.max < 0:
		return nil, interact.Errorf(interact.NotAllowed, "send Accept: text/event-stream", "webhooks are disabled on this node")
	}
	if old := h.sameLocked(k); old != nil && m.After == "" {
		old.leaseLocked()
		return old, nil
	} else if old != nil {
		old.endLocked(nil)
	}
	if len(h.all) >= h.max {
		return nil, interact.Errorf(interact.Overloaded, "end some of them, or send Accept: text/event-stream",
			"the node has %d webhooks", len(h.all))
	}
	ctx, cancel := context.WithCancel(h.ctx)
	k.cancel = cancel
	k.leaseLocked()
	h.all[k.id] = k
	h.wait.Go(func() { k.run(ctx) })
	return k, nil
}

// sameLocked returns the webhook of the same consumer and affordance, or nil.
func (h *hooks) sameLocked(k *hook) *hook {
	for _, old := range h.all {
		if a, b := old.message, k.message; old.callback == k.callback && old.ref == k.ref && a.Type == b.Type && a.Name == b.Name &&
			a.Via == b.Via && bytes.Equal(a.Data, b.Data) {
			return old
		}
	}
	return nil
}

// leaseLocked starts or renews a lease.
func (k *hook) leaseLocked() {
	lease := k.server.pace.lease
	k.expires = time.Now().Add(lease)
	if k.lease == nil {
		k.lease = time.AfterFunc(lease, k.expire)
	} else {
		k.lease.Reset(lease)
	}
}

// expire ends a hook whose lease has expired and was not renewed.
func (k *hook) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !time.Now().Before(k.expires) {
		k.endLocked(errExpired)
	}
}

var errExpired = errors.New("the lease has expired: subscribe again to renew it before")

// end removes a hook. It stores the reason why, unless it is nil.
func (k *hook) end(why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endLocked(why)
}

func (k *hook) endLocked(why error) {
	if k.all[k.id] != k {
		return
	}
	delete(k.all, k.id)
	k.lease.Stop()
	k.cancel()
	if why == nil {
		return
	}
	k.server.Log.Info("webhook ended", "thing", k.message.Thing, "operation", k.message.Type.Op(), "err", why)
	past := &hook{hooks: k.hooks, id: k.id, ref: k.ref, callback: k.callback, delivered: k.delivered, failed: k.failed,
		lastError: k.lastError, ended: time.Now(), message: &interact.Message{Type: k.message.Type, Name: k.message.Name}}
	if !errors.Is(why, errGone) { // else the last error is why
		past.lastError = textOf(why)
	}
	if k.past = append(k.past, past); len(k.past) > maxEnded {
		k.past = slices.Delete(k.past, 0, 1)
	}
}

// textOf returns an error as GET shows it.
func textOf(err error) string { return interact.Excerpt(err.Error(), 200) }

// hook returns the webhook of the path, which may have ended.
func (v *visit) hook() (*hook, error) {
	v.hooks.mu.Lock()
	defer v.hooks.mu.Unlock()
	if k := v.hooks.all[v.at.id]; k != nil && k.ref == v.ref {
		return k, nil
	}
	for _, k := range v.hooks.past {
		if k.id == v.at.id && k.ref == v.ref {
			return k, nil
		}
	}
	return nil, interact.Errorf(interact.NoTask,
		"subscribe again: webhooks end with the node, and with a consumer that cannot be reached",
		"unknown subscription")
}

func (v *visit) getHook() error {
	k, err := v.hook()
	if err != nil {
		return err
	}
	return v.writeJSON(http.StatusOK, &interact.Message{Accept: wanted(v.r.Header)}, k.state())
}

func (v *visit) deleteHook() error {
	k, err := v.hook()
	if err != nil {
		return err
	}
	k.forget()
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}

// forget ends a hook and removes its state.
func (k *hook) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endLocked(nil)
	k.past = slices.DeleteFunc(k.past, func(p *hook) bool { return p.id == k.id })
}

func (k *hook) state() hookState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return hookState{CallbackURL: k.callback, Operation: k.message.Type.Op(), Name: k.message.Name, Delivered: k.delivered,
		Failed: k.failed, LastError: k.lastError, Expires: rfc3339(k.expires), Ended: rfc3339(k.ended)}
}

// run watches the thing until the hook is cancelled, the consumer cannot be reached, or the observation of the thing ends.
// A lost observation is started again after the last event.
func (k *hook) run(ctx context.Context) {
	defer k.end(nil)
	for pauses := (backoff.Backoff{First: k.server.pace.back, Max: 60 * k.server.pace.back}); ctx.Err() == nil; {
		before := k.state()
		err := k.watch(ctx)
		switch e := interact.AsError(err); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errGone), e != nil && !e.Code.Retryable():
			k.end(err)
			return
		case k.state() != before:
			pauses.Reset() // it has delivered events
		}
		_ = pauses.Sleep(ctx) // the loop ends with ctx
	}
}

// errGone means that the consumer rejects all events.
var errGone = errors.New("the consumer does not accept events")

// watch delivers events until the observation ends. A delivery delays the Thing.
func (k *hook) watch(ctx context.Context) error {
	m := *k.message
	m.ID, m.After = interact.NewID(), k.after
	for r, err := range k.mesh.Do(ctx, &m) {
		if err != nil {
			return err
		}
		err := k.deliver(ctx, r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if k.note(r, err) {
			return errGone
		}
	}
	return nil
}

// note counts the result of a delivery, and reports whether the hook ends.
func (k *hook) note(r *interact.Message, err error) (gone bool) {
	k.server.Count("webhook", err != nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.ID != "" {
		k.after = r.ID
	}
	if err == nil {
		k.missed, k.delivered, k.lastError = 0, k.delivered+1, ""
		return false
	}
	k.missed, k.failed, k.lastError = k.missed+1, k.failed+1, textOf(err)
	return k.missed >= maxMissed || errors.Is(err, errGone)
}

// deliver posts one event, and repeats it after a failure.
func (k *hook) deliver(ctx context.Context, r *interact.Message) (err error) {
	pauses := backoff.Backoff{First: k.server.pace.retry}
	for try := 1; ; try++ {
		if err = k.post(ctx, r); err == nil || errors.Is(err, errGone) || try == tries || ctx.Err() != nil {
			return err
		}
		if err := pauses.Sleep(ctx); err != nil {
			return err
		}
	}
}

// post sends one event (WoT Profile §8.3.1.3): the value, its affordance and the time.
func (k *hook) post(ctx context.Context, r *interact.Message) error {
	data, media := transcoded(r, interact.JSON)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, k.callback, bytes.NewReader(data))
	if err != nil {
		return err
	}
	if h := req.Header; len(data) > 0 && form.HeaderOK("Content-Type", media) {
		h.Set("Content-Type", media)
	}
	req.Header.Set("User-Agent", "lmosd")
	req.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	req.Header.Set("Link", "<"+k.self(cmp.Or(r.Name, k.message.Name))+`>; rel="self"`)
	if r.ID != "" && form.HeaderOK(rest.EventIDHeader, r.ID) {
		req.Header.Set(rest.EventIDHeader, r.ID)
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return deliveryError(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply)) // for the next request of the connection
	switch {
	case resp.StatusCode == http.StatusGone:
		return errGone
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return fmt.Errorf("the consumer answered with status %d", resp.StatusCode)
	}
	return nil
}

// deliveryError returns the cause of err without the URL, which the consumer knows. A blocked address is errGone: it stays blocked.
func deliveryError(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var refused *netguard.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", errGone, refused)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err
}
