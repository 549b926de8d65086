package node

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td/scheme"
)

// brokerAt runs an MQTT broker of others at an address. It returns the broker's address and what stops it.
func brokerAt(t testing.TB, addr string) (string, func()) {
	t.Helper()
	server := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		t.Fatal(err)
	}
	l := listeners.NewTCP(listeners.Config{ID: "t", Address: addr})
	if err := server.AddListener(l); errors.Is(err, syscall.EADDRINUSE) {
		t.Skip("the port was taken meanwhile")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(); err != nil {
		t.Fatal(err)
	}
	return l.Address(), func() { _ = server.Close() }
}

// coapServerAt is the same for a CoAP server.
func coapServerAt(t testing.TB, addr string) (string, func()) {
	t.Helper()
	c, err := coapnet.NewListenUDP("udp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		t.Skip("the port was taken meanwhile")
	} else if err != nil {
		t.Fatal(err)
	}
	server := udp.NewServer(options.WithMux(mux.NewRouter()), options.WithErrors(func(error) {}),
		options.WithPeriodicRunner(func(func(time.Time) bool) {})) // the default one outlives the server
	done := make(chan error, 1)
	go func() { done <- server.Serve(c) }()
	return c.LocalAddr().String(), func() {
		server.Stop()
		_ = c.Close()
		<-done
	}
}

// An agent whose MQTT broker or CoAP server is down is unreachable, as one of HTTP is, and reachable when that is back, without any call.
func TestAnAgentWhoseBrokerOrCoAPServerIsDeadIsNotReachable(t *testing.T) {
	t.Parallel()
	for scheme, serve := range map[string]func(testing.TB, string) (string, func()){"mqtt": brokerAt, "coap": coapServerAt} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			nodes := connected(t, 2)
			host, looker := nodes[0], nodes[1]
			addr, stop := serve(t, "127.0.0.1:0")
			defer func() { stop() }()
			ref := publish(t, host, toolAt("Echo", "urn:x:echo", scheme+"://"+addr))
			knows(t, looker, ref)
			wants := func(when string, state api.State) {
				t.Helper()
				stale(host)
				stale(looker)
				for _, n := range []*running{host, looker} {
					until(t, when+" it is "+string(state), func() bool {
						d, err := n.Client().Agent(t.Context(), ref)
						return err == nil && d.Agent.State == state
					})
				}
			}
			wants("while the server is there", api.StateReachable)
			stop()
			stop = func() {}
			wants("without the server", api.StateUnreachable)
			_, stop = serve(t, addr)
			wants("after the server is back", api.StateReachable)
		})
	}
}

// A broker that is there says nothing of the agent behind it: what a call has found out stands.
func TestABrokerIsNoAgent(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	addr, stop := brokerAt(t, "127.0.0.1:0")
	defer stop()
	ref := publish(t, n, toolAt("Echo", "urn:x:echo", "mqtt://"+addr))
	for _, of := range n.offered.All() {
		if h, ok := of.Agent.(*hosted); ok {
			h.note(interact.Errorf(interact.Unreachable, "start the agent", "nobody listens to echo"))
			h.heard.Store(time.Now().Add(-tryAgain).UnixNano()) // it is tried again
		}
	}
	n.looks.mu.Lock()
	clear(n.looks.asked)
	n.looks.mu.Unlock()
	if d, err := n.Client().Agent(t.Context(), ref); err != nil || d.Agent.State != api.StateUnreachable {
		t.Errorf("shown as %+v, %v", d, err)
	}
}

// An agent is there if one of its addresses answers, whatever the others do.
func TestOneAddressIsEnough(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0") // takes datagrams and answers none
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	addr, stop := coapServerAt(t, "127.0.0.1:0")
	defer stop()
	by := func(name string) attempt { return attemptOf(scheme.Lookup(name)) }
	mute, coap, dead := target{by("coap"), silent.LocalAddr().String()}, target{by("coap"), addr}, target{by("http"), "127.0.0.1:1"}
	dtls := target{by("coaps"), "127.0.0.1:1"}
	for name, c := range map[string]struct {
		targets       []target
		direct, vague bool
	}{
		"all":           {[]target{mute, dead, coap}, true, true},
		"none":          {[]target{dead}, false, false},
		"one not tried": {[]target{dead, dtls}, false, true},
		"silence":       {[]target{mute}, false, false},
	} {
		if direct, vague := try(t.Context(), c.targets); direct != c.direct || vague != c.vague {
			t.Errorf("%s: got %v, %v", name, direct, vague)
		}
	}
}
