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

// A Receiver makes addresses at which agents call back (WoT Profile §7.3). [Callbacks] is one.
type Receiver interface {
	// Receive opens an address, absolute and unguessable, and returns what agents send there. An agent hears that its delivery
	// was taken when it was taken from the channel, which is never closed. The caller calls release once, which closes the
	// address. The error is an [*interact.Error].
	Receive(ctx context.Context) (callbackURL string, deliveries <-chan Delivery, release func(), err error)
}

// A Delivery is a change or event that an agent sent to a callback address.
type Delivery struct {
	ContentType string // empty if there is no data, or the agent did not say
	Data        []byte
	// ID is that of the event, if it comes from a node; else empty. At most 256 bytes.
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
			if err := o.yieldNotice(notice{id: d.ID, name: o.speaksOf(d), media: d.ContentType, data: d.Data}); err != nil {
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

// subscribe sends the address to the agent. The function ends the subscription; it ends by itself at until, unless that is zero.
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

// expiry is until when a node keeps a subscription, which its answer says; zero if it says nothing. An answer without a length
// may go on for as long as the first delivery takes, and is not waited for.
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
		return nil, interact.Errorf(interact.Invalid, "send an object", "%s comes by webhook, which has room for members only",
			r.What())
	}
	value, _ := json.Marshal(address) // a string always has a JSON form
	return jcs.Join(append(fields, jcs.Member{Name: callbackMember, Raw: value})), nil
}

// leave returns the function that deletes the subscription at the address in the response. It must be at the agent's own
// origin: the credentials go there.
func (o *observation) leave(ctx context.Context, resp *http.Response) func() {
	to, err := resp.Location()
	if err != nil || resp.Request == nil || credentials.Origin(to) != credentials.Origin(resp.Request.URL) {
		o.client.log.Warn("a subscription by webhook cannot be ended: its address is missing or at another origin",
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
	resp, err := carry(ctx, o.client.transport, o.r, req)
	if err == nil {
		err = resp.Body.Close()
	}
	o.client.log.Debug("subscription ended", "thing", o.r.Thing.ID, "affordance", o.r.Message.Name, "err", err)
}

// speaksOf returns the affordance whose forms have the address in a delivery, or "".
func (o *observation) speaksOf(d Delivery) string {
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
