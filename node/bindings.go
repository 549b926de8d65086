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
)

// Values of Options.Direct.
const (
	DirectOff    = "off"
	DirectSecure = "secure"
	DirectAny    = "any"
)

// A binding asks agents in one protocol, over the forms of their descriptions.
type binding struct {
	thing  func(*td.Thing) interact.Thing
	claims func(*td.Form) bool
	close  func()
}

// bindings ask agents over the addresses in their descriptions: those of this host, whose descriptions the administrator
// published, or those of strangers, whose addresses are guarded.
type bindings struct {
	all    []binding
	permit func(scheme string) bool
}

// dialer connects; nil means as the system does.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// newBindings returns bindings with at most conns connections to an agent over HTTP (rest.Options.MaxConns). They tell agents who
// asks.
func newBindings(creds credentials.Store, dial dialer, hook rest.Receiver, conns int, log *slog.Logger) *bindings {
	web := rest.NewClient(rest.Options{Credentials: creds, Dial: dial, Webhook: hook, MaxConns: conns, Log: log})
	sock := ws.NewClient(ws.Options{Credentials: creds, Dial: dial, Log: log})
	broker := mqtt.NewClient(mqtt.Options{Credentials: creds, Dial: dial, Log: log})
	udp := coap.NewClient(coap.Options{Credentials: creds, Dial: dial, Log: log})
	return &bindings{permit: func(string) bool { return true }, all: []binding{
		{web.Thing, rest.Claims, web.Close}, {sock.Thing, ws.Claims, sock.Close},
		{broker.Thing, mqtt.Claims, broker.Close}, {udp.Thing, coap.Claims, udp.Close},
	}}
}

// silent are b without telling who asks: addresses in the descriptions of others are theirs.
func (b *bindings) silent() *bindings {
	for i, one := range b.all {
		b.all[i].thing = func(t *td.Thing) interact.Thing { return interact.Anonymous(one.thing(t)) }
	}
	return b
}

// Asks reports whether a node speaks the protocol of a form, to ask an agent over it.
func Asks(f *td.Form) bool { return rest.Claims(f) || ws.Claims(f) || mqtt.Claims(f) || coap.Claims(f) }

// guardedBindings ask strangers' agents, without any secret of this node; nil if nobody may be asked. Secure takes TLS only, and public addresses.
func guardedBindings(direct string, log *slog.Logger) *bindings {
	guard := netguard.Public()
	switch direct {
	case DirectOff:
		return nil
	case DirectAny:
		guard = netguard.Any()
	}
	// A stranger chooses the id of a thing, and by it would choose one of our secrets: for what request, is in its hands, too.
	b := newBindings(credentials.Store{}, guard.DialContext, nil, 0, log).silent()
	if direct != DirectAny {
		b.permit = func(scheme string) bool { return tlsSchemes[scheme] }
	}
	return b
}

var tlsSchemes = map[string]bool{"https": true, "wss": true, "mqtts": true, "coaps": true, "coaps+tcp": true}

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
		scheme := schemeOf(f.Href)
		if seen[scheme] || !b.permit(scheme) {
			continue
		}
		one := b.of(f)
		if one == nil {
			continue
		}
		seen[scheme] = true
		fits := func(f *td.Form) bool { return schemeOf(f.Href) == scheme && one.claims(f) }
		paths = append(paths, interact.Path{Name: scheme, Rank: rank + len(paths), Thing: forced(t, one),
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

// schemeOf returns the scheme of an address, or of a template for one.
func schemeOf(href string) string {
	scheme, _, _ := strings.Cut(href, ":")
	return strings.ToLower(scheme)
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
