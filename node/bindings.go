package node

import (
	"context"
	"iter"
	"log/slog"
	"maps"
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

// Values of Options.Direct.
const (
	DirectOff    = "off"
	DirectSecure = "secure"
	DirectAny    = "any"
)

// A binding calls agents in one protocol, over the forms of their descriptions.
type binding struct {
	thing  func(*td.Thing) interact.Thing
	claims func(*td.Form) bool
	close  func()
}

// bindingOptions are what the constructors of bindings take.
type bindingOptions struct {
	credentials credentials.Store
	dial        dialer
	log         *slog.Logger
	hook        rest.Receiver // for webhooks
	conns       int           // rest.Options.MaxConns
}

// protocols is the table of the bindings: which forms each can use, and how it is constructed. A form belongs to the first binding
// that claims it.
var protocols = []struct {
	claims func(*td.Form) bool
	open   func(o bindingOptions) (thing func(*td.Thing) interact.Thing, close func())
}{
	{rest.Claims, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := rest.NewClient(rest.Options{Credentials: o.credentials, Dial: o.dial, Webhook: o.hook, MaxConns: o.conns, Log: o.log})
		return c.Thing, c.Close
	}},
	{ws.Claims, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := ws.NewClient(ws.Options{Credentials: o.credentials, Dial: o.dial, Log: o.log})
		return c.Thing, c.Close
	}},
	{mqtt.Claims, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := mqtt.NewClient(mqtt.Options{Credentials: o.credentials, Dial: o.dial, Log: o.log})
		return c.Thing, c.Close
	}},
	{coap.Claims, func(o bindingOptions) (func(*td.Thing) interact.Thing, func()) {
		c := coap.NewClient(coap.Options{Credentials: o.credentials, Dial: o.dial, Log: o.log})
		return c.Thing, c.Close
	}},
}

// pings probe a host and port, by scheme. A scheme over UDP that has none is not probed: of CoAP over DTLS only a handshake shows that
// the agent answers.
var pings = map[string]func(ctx context.Context, addr string) error{"coap": coap.Ping}

// bindings ask agents over the addresses in their descriptions: those of this host, whose descriptions the administrator
// published, or those of strangers, whose addresses are guarded.
type bindings struct {
	all    []binding
	permit func(scheme string) bool
}

// dialer connects; nil means as the system does.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// newBindings returns all bindings. They send the identity of the caller to agents.
func newBindings(o bindingOptions) *bindings {
	b := &bindings{permit: func(string) bool { return true }}
	for _, p := range protocols {
		thing, closes := p.open(o)
		b.all = append(b.all, binding{thing, p.claims, closes})
	}
	return b
}

// silent are b without telling who asks: addresses in the descriptions of others are theirs.
func (b *bindings) silent() *bindings {
	for i, one := range b.all {
		b.all[i].thing = func(t *td.Thing) interact.Thing { return interact.Anonymous(one.thing(t)) }
	}
	return b
}

// Asks reports whether a node has a binding that can use a form.
func Asks(f *td.Form) bool {
	for _, p := range protocols {
		if p.claims(f) {
			return true
		}
	}
	return false
}

// guardedBindings call agents of other owners without any secret of this node; nil if direct is DirectOff. DirectSecure permits
// only TLS and DTLS, and public addresses.
func guardedBindings(direct string, log *slog.Logger) *bindings {
	guard := netguard.Public()
	switch direct {
	case DirectOff:
		return nil
	case DirectAny:
		guard = netguard.Any()
	}
	// A stranger chooses the id of a thing, and by it would choose one of our secrets: for what request, is in its hands, too.
	b := newBindings(bindingOptions{dial: guard.DialContext, log: log}).silent()
	if direct != DirectAny {
		b.permit = isSecure
	}
	return b
}

// isSecure reports whether a scheme is over TLS or DTLS.
func isSecure(name string) bool { return scheme.Lookup(name).IsSecure }

func (b *bindings) close() error {
	for _, one := range b.all {
		one.close()
	}
	return nil
}

// paths returns the ways to t that its forms offer, one for each scheme, ranked as the forms come in the description.
func (b *bindings) paths(t *td.Thing, rank int) []interact.Path {
	var paths []interact.Path
	seen := map[string]bool{}
	for _, f := range everyForm(t) {
		name := f.Scheme()
		if seen[name] || !b.permit(name) {
			continue
		}
		one := b.of(f)
		if one == nil {
			continue
		}
		seen[name] = true
		fits := func(f *td.Form) bool { return f.Scheme() == name && one.claims(f) }
		paths = append(paths, interact.Path{Name: name, Rank: rank + len(paths), Thing: forced(t, one),
			Offers: func(m *interact.Message) bool { return offered(t, m, fits) }, Leads: func(via string) bool { return leads(t, via, fits) }})
	}
	return paths
}

func (b *bindings) of(f *td.Form) *binding {
	for i := range b.all {
		if b.all[i].claims(f) {
			return &b.all[i]
		}
	}
	return nil
}

// everyForm returns the forms of t: those of its affordances in the order of their names, then its own.
func everyForm(t *td.Thing) []*td.Form {
	var all []*td.Form
	add := func(forms []td.Form) {
		for i := range forms {
			all = append(all, &forms[i])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		add(t.Actions[name].Forms)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Properties)) {
		add(t.Properties[name].Forms)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Events)) {
		add(t.Events[name].Forms)
	}
	add(t.Forms)
	return all
}

// offered reports whether m can be asked over forms that fit.
func offered(t *td.Thing, m *interact.Message, fits func(*td.Form) bool) bool {
	for _, f := range interact.Forms(t, m) {
		if fits(&f) {
			return true
		}
	}
	return false
}

// leads reports whether via is the address of a form that fits.
func leads(t *td.Thing, via string, fits func(*td.Form) bool) bool {
	if _, err := url.Parse(via); err != nil || !strings.Contains(via, ":") {
		return false
	}
	return slices.ContainsFunc(everyForm(t), func(f *td.Form) bool { return f.Href == via && fits(f) })
}

// forced asks over all forms, or over the one that a message names as its way.
func forced(t *td.Thing, b *binding) interact.Thing {
	all := b.thing(t)
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if strings.Contains(m.Via, ":") {
			return b.thing(only(t, m)).Do(ctx, m)
		}
		return all.Do(ctx, m)
	})
}

// only returns t with the one form that m names as its way, where m looks for it.
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
