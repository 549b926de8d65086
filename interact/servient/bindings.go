package servient

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/mqtt"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/interact/ws"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Values of Options.Direct: whether the agents of other nodes are called over the forms of their descriptions.
const (
	DirectOff    = "off"
	DirectSecure = "secure" // over TLS or DTLS, and at public addresses
	DirectAny    = "any"
)

// A binding calls agents in one protocol, over the forms of their descriptions.
type binding struct {
	thing    func(*td.Thing) interact.Thing
	supports func(*td.Form) bool
	close    func()
}

// bindingOptions are the arguments of the constructors of bindings.
type bindingOptions struct {
	credentials  credentials.Store
	callerSecret func(thing string, to *url.URL) string
	dial         Dialer
	log          *slog.Logger
	webhook      rest.Receiver
	conns        int // rest.Options.MaxConns
}

// protocols is the table of the bindings. A form belongs to the first binding that supports it.
var protocols = []struct {
	supports func(*td.Form) bool
	open     func(o bindingOptions) (thing func(*td.Thing) interact.Thing, close func())
}{
	{rest.Supports, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := rest.NewClient(rest.Options{Credentials: o.credentials, CallerSecret: o.callerSecret, Dial: o.dial, Webhook: o.webhook, MaxConns: o.conns, Log: o.log})
		return c.Thing, c.Close
	}},
	{ws.Supports, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := ws.NewClient(ws.Options{Credentials: o.credentials, Dial: o.dial, Log: o.log})
		return c.Thing, c.Close
	}},
	{mqtt.Supports, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := mqtt.NewClient(mqtt.Options{Credentials: o.credentials, Dial: o.dial, Log: o.log})
		return c.Thing, c.Close
	}},
	{coap.Supports, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := coap.NewClient(coap.Options{Credentials: o.credentials, Dial: o.dial, Log: o.log})
		return c.Thing, c.Close
	}},
}

// Pings probe a host and port, by scheme (publication.Options.Pings). CoAP over DTLS has none: only a handshake shows that an agent answers.
var Pings = map[string]func(ctx context.Context, addr string) error{"coap": coap.Ping}

// bindings call agents over the forms of their descriptions.
type bindings struct {
	all    []binding
	permit func(scheme string) bool
}

// A Dialer connects; nil connects as the system does.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// newBindings returns all bindings. They send the identity of the caller to agents.
func newBindings(o bindingOptions) *bindings {
	b := &bindings{permit: func(string) bool { return true }}
	for _, p := range protocols {
		thing, closes := p.open(o)
		b.all = append(b.all, binding{thing, p.supports, closes})
	}
	return b
}

// anonymous returns b, which then does not send the identity of the caller.
func (b *bindings) anonymous() *bindings {
	for i, one := range b.all {
		b.all[i].thing = func(t *td.Thing) interact.Thing { return interact.Anonymous(one.thing(t)) }
	}
	return b
}

// Supports reports whether a binding supports a form.
func Supports(f *td.Form) bool {
	for _, p := range protocols {
		if p.supports(f) {
			return true
		}
	}
	return false
}

// guardedBindings returns the bindings for the agents of other nodes, or nil if direct is DirectOff. They present no credentials: a foreign
// owner chooses the id of its Thing, and credentials are found by id.
func guardedBindings(direct string, log *slog.Logger) *bindings {
	guard := netguard.Public()
	switch direct {
	case DirectOff:
		return nil
	case DirectAny:
		guard = netguard.Any()
	}
	b := newBindings(bindingOptions{dial: guard.DialContext, log: log}).anonymous()
	if direct != DirectAny {
		b.permit = isSecure
	}
	return b
}

// isSecure reports whether a scheme is over TLS or DTLS.
func isSecure(name string) bool { return scheme.Lookup(name).IsSecure }

func (b *bindings) close() {
	for _, one := range b.all {
		one.close()
	}
}

// paths returns a path to t for each scheme of its forms, ranked from rank on in the order of the forms.
func (b *bindings) paths(t *td.Thing, rank int) []interact.Path {
	var paths []interact.Path
	seen := map[string]bool{}
	for _, f := range interact.AllForms(t) {
		name := f.Scheme()
		if seen[name] || !b.permit(name) {
			continue
		}
		one := b.of(f)
		if one == nil {
			continue
		}
		seen[name] = true
		fits := func(f *td.Form) bool { return f.Scheme() == name && one.supports(f) }
		paths = append(paths, interact.Path{Name: name, Rank: rank + len(paths), Thing: one.withVia(t),
			Supports: func(m *interact.Message) bool { return isOffered(t, m, fits) }, HasAddress: func(via string) bool { return leads(t, via, fits) }})
	}
	return paths
}

func (b *bindings) of(f *td.Form) *binding {
	for i := range b.all {
		if b.all[i].supports(f) {
			return &b.all[i]
		}
	}
	return nil
}

// isOffered reports whether a form that fits offers the operation of m.
func isOffered(t *td.Thing, m *interact.Message, fits func(*td.Form) bool) bool {
	return slices.ContainsFunc(interact.Forms(t, m), func(f td.Form) bool { return fits(&f) })
}

// leads reports whether via is the address of a form that fits.
func leads(t *td.Thing, via string, fits func(*td.Form) bool) bool {
	if _, err := url.Parse(via); err != nil || !strings.Contains(via, ":") {
		return false
	}
	return slices.ContainsFunc(interact.AllForms(t), func(f *td.Form) bool { return f.Href == via && fits(f) })
}

// withVia returns the Thing of t, which calls only the form whose address is the Via of a message, if that is an address.
func (b *binding) withVia(t *td.Thing) interact.Thing {
	all := b.thing(t)
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if strings.Contains(m.Via, ":") {
			return b.thing(only(t, m)).Do(ctx, m)
		}
		return all.Do(ctx, m)
	})
}

// only returns t with the form at m.Via as the only form for m.
func only(t *td.Thing, m *interact.Message) *td.Thing {
	c := *t
	keep := func(forms []td.Form) []td.Form {
		return slices.DeleteFunc(slices.Clone(forms), func(f td.Form) bool { return f.Href != m.Via })
	}
	c.Forms = keep(t.Forms)
	if p := t.Properties[m.Name]; p != nil {
		one := *p
		one.Forms = keep(p.Forms)
		c.Properties = map[string]*td.Property{m.Name: &one}
	}
	if a := t.Actions[m.Name]; a != nil {
		one := *a
		one.Forms = keep(a.Forms)
		c.Actions = map[string]*td.Action{m.Name: &one}
	}
	if e := t.Events[m.Name]; e != nil {
		one := *e
		one.Forms = keep(e.Forms)
		c.Events = map[string]*td.Event{m.Name: &one}
	}
	return &c
}
