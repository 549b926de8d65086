package nat

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// mtu is the size of the largest packet. Larger ones are dropped by the device.
const mtu = 1500

// waiting is the number of packets on their way from one address to another one. Further ones are lost.
const waiting = 1024

// A Link is the connection of two addresses.
type Link struct {
	Delay time.Duration // one way
	Loss  float64       // probability, of each packet
	Cut   bool          // all packets are lost
}

// A Cloud is an internet: it forwards IP packets between devices, each of which has public addresses. Its methods are safe for concurrent use.
type Cloud struct {
	wg   sync.WaitGroup
	done chan struct{}

	mu       sync.Mutex // owns what follows
	link     Link       // of pairs that are not in links
	links    map[route]Link
	rand     *rand.Rand
	devices  map[netip.Addr]io.Writer
	attached []io.Closer
	queues   map[route]chan packet
	closed   bool
}

// A route is a source and a destination.
type route struct{ from, to netip.Addr }

type packet struct {
	at   time.Time // of its arrival
	data []byte
}

// NewCloud returns a cloud without devices, whose links are like l. The seed determines which packets are lost.
func NewCloud(l Link, seed int64) *Cloud {
	return &Cloud{done: make(chan struct{}), link: l, links: map[route]Link{}, rand: rand.New(rand.NewPCG(uint64(seed), 0)),
		devices: map[netip.Addr]io.Writer{}, queues: map[route]chan packet{}}
}

// Attach forwards the packets of a device, one in each Read, and writes those for addrs to it. It writes concurrently. The cloud
// then owns the device. A device that fails is silent.
func (c *Cloud) Attach(device io.ReadWriteCloser, addrs ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached = append(c.attached, device)
	for _, a := range addrs {
		c.devices[a] = device
	}
	c.wg.Go(func() {
		buf := make([]byte, mtu)
		for {
			n, err := device.Read(buf)
			if err != nil {
				return
			}
			c.forward(buf[:n])
		}
	})
}

// Set changes the link of two addresses, in both directions. Packets that are on their way arrive.
func (c *Cloud) Set(a, b netip.Addr, l Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.links[route{a, b}], c.links[route{b, a}] = l, l
}

// Close closes all devices, and returns when their goroutines have ended.
func (c *Cloud) Close() error {
	c.mu.Lock()
	var err error
	if !c.closed {
		c.closed = true
		close(c.done)
		for _, d := range c.attached {
			err = errors.Join(err, d.Close())
		}
	}
	c.mu.Unlock()
	c.wg.Wait()
	return err
}

// forward sends a packet on its way, or loses it. It copies the packet.
func (c *Cloud) forward(data []byte) {
	from, to, ok := addresses(data)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	device, r := c.devices[to], route{from, to}
	link, special := c.links[r]
	if !special {
		link = c.link
	}
	// A source that no device has is forged, or of an address before translation.
	if device == nil || c.devices[from] == nil || c.closed || link.Cut || c.rand.Float64() < link.Loss {
		return
	}
	queue := c.queues[r]
	if queue == nil {
		queue = make(chan packet, waiting)
		c.queues[r] = queue
		c.wg.Go(func() { c.deliver(queue, device) })
	}
	select {
	case queue <- packet{time.Now().Add(link.Delay), append([]byte(nil), data...)}:
	default: // as a router with a full queue
	}
}

// deliver writes the packets of a queue to a device when they are due.
func (c *Cloud) deliver(queue <-chan packet, device io.Writer) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case p := <-queue:
			timer.Reset(time.Until(p.at))
			select {
			case <-timer.C:
				_, _ = device.Write(p.data) // one that fails is silent
			case <-c.done:
				return
			}
		case <-c.done:
			return
		}
	}
}
