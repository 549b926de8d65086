package rest

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// Limits of [Callbacks].
const (
	maxCallbacks  = 1024    // open addresses
	maxDelivery   = 1 << 20 // bytes of one delivery
	maxDelivering = 128     // concurrent deliveries
	maxEachCalls  = 4       // concurrent deliveries to one address
	// callbackTimeout limits the wait of a delivery for its consumer.
	callbackTimeout = 5 * time.Second
)

// Callbacks receives webhook deliveries of agents (WoT Profile §7.3). It is the [Receiver] of a client, and the HTTP handler of its
// addresses:
//
//	callbacks := rest.NewCallbacks("https://node.example:8080/callbacks")
//	mux.Handle("POST /callbacks/", callbacks)
//	client := rest.NewClient(rest.Options{Webhook: callbacks})
//
// The last segment of an address has 128 random bits. It is the only authentication of an agent: only the agent receives the address.
// A delivery has at most 1 MiB. The response is 200 when the consumer has received it; 503 after 5 s, or if too many deliveries wait;
// 404 if the address is closed. At most 1024 addresses are open. It is safe for concurrent use.
type Callbacks struct {
	busy chan struct{} // an element per delivery

	mu   sync.Mutex
	base string               // owned by mu
	open map[string]*callback // by the last segment; owned by mu
}

// A callback is one open address.
type callback struct {
	deliveries chan Delivery
	busy       chan struct{} // an element per delivery
	closed     chan struct{}
}

// NewCallbacks returns a receiver with a base as in [Callbacks.Listen].
func NewCallbacks(base string) *Callbacks {
	c := &Callbacks{busy: make(chan struct{}, maxDelivering), open: map[string]*callback{}}
	c.Listen(base)
	return c
}

// Listen sets the beginning of the addresses: the absolute address of the handler. Empty rejects all receivers.
func (c *Callbacks) Listen(base string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base = base; base != "" {
		c.base = strings.TrimSuffix(base, "/") + "/"
	}
}

// Receive implements [Receiver]. The error is of code Overloaded, or NotAllowed without a base.
func (c *Callbacks) Receive(context.Context) (callbackURL string, deliveries <-chan Delivery, release func(), err error) {
	one := &callback{deliveries: make(chan Delivery), busy: make(chan struct{}, maxEachCalls), closed: make(chan struct{})}
	key := rand.Text()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base == "" {
		return "", nil, nil, interact.Errorf(interact.NotAllowed, "add a form with sse or longpoll to the agent",
			"this node has no HTTP address for callbacks of agents")
	}
	if len(c.open) >= maxCallbacks {
		return "", nil, nil, interact.Errorf(interact.Overloaded, "end some subscriptions",
			"%d addresses for callbacks are open already", maxCallbacks)
	}
	c.open[key] = one
	return c.base + key, one.deliveries, func() { c.release(key) }, nil
}

func (c *Callbacks) release(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.open[key]; one != nil {
		close(one.closed)
		delete(c.open, key)
	}
}

// ServeHTTP implements [http.Handler]. The last segment of the path selects the address.
func (c *Callbacks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := c.serve(w, r)
	if err == nil {
		w.WriteHeader(http.StatusOK)
		return
	}
	switch interact.AsError(err).Code {
	case interact.Overloaded:
		w.Header().Set("Retry-After", "1")
	case interact.NotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	}
	problem.Write(w, r, err)
}

func (c *Callbacks) serve(w http.ResponseWriter, r *http.Request) error {
	one := c.find(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	switch {
	case one == nil:
		return errClosed()
	case r.Method != http.MethodPost:
		return interact.Errorf(interact.NotAllowed, "use POST", "a callback accepts POST only")
	case r.Header.Get("Content-Encoding") != "":
		return interact.Errorf(interact.UnsupportedType, "send the body without Content-Encoding",
			"deliveries with Content-Encoding are not supported")
	}
	for _, busy := range []chan struct{}{one.busy, c.busy} {
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			return errBusy()
		}
	}
	d, err := delivery(w, r)
	if err != nil {
		return err
	}
	return one.deliver(r.Context(), d)
}

func (c *Callbacks) find(key string) *callback {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[key]
}

// delivery reads the body.
func delivery(w http.ResponseWriter, r *http.Request) (Delivery, error) {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(callbackTimeout)) // not all servers support it
	body, err := problem.ReadBody(w, r, maxDelivery)
	_ = conn.SetReadDeadline(time.Time{})
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{Data: body, ID: boundedID(r.Header.Get(EventIDHeader)), Self: selfLink(r.Header.Values("Link"))}
	if media := r.Header.Get("Content-Type"); len(media) <= maxName && len(body) > 0 {
		d.ContentType = media
	}
	return d, nil
}

// deliver passes d to the consumer.
func (o *callback) deliver(ctx context.Context, d Delivery) error {
	timer := time.NewTimer(callbackTimeout)
	defer timer.Stop()
	select {
	case o.deliveries <- d:
		return nil
	case <-o.closed:
		return errClosed()
	case <-timer.C:
		return errBusy()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func errClosed() error {
	return interact.Errorf(interact.NotFound, "subscribe again to get another address", "this callback address is closed or unknown")
}

func errBusy() error {
	return interact.Errorf(interact.Overloaded, "deliver again later", "earlier deliveries wait for the consumer")
}

// selfLink returns the target of the link of relation "self" (RFC 8288 §3), at most 2 KiB; empty if there is none.
func selfLink(fields []string) string {
	for _, link := range strings.Split(strings.Join(fields, ","), ",") {
		target, params, ok := strings.Cut(strings.TrimSpace(link), ">")
		if target, open := strings.CutPrefix(target, "<"); ok && open && len(target) <= 2<<10 && isSelf(params) {
			return target
		}
	}
	return ""
}

func isSelf(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(strings.TrimSpace(name), "rel") && strings.EqualFold(strings.Trim(value, `" `), "self") {
			return true
		}
	}
	return false
}
