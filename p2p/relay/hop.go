package relay

import (
	"bytes"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
)

// maxMessage limits a message of the protocol, in bytes; the library has the same limit.
const maxMessage = 4096

// firstMessage limits the time of the first message of a stream.
const firstMessage = 10 * time.Second

// readHop reads the first message of a stream, and returns it with its bytes.
func readHop(r io.Reader) (*pb.HopMessage, []byte, error) {
	in := util.NewDelimitedReader(r, maxMessage)
	defer in.Close()
	var m pb.HopMessage
	if err := in.ReadMsg(&m); err != nil {
		return nil, nil, err
	}
	var raw bytes.Buffer
	if err := util.NewDelimitedWriter(&raw).WriteMsg(&m); err != nil {
		return nil, nil, err
	}
	return &m, raw.Bytes(), nil
}

// refuse answers a request with a status, and closes its stream.
func refuse(s network.Stream, status pb.Status) {
	_ = s.SetWriteDeadline(time.Now().Add(firstMessage))
	if err := util.NewDelimitedWriter(s).WriteMsg(&pb.HopMessage{Type: pb.HopMessage_STATUS.Enum(), Status: status.Enum()}); err != nil {
		_ = s.Reset()
		return
	}
	_ = s.Close()
}

// A circuit is the stream of a caller, whose first message was read. It counts and limits what the relay forwards.
type circuit struct {
	network.Stream
	in    io.Reader        // the first message, then the stream
	spend func(n int) bool // false ends the circuit
	done  func()           // called at its end, once or more
}

// Close implements [network.Stream].
func (c *circuit) Close() error {
	c.done()
	return c.Stream.Close()
}

// Reset implements [network.Stream].
func (c *circuit) Reset() error {
	c.done()
	return c.Stream.Reset()
}

// Read implements [network.Stream].
func (c *circuit) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	return n, c.pay(n, err)
}

// Write implements [network.Stream].
func (c *circuit) Write(b []byte) (int, error) {
	n, err := c.Stream.Write(b)
	return n, c.pay(n, err)
}

func (c *circuit) pay(n int, err error) error {
	if within := n == 0 || c.spend(n); err == nil && !within {
		return network.ErrReset
	}
	return err
}
