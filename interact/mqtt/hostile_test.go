package mqtt

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

func packetOf(first byte, body string) []byte {
	return append(packet.AppendLength([]byte{first}, len(body)), body...)
}

func join(packets ...[]byte) []byte { return bytes.Join(packets, nil) }

var (
	connack5 = packetOf(0x20, "\x00\x00\x00")
	connack3 = packetOf(0x20, "\x00\x00")
	connect3 = packetOf(0x10, "\x00\x04MQTT\x04\x02\x00\x3c\x00\x05first")
)

// No input of a broker ends the process or leaves a goroutine: in both libraries, from the CONNACK on or after a
// good one.
func FuzzHostileBroker(f *testing.F) {
	for mode, seeds := range [][][]byte{
		{packetOf(0x30, "\x00\x01a\x00x"), packetOf(0x50, "\x00\x01"), packetOf(0x90, "\x00\x01\x00\x80"),
			packetOf(0x34, "\x00\x01a\x00\x01\x00x"), packetOf(0xe0, "\x8b")},
		{packetOf(0x90, "\x00\x01\x80"), packetOf(0x62, "\x00\x01"), packetOf(0x32, "\x00")},
		{packetOf(0x20, "\x00\x00\x04\x15\x00\x01a"), packetOf(0x20, "\x00\x87\x00"), connack3, []byte("SSH-2.0-x\r\n")},
		{packetOf(0x20, "\x00\x05"), packetOf(0x20, "\x01\x00"), connack5},
	} {
		for _, seed := range seeds {
			f.Add(seed, byte(mode))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, mode byte) {
		if len(raw) > 4096 {
			return
		}
		old := mode&1 == 1
		switch {
		case mode&2 == 0 && old:
			raw = join(connack3, raw)
		case mode&2 == 0:
			raw = join(connack5, raw)
		}
		here, there := net.Pipe()
		var broker sync.WaitGroup
		broker.Go(func() { _, _ = io.Copy(io.Discard, there) })
		broker.Go(func() {
			_, _ = there.Write(raw)
			there.Close()
		})
		defer broker.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var w wire
		var err error
		deliver := func(*delivery) {}
		if old {
			w, err = dial3(ctx, packet.NewConn(here, packet.FromBroker3, 1000), "id", login{}, 50*time.Millisecond, deliver)
		} else {
			w, err = dial5(ctx, packet.NewConn(here, packet.FromBroker, 1000), "id", login{}, 1000, deliver)
		}
		if err != nil {
			return
		}
		defer w.close()
		_ = w.subscribe(ctx, "a/#", 1)
		_ = w.publish(ctx, &publication{topic: "a", qos: 2})
	})
}
