package server

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
)

// loaded returns a message of type t with the body and the query of the request.
func (v *visit) loaded(t interact.Type) (*interact.Message, error) {
	m, err := v.message(t)
	if err == nil {
		err = v.load(m)
	}
	return m, err
}

// call sends a message of type t with the body and the query of the request, and responds with the last reply.
func (v *visit) call(t interact.Type) error {
	m, err := v.loaded(t)
	if err != nil {
		return err
	}
	return v.callWith(m)
}

// callWith sends m and responds with the last reply.
func (v *visit) callWith(m *interact.Message) error {
	reply, err := v.last(m)
	if err != nil {
		return err
	}
	return v.respond(m, reply)
}

// last sends m and returns the last reply, within the timeout of the consumer.
func (v *visit) last(m *interact.Message) (*interact.Message, error) {
	if err := v.check(m); err != nil {
		return nil, err
	}
	ctx, cancel, err := v.withTimeout(m)
	if err != nil {
		return nil, err
	}
	defer cancel()
	reply, err := interact.Call(ctx, v.o.Mesh, m)
	if err == nil && m.Type == interact.InvokeAction {
		err = outcome(reply)
	}
	if err != nil {
		return nil, v.explained(m, err)
	}
	return reply, nil
}

func (v *visit) getProperty() error {
	if wantsEvents(v.r) {
		return v.watch(interact.ObserveProperty, "sse")
	}
	return v.call(interact.ReadProperty)
}

func (v *visit) putProperty() error { return v.call(interact.WriteProperty) }

func (v *visit) postProperty() error { return v.subscribe(interact.ObserveProperty) }

// getObservable is the long poll of a property (WoT HTTP binding, subprotocol longpoll).
func (v *visit) getObservable() error {
	if wantsEvents(v.r) {
		return v.watch(interact.ObserveProperty, "sse")
	}
	return v.watch(interact.ObserveProperty, "longpoll")
}

func (v *visit) getProperties() error {
	switch query := v.r.URL.Query(); {
	case wantsEvents(v.r):
		return v.watch(interact.ObserveAllProperties, "sse")
	case query.Has("names") || query.Has("name"):
		names := query["name"] // a name may have a comma
		for _, list := range query["names"] {
			names = append(names, strings.Split(list, ",")...)
		}
		return v.readSome(names)
	}
	return v.call(interact.ReadAllProperties)
}

// readSome reads the properties of these names.
func (v *visit) readSome(names []string) error {
	m, err := v.message(interact.ReadMultipleProperties)
	if err != nil {
		return err
	}
	m.Data, _ = json.Marshal(names) // strings always have a JSON form
	return v.callWith(m)
}

// putProperties writes the values in the body: several, or all writable properties.
func (v *visit) putProperties() error {
	if v.r.URL.Query().Has("all") || prefers(v.r.Header, "all") {
		return v.call(interact.WriteAllProperties)
	}
	return v.call(interact.WriteMultipleProperties)
}

// postProperties reads the properties in an array of names (TD 1.1 §5.3.4.2, readmultipleproperties), or subscribes to all.
func (v *visit) postProperties() error {
	m, err := v.loaded(interact.ReadMultipleProperties)
	if err != nil {
		return err
	}
	if names, _, err := interact.Value(m.Data, m.Media()); err == nil {
		if _, isArray := names.([]any); isArray {
			return v.callWith(m)
		}
	}
	return v.subscribeWith(interact.ObserveAllProperties, m.Data, m.Media())
}

// decodeBody decodes a JSON or CBOR object into doc.
func decodeBody(data []byte, media string, doc any) error {
	data, _, err := interact.Transcode(data, media, interact.JSON)
	if err == nil {
		_, err = jcs.Object(data, len(data)) // strictly: no name twice
	}
	if err == nil {
		err = json.Unmarshal(data, doc)
	}
	return err
}

// endWatch responds to a request that ends a long poll (TD 1.1, unobserveproperty and unsubscribeevent). The poll has ended with its
// response.
func (v *visit) endWatch() error {
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}
