package node

import (
	"context"
	"crypto/subtle"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap"
	"github.com/lmosd/lmosd/interact/mqtt"
	"github.com/lmosd/lmosd/interact/ws"
)

// openListeners opens the ways by which consumers of other protocols than HTTP come in.
func (n *Node) openListeners() (err error) {
	n.sockets = ws.NewServer(ws.ServerOptions{Mesh: n.mesh, Find: n.Get, Register: n.publisher.Attach, Log: n.log,
		Keep: n.opts.Tasks.Keep})
	n.onClose(func() error { n.sockets.Close(); return nil })
	if n.opts.MQTT != "" {
		auth, err := n.mqttAuth()
		if err != nil {
			return err
		}
		who := did.Consumer(did.Loopback, "")
		if auth != nil {
			who = did.Consumer(did.Token, gateway.Operator)
		}
		n.broker, err = mqtt.NewBroker(mqtt.BrokerOptions{Listen: n.opts.MQTT, Mesh: n.mesh, From: who, Find: n.Get, Auth: auth, Log: n.log})
		if err != nil {
			return cannotListen("mqtt.listen", n.opts.MQTT, err)
		}
		n.onClose(n.broker.Close)
	}
	if n.opts.CoAP != "" {
		if !onLoopback(n.opts.CoAP) { // its clients prove nothing
			return openToAll("coap.listen", n.opts.CoAP)
		}
		n.coap, err = coap.NewServer(coap.ServerOptions{Listen: n.opts.CoAP, Mesh: n.mesh, From: did.Consumer(did.Loopback, ""), Find: n.Get, Known: n.Known, Log: n.log})
		if err != nil {
			return cannotListen("coap.listen", n.opts.CoAP, err)
		}
		n.onClose(n.coap.Close)
	}
	return nil
}

func cannotListen(key, addr string, err error) error {
	if known := (*interact.Error)(nil); errors.As(err, &known) {
		return known
	}
	return &interact.Error{Code: interact.PortBusy, Title: "nothing can listen on " + addr, Err: err, Hint: "choose another address",
		Next: interact.Next(interact.StepRun, key, "127.0.0.1:0")}
}

func openToAll(key, addr string) error {
	return interact.Errorf(interact.WildcardBind, "", "every host that can reach %s could call agents as this node", addr).
		Then(interact.StepRun, key, "127.0.0.1:0")
}

// mqttAuth asks clients that do not come over loopback for the API's token as their password.
func (n *Node) mqttAuth() (func(user, password string) bool, error) {
	switch {
	case onLoopback(n.opts.MQTT):
		return nil, nil
	case n.opts.HTTP != nil && n.opts.HTTP.NoAuth:
		return nil, openToAll("mqtt.listen", n.opts.MQTT)
	}
	token, err := apiToken(n.opts.Dir)
	if err != nil {
		return nil, err
	}
	return func(_, password string) bool {
		return token != "" && subtle.ConstantTimeCompare([]byte(password), []byte(token)) == 1
	}, nil
}

func (n *Node) runListeners(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if n.broker != nil {
		g.Go(func() error { return n.broker.Run(ctx) })
	}
	if n.coap != nil {
		g.Go(func() error { return n.coap.Run(ctx) })
	}
	return g.Wait()
}

// MQTT is the address at which MQTT clients ask, or empty.
func (n *Node) MQTT() string {
	if n.broker == nil {
		return ""
	}
	return n.broker.Addr().String()
}

// CoAP is the address at which CoAP clients ask, or empty.
func (n *Node) CoAP() string {
	if n.coap == nil {
		return ""
	}
	return n.coap.Addr().String()
}
