package node

import (
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	mochilisteners "github.com/mochi-mqtt/server/v2/listeners"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/api"
)

// brokerAt runs an MQTT broker of others at an address. It returns the broker's address and what stops it.
func brokerAt(t testing.TB, addr string) (string, func()) {
	t.Helper()
	server := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		t.Fatal(err)
	}
	l := mochilisteners.NewTCP(mochilisteners.Config{ID: "t", Address: addr})
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

// An agent is unreachable while its MQTT broker or CoAP server is down, and then reachable again without a call.
func TestAgentWithoutItsBrokerOrCoAPServerIsUnreachable(t *testing.T) {
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
