package mqtt

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/internal/pipenet"
)

// TestClientWithoutHello: clients that do not send a complete CONNECT are disconnected after 10 s, also if they
// send single bytes of it.
func TestClientWithoutHello(t *testing.T) {
	t.Parallel()
	hello := packetOf(0x10, "\x00\x04MQTT\x04\x02\x00\x3c\x00\x01f")
	for name, dribble := range map[string]func(c net.Conn){
		"nothing":       func(net.Conn) {},
		"half":          func(c net.Conn) { _, _ = c.Write(hello[:7]) },
		"byte by byte":  func(c net.Conn) { drip(c, hello, 3*time.Second) },
		"no CONNECT":    func(c net.Conn) { drip(c, packetOf(0xc0, ""), 30*time.Second) },
		"a long length": func(c net.Conn) { drip(c, []byte{0x10, 0xff, 0xff}, time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := pipenet.Listen()
				serveBroker(t, l)
				began := time.Now()
				here, err := l.Dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				var work sync.WaitGroup
				work.Go(func() { dribble(here) })
				_, _ = io.Copy(io.Discard, here) // how it ends is the broker's choice
				if took := time.Since(began); took < greeting-time.Second || took > greeting+time.Second {
					t.Errorf("it ended after %v, want %v", took, greeting)
				}
				here.Close()
				work.Wait()
			})
		})
	}
}

// drip writes b, with a pause after each byte, until the connection ends.
func drip(c net.Conn, b []byte, pause time.Duration) {
	for i := range b {
		if _, err := c.Write(b[i : i+1]); err != nil {
			return
		}
		time.Sleep(pause)
	}
}
