package coap

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"

	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// pingAgain is the time after which a ping without a response is repeated.
const pingAgain = 300 * time.Millisecond

// Ping returns nil if a CoAP server responds at addr, a host and a UDP port: the response to an Empty message is a Reset (RFC 7252 §4.3),
// or an acknowledgement of some servers. It repeats the message until ctx ends. The error is that of the network, for example for a port
// without a listener, or that of ctx.
func Ping(ctx context.Context, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, "udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	id := uint16(time.Now().UnixNano())
	for ctx.Err() == nil {
		if _, err = c.Write(messaging.Bare(message.Confirmable, id)); err != nil {
			return err
		}
		if err = c.SetReadDeadline(time.Now().Add(pingAgain)); err != nil {
			return err
		}
		if _, err = c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return ctx.Err()
}
