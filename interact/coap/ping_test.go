package coap

import (
	"context"
	"net"
	"testing"

	"github.com/plgd-dev/go-coap/v3/message"

	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// TestPing: a server responds to an Empty message, also if the first one was lost; a port without a listener is an immediate error.
func TestPing(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 16)
		for n := 0; ; n++ {
			k, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			if p, err := messaging.ParseDatagram(b[:k]); n > 0 && err == nil && p.Kind == message.Confirmable {
				_, _ = server.WriteTo(messaging.Bare(message.Reset, p.Mid), from)
			}
		}
	}()
	addr := server.LocalAddr().String()
	if err := Ping(t.Context(), addr); err != nil {
		t.Error(err)
	}
	server.Close()
	<-done
	if err := Ping(t.Context(), addr); !messaging.IsRefused(err) {
		t.Errorf("got %v of a port where nothing listens", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Ping(ctx, addr); err == nil {
		t.Error("a ping outlives its context")
	}
}
