package coap

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// dispatch sends m to the mesh and returns the response.
func (x *exchange) dispatch(ctx context.Context, d *td.Description, p resource, m *interact.Message) (*messaging.Packet, error) {
	observe, observing := x.q.Uint(message.Observe)
	if observing && observe == 1 { // RFC 7641 §2: deregister
		x.server.watches.leave(observerKey{x.from.Addr, x.q.Token})
	}
	if observing && observe == 0 && observable(d.Thing, m) {
		return x.observe(ctx, m)
	}
	switch m.Type {
	case interact.InvokeAction:
		return x.invoke(ctx, d.Thing, m)
	case interact.SubscribeEvent, interact.SubscribeAllEvents:
		if observing {
			return &messaging.Packet{Code: codes.Content}, nil
		}
		return nil, interact.Errorf(interact.NotAllowed, "send the option Observe: 0", "events have no current value")
	}
	r, err := interact.Call(ctx, x.server.o.Mesh, m)
	if err != nil {
		return nil, err
	}
	switch m.Type {
	case interact.WriteProperty, interact.WriteMultipleProperties:
		return &messaging.Packet{Code: codes.Changed}, nil // RFC 7252 §5.8.3
	case interact.CancelAction:
		if x.q.Code == codes.DELETE {
			return &messaging.Packet{Code: codes.Deleted}, nil // RFC 7252 §5.8.4
		}
		return &messaging.Packet{Code: codes.Changed}, nil
	case interact.QueryAction:
		r = stateOf(m, r)
	}
	return present(&messaging.Packet{Code: codes.Content}, r, m)
}

// observable reports whether what m reads can be observed; otherwise the option is ignored (RFC 7641 §2).
func observable(t *td.Thing, m *interact.Message) bool {
	switch m.Type {
	case interact.ReadProperty:
		p := t.Properties[m.Name]
		return p != nil && p.Observable
	case interact.ReadAllProperties:
		for _, p := range t.Properties {
			if p.Observable {
				return true
			}
		}
		return false
	}
	return m.Type == interact.SubscribeEvent || m.Type == interact.SubscribeAllEvents
}

// invoke runs an action to its end. An action in the background runs until its action ID is known.
func (x *exchange) invoke(ctx context.Context, t *td.Thing, m *interact.Message) (*messaging.Packet, error) {
	a := t.Actions[m.Name]
	_, async := x.query("async")
	m.Detach = async || a != nil && a.Synchronous != nil && !*a.Synchronous
	var parts []interact.Part // of a response stream
	size := 0
	for r, err := range x.server.o.Mesh.Do(ctx, m) {
		switch {
		case err != nil:
			return nil, err
		case r.Status == interact.StatusCompleted:
			if len(r.Data) == 0 && len(parts) > 0 {
				data, media := interact.Join(parts)
				r = m.Reply(interact.ActionStatus, media, data)
			}
			return output(r, m)
		case r.Status == interact.StatusFailed, r.Status == interact.StatusCancelled:
			return nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Title: "the action " + r.Status.String(), Hint: hintLog}
		case m.Detach && r.ActionID != "":
			return x.created(m, r)
		case len(r.Data) > 0:
			parts = append(parts, interact.Part{Data: r.Data, ContentType: r.Media()})
			if size += len(r.Data); size > x.server.o.MaxBody {
				return nil, responseTooLarge(x.server.o.MaxBody)
			}
		}
	}
	return nil, &interact.Error{Code: interact.AgentFailed, Title: "the action ended without a result", Hint: hintLog}
}

func responseTooLarge(limit int) error {
	return interact.Errorf(interact.TooLarge, "request less", "the response is larger than %d bytes", limit)
}

// output returns the response to a completed action.
func output(r, m *interact.Message) (*messaging.Packet, error) {
	if len(r.Data) == 0 {
		return &messaging.Packet{Code: codes.Changed}, nil // RFC 7252 §5.8.2
	}
	return present(&messaging.Packet{Code: codes.Content}, r, m)
}

// created returns the response to an action that runs in the background. It has the path of the state (RFC 7252 §5.8.2, §5.10.7).
func (x *exchange) created(m, r *interact.Message) (*messaging.Packet, error) {
	a := &messaging.Packet{Code: codes.Created}
	for _, s := range append(x.q.Texts(message.URIPath), r.ActionID) {
		a.Add(message.LocationPath, []byte(s))
	}
	if len(r.ActionID) > 255 {
		return nil, interact.Errorf(interact.Internal, "use HTTP", "the id of the run is too long for CoAP")
	}
	return present(a, stateOf(m, r), m)
}

// stateOf returns an ActionStatus in JSON ([interact.Task]). An output that is neither JSON, CBOR nor text is base64url.
func stateOf(m, r *interact.Message) *interact.Message {
	t := interact.Task{ActionID: r.ActionID, State: r.Status.String(), Requested: stamp(r.Began)}
	if r.Status.Final() {
		t.Ended = stamp(r.Time)
	}
	t.ActionID = cmp.Or(t.ActionID, m.ActionID)
	switch data := asJSON(r); {
	case r.Status == interact.StatusFailed:
		t.Error = data
	default:
		t.Output = data
	}
	data, _ := json.Marshal(t) // its parts are JSON
	return m.Reply(interact.ActionStatus, interact.JSON, data)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func asJSON(r *interact.Message) json.RawMessage {
	data, is, err := interact.Transcode(r.Data, r.Media(), interact.JSON)
	switch {
	case len(r.Data) == 0:
		return nil
	case err == nil && td.IsJSON(is) && json.Valid(data):
		return data
	case strings.HasPrefix(interact.MediaType(r.Media()), "text/"):
		data, _ = json.Marshal(string(r.Data)) // always has a JSON form
	default:
		data, _ = json.Marshal(base64.RawURLEncoding.EncodeToString(r.Data))
	}
	return data
}

// variables adds the variables of the query to the input.
func (x *exchange) variables(t *td.Thing, m *interact.Message) error {
	if m.Type == interact.QueryAction || m.Type == interact.CancelAction {
		return nil
	}
	a := interact.Affordance(t, m)
	if a == nil || len(a.URIVariables) == 0 {
		return nil
	}
	data, is, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	if err != nil || len(data) > 0 && !td.IsJSON(is) {
		return err
	}
	query := url.Values{}
	for _, q := range x.q.Texts(message.URIQuery) {
		name, value, _ := strings.Cut(q, "=")
		query.Add(name, value)
	}
	if all := form.AddVariables(data, query, a.URIVariables, interact.InputSchema(t, m)); !bytes.Equal(all, data) {
		m.Data, m.ContentType = all, interact.JSON
	}
	return nil
}

// describe responds with the TD, byte for byte (WoT Discovery §6.3, TD server over CoAP).
func (x *exchange) describe(d *td.Description) (*messaging.Packet, error) {
	format := uint32(messaging.FormatTD)
	if f, ok := x.q.Uint(message.Accept); ok {
		if format = f; f != messaging.FormatTD && f != messaging.FormatJSON {
			return nil, messaging.Rejected(codes.NotAcceptable, "expected 432 (application/td+json) or 50 (application/json)")
		}
	}
	a := &messaging.Packet{Code: codes.Content, Payload: d.Raw}
	a.AddUint(message.ContentFormat, format)
	return a, nil
}

// thingType is the resource type of a TD (WoT Discovery §5.3, CoRE introduction).
const thingType = "wot.thing"

// known responds with the links to all Things (RFC 6690 §4), or to those that match the query (§4.1).
func (x *exchange) known(ctx context.Context) (*messaging.Packet, error) {
	if f, ok := x.q.Uint(message.Accept); ok && f != messaging.FormatLinks {
		return nil, messaging.Rejected(codes.NotAcceptable, "expected 40 (application/link-format)")
	}
	var b strings.Builder
	if x.server.o.Known != nil && x.wants(thingType) {
		for d := range x.server.o.Known(ctx) {
			link := "</things/" + url.PathEscape(d.Record.Thing) + `>;rt="` + thingType + `";ct=432`
			if b.Len() > 0 {
				link = "," + link
			}
			if b.Len()+len(link) > x.server.o.MaxBody {
				return nil, responseTooLarge(x.server.o.MaxBody)
			}
			b.WriteString(link)
		}
	}
	a := &messaging.Packet{Code: codes.Content, Payload: []byte(b.String())}
	a.AddUint(message.ContentFormat, messaging.FormatLinks)
	return a, nil
}

// wants reports whether the query selects the resource type, or has no rt.
func (x *exchange) wants(resourceType string) bool {
	rt, ok := x.query("rt")
	if prefix, cut := strings.CutSuffix(rt, "*"); cut {
		return strings.HasPrefix(resourceType, prefix)
	}
	return !ok || rt == resourceType
}
