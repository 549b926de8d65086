package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A Receiver creates callback addresses for agents (WoT Profile §7.3). [Callbacks] implements it.
type Receiver interface {
	// Receive opens an address, absolute and unguessable, and returns the deliveries of agents to it. A delivery is confirmed to the
	// agent when it is read from the channel, which is never closed. The caller calls release once, which closes the address. The error
	// is an [*interact.Error].
	Receive(ctx context.Context) (callbackURL string, deliveries <-chan Delivery, release func(), err error)
}

// A Delivery is a change or event that an agent sent to a callback address.
type Delivery struct {
	ContentType string // empty if the delivery has no data or no content type
	Data        []byte
	// ID is the id of the event, if a node sent it; else empty. At most 256 bytes.
	ID string
	// Self is the address of the affordance: the link of relation "self". Empty if there is none.
	Self string
}

// callbackMember is the member that holds the address in a subscription (WoT Profile §7.3).
const callbackMember = "callbackURL"

// receive subscribes with an address of this node, and yields its deliveries until the consumer leaves.
func (o *observation) receive(ctx context.Context) error {
	address, deliveries, release, err := o.client.webhook.Receive(ctx)
	if err != nil {
		return err
	}
	defer release()
	end, until, err := o.subscribe(ctx, address, o.r.Message.After)
	if err != nil {
		return err
	}
	o.opened = true
	defer func() { end() }()
	for renew := o.renewal(until); ; {
		select {
		case <-ctx.Done():
			return o.r.lost(ctx, ctx.Err())
		case <-renew:
			again, later, err := o.subscribe(ctx, address, "")
			switch {
			case err == nil:
				end, until = again, later
			case time.Now().After(until):
				return err
			}
			renew = o.renewal(until)
		case d := <-deliveries:
			if err := o.yieldNotice(notice{id: d.ID, name: o.affordanceOf(d), media: d.ContentType, data: d.Data}); err != nil {
				return err
			}
		}
	}
}

// renewal returns the time to subscribe again with the same address: after half of the remaining time. A subscription without an end,
// as in the profile, needs none.
func (o *observation) renewal(until time.Time) <-chan time.Time {
	if until.IsZero() {
		return nil
	}
	return time.After(max(time.Until(until)/2, 20*o.client.pause))
}

// subscribe sends the address to the agent. The function end ends the subscription. The agent ends it at until, unless until is zero.
func (o *observation) subscribe(ctx context.Context, address, last string) (end func(), until time.Time, err error) {
	sub, f := *o, *o.r.Form
	f.ContentType = interact.JSON
	r := o.r.over(&f)
	sub.r = r
	if r.Body, err = subscription(r, address); err != nil {
		return nil, until, err
	}
	r.Media = interact.JSON
	ctx, cancel := context.WithTimeout(ctx, form.DefaultTimeout)
	defer cancel()
	resp, err := sub.send(ctx, func(h http.Header) {
		h.Set("Accept", interact.JSON)
		after(h, last)
	})
	defer sub.drop()
	if err != nil {
		return nil, until, err
	}
	defer resp.Body.Close()
	if !r.expected(resp.StatusCode) {
		return nil, until, sub.refusal(resp)
	}
	return o.leave(ctx, resp), expiry(resp), nil
}

// expiry returns the expiry of a subscription at a node, as in its response; zero if the response has none. A response without a length
// is not read: it may be incomplete until the first delivery.
func expiry(resp *http.Response) time.Time {
	var lease struct {
		Expires time.Time `json:"expires"`
	}
	if resp.ContentLength <= 0 || resp.ContentLength > maxRefusal {
		return lease.Expires
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, resp.ContentLength))
	if err != nil || json.Unmarshal(body, &lease) != nil {
		return time.Time{}
	}
	return lease.Expires
}

// subscription returns the body of the request: the data of the consumer, and the address.
func subscription(r *request, address string) ([]byte, error) {
	data, _, err := interact.Transcode(r.Body, r.Media, interact.JSON)
	if err != nil {
		return nil, err
	}
	fields, err := jcs.Members(data)
	if len(data) > 0 && err != nil {
		return nil, interact.Errorf(interact.Invalid, "send an object", "expected an object as data, because %s uses a webhook", r.What())
	}
	value, _ := json.Marshal(address) // a string always has a JSON form
	return jcs.Join(append(fields, jcs.Member{Name: callbackMember, Raw: value})), nil
}

// leave returns the function that deletes the subscription at the address in the response. It must be at the origin of the agent,
// because the credentials are sent there.
func (o *observation) leave(ctx context.Context, resp *http.Response) func() {
	to, err := resp.Location()
	if err != nil || resp.Request == nil || credentials.Origin(to) != credentials.Origin(resp.Request.URL) {
		o.client.log.Warn("webhook subscription without a valid address: it cannot be ended",
			"thing", o.r.Thing.ID, "affordance", o.r.Message.Name)
		return func() {}
	}
	to.User, to.Fragment = nil, ""
	return func() { o.delete(ctx, to) }
}

// delete ends a subscription, after ctx has ended.
func (o *observation) delete(ctx context.Context, to *url.URL) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), form.CancelTimeout)
	defer cancel()
	req, err := newRequest(ctx, o.r, http.MethodDelete, to, nil)
	if err != nil {
		return
	}
	o.r.Secrets.Apply(req.Header, req.URL)
	resp, err := send(ctx, o.client.transport, o.r, req)
	if err == nil {
		err = resp.Body.Close()
	}
	o.client.log.Debug("subscription ended", "thing", o.r.Thing.ID, "affordance", o.r.Message.Name, "err", err)
}

// affordanceOf returns the affordance whose forms have the address in a delivery, or "".
func (o *observation) affordanceOf(d Delivery) string {
	base, err := url.Parse(o.r.Form.Href)
	if d.Self == "" || o.r.Message.Name != "" || err != nil {
		return ""
	}
	self, err := base.Parse(d.Self)
	if err != nil {
		return ""
	}
	at := func(forms []td.Form) bool {
		return slices.ContainsFunc(forms, func(f td.Form) bool { return f.Href == self.String() })
	}
	for name, p := range o.r.Thing.Properties {
		if o.r.Message.Type == interact.ObserveAllProperties && at(p.Forms) {
			return name
		}
	}
	for name, e := range o.r.Thing.Events {
		if o.r.Message.Type == interact.SubscribeAllEvents && at(e.Forms) {
			return name
		}
	}
	return ""
}
