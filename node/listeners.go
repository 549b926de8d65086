package node

import (
	"errors"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap"
	"github.com/lmosd/lmosd/interact/mqtt"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/interact/ws"
)

// listeners serve consumers of other protocols than HTTP.
type listeners struct {
	sockets *ws.Server
	broker  *mqtt.Broker // nil without Options.MQTT
	server  *coap.Server // nil without Options.CoAP
}

// openListeners opens the listeners.
func (n *Node) openListeners() (err error) {
	l, o, mesh := new(listeners), &n.opts, n.exported.Thing
	l.sockets = ws.NewServer(ws.ServerOptions{Mesh: mesh, Find: n.view.Get, Register: n.publications().Attach, Gate: &n.gate, Log: o.Log,
		Keep: o.Tasks.Keep, Capability: server.Capability})
	n.life.onClose(func() error { l.sockets.Close(); return nil })
	if o.MQTT != "" {
		anonymous, err := o.anonymous()
		if err != nil {
			return err
		}
		l.broker, err = mqtt.NewBroker(mqtt.BrokerOptions{Listen: o.MQTT, Mesh: mesh, Auth: n.stores.Tokens.Login(anonymous), Find: n.view.Get,
			Permits: n.policy.Permits, Gate: &n.gate, Log: o.Log})
		if err != nil {
			return cannotListen("mqtt.listen", o.MQTT, err)
		}
		n.life.onClose(l.broker.Close)
		n.life.onRun(l.broker.Run)
	}
	if o.CoAP != "" {
		if !onLoopback(o.CoAP) { // its clients do not authenticate
			return openToAll("coap.listen", o.CoAP)
		}
		l.server, err = coap.NewServer(coap.ServerOptions{Listen: o.CoAP, Mesh: mesh, From: did.Consumer(did.Loopback, ""), Find: n.view.Get,
			Known: n.view.Known, Gate: &n.gate, Log: o.Log})
		if err != nil {
			return cannotListen("coap.listen", o.CoAP, err)
		}
		n.life.onClose(l.server.Close)
		n.life.onRun(l.server.Run)
	}
	n.listeners = l
	return nil
}

// mqtt returns the address of the MQTT broker, or "".
func (l *listeners) mqtt() string {
	if l.broker == nil {
		return ""
	}
	return l.broker.Addr().String()
}

// coap returns the address of the CoAP server, or "".
func (l *listeners) coap() string {
	if l.server == nil {
		return ""
	}
	return l.server.Addr().String()
}

func cannotListen(key, addr string, err error) error {
	if known := (*interact.Error)(nil); errors.As(err, &known) {
		return known
	}
	return &interact.Error{Code: interact.PortBusy, Title: "cannot listen on " + addr, Err: err, Hint: "choose another address",
		Next: interact.Next(interact.StepRun, key, "127.0.0.1:0")}
}

func openToAll(key, addr string) error {
	return interact.Errorf(interact.WildcardBind, "", "every host that can reach %s could call agents as this node", addr).
		Then(interact.StepRun, key, "127.0.0.1:0")
}

// anonymous returns the principal of MQTT clients without a token; nil, and no error, if they need one.
func (o *Options) anonymous() (*did.Principal, error) {
	switch {
	case onLoopback(o.MQTT):
		return did.Consumer(did.Loopback, ""), nil
	case o.HTTP != nil && o.HTTP.NoAuth:
		return nil, openToAll("mqtt.listen", o.MQTT)
	}
	return nil, nil
}
