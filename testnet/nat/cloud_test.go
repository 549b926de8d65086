package nat

import (
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipe is a device in memory: Send makes the cloud read a packet, got has what the cloud has written, with the time since the start.
type pipe struct {
	start time.Time
	in    chan []byte

	mu  sync.Mutex // owns got, until all packets have arrived
	got []arrival
}

type arrival struct {
	number byte
	after  time.Duration
}

func newPipe() *pipe { return &pipe{start: time.Now(), in: make(chan []byte)} }

func (p *pipe) Read(b []byte) (int, error) {
	data, ok := <-p.in
	if !ok {
		return 0, io.EOF
	}
	return copy(b, data), nil
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, arrival{b[len(b)-1], time.Since(p.start)})
	return len(b), nil
}

func (p *pipe) Close() error {
	close(p.in)
	return nil
}

// datagram returns a packet of IPv4 or IPv6 with a number as its last byte.
func datagram(from, to netip.Addr, number byte) []byte {
	if from.Is4() {
		b := make([]byte, 21)
		b[0] = 4 << 4
		copy(b[12:], from.AsSlice())
		copy(b[16:], to.AsSlice())
		b[20] = number
		return b
	}
	b := make([]byte, 41)
	b[0] = 6 << 4
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
	b[40] = number
	return b
}

var (
	addrA, addrB, addrC = netip.MustParseAddr("11.0.0.1"), netip.MustParseAddr("11.0.0.2"), netip.MustParseAddr("11.0.0.3")
	addrA6, addrB6      = netip.MustParseAddr("2a00::1"), netip.MustParseAddr("2a00::2")
)

// inCloud runs f with three devices in virtual time; b has address C, too.
func inCloud(t *testing.T, l Link, f func(t *testing.T, c *Cloud, a, b *pipe)) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCloud(l, 1)
		a, b := newPipe(), newPipe()
		c.Attach(a, addrA, addrA6)
		c.Attach(b, addrB, addrB6, addrC)
		f(t, c, a, b)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// settle returns when all packets that are on their way have arrived.
func settle() {
	time.Sleep(time.Hour)
	synctest.Wait()
}

func TestCloudDelays(t *testing.T) {
	t.Parallel()
	inCloud(t, Link{Delay: 10 * time.Millisecond}, func(t *testing.T, c *Cloud, a, b *pipe) {
		c.Set(addrA, addrC, Link{Delay: 3 * time.Millisecond})
		a.in <- datagram(addrA, addrB, 1)
		a.in <- datagram(addrA, addrC, 2)
		a.in <- datagram(addrA6, addrB6, 3)
		time.Sleep(5 * time.Millisecond)
		a.in <- datagram(addrA, addrB, 4)
		settle()
		slices.SortFunc(b.got, func(x, y arrival) int { return int(x.number) - int(y.number) })
		want := []arrival{{1, 10 * time.Millisecond}, {2, 3 * time.Millisecond}, {3, 10 * time.Millisecond}, {4, 15 * time.Millisecond}}
		if !slices.Equal(b.got, want) || len(a.got) != 0 {
			t.Errorf("arrived %v and %v, want %v and none", b.got, a.got, want)
		}
	})
}

func TestCloudCutsAndHeals(t *testing.T) {
	t.Parallel()
	inCloud(t, Link{Delay: time.Millisecond}, func(t *testing.T, c *Cloud, a, b *pipe) {
		c.Set(addrB, addrA, Link{Cut: true})
		a.in <- datagram(addrA, addrB, 1)
		b.in <- datagram(addrB, addrA, 2)
		a.in <- datagram(addrA, addrC, 3)
		settle()
		c.Set(addrA, addrB, Link{})
		a.in <- datagram(addrA, addrB, 4)
		settle()
		if len(a.got) != 0 || len(b.got) != 2 || b.got[0].number != 3 || b.got[1].number != 4 {
			t.Errorf("arrived %v and %v, want none and the packets 3 and 4", a.got, b.got)
		}
	})
}

func TestCloudLoses(t *testing.T) {
	t.Parallel()
	lost := func(loss float64) (numbers []arrival) {
		inCloud(t, Link{Loss: loss}, func(_ *testing.T, _ *Cloud, a, b *pipe) {
			for i := range 1000 {
				a.in <- datagram(addrA, addrB, byte(i))
				synctest.Wait()
			}
			settle()
			numbers = b.got
		})
		return numbers
	}
	first := lost(0.2)
	if n := len(first); n < 750 || n > 850 {
		t.Errorf("%d of 1000 packets arrived with a loss of 0.2", n)
	}
	if !slices.Equal(first, lost(0.2)) {
		t.Error("one seed loses other packets the second time")
	}
	if n := len(lost(0)); n != 1000 {
		t.Errorf("%d of 1000 packets arrived without loss", n)
	}
}

// A queue is bounded: what does not fit is lost, and what fits arrives in order.
func TestCloudQueuesAreBounded(t *testing.T) {
	t.Parallel()
	inCloud(t, Link{Delay: time.Second}, func(t *testing.T, _ *Cloud, a, b *pipe) {
		for i := range 3 * waiting {
			a.in <- datagram(addrA, addrB, byte(i))
		}
		settle()
		if n := len(b.got); n < waiting || n > waiting+1 { // one is at the timer
			t.Errorf("%d packets arrived, want %d", n, waiting)
		}
		for i, p := range b.got {
			if p.number != byte(i) {
				t.Fatalf("packet %d arrived as number %d", p.number, i)
			}
		}
	})
}

func TestCloudDropsForgedSources(t *testing.T) {
	t.Parallel()
	inCloud(t, Link{}, func(t *testing.T, _ *Cloud, a, b *pipe) {
		a.in <- datagram(netip.MustParseAddr("192.168.1.2"), addrB, 1)
		a.in <- datagram(addrA, netip.MustParseAddr("11.9.9.9"), 2)
		a.in <- []byte{4 << 4}
		settle()
		if len(b.got) != 0 {
			t.Errorf("arrived %v, want nothing", b.got)
		}
	})
}

func FuzzAddresses(f *testing.F) {
	f.Add(datagram(addrA, addrB, 0))
	f.Add(datagram(addrA6, addrB6, 0))
	f.Add([]byte{})
	f.Add([]byte{6 << 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		from, to, ok := addresses(data)
		if ok != from.IsValid() || ok != to.IsValid() {
			t.Fatalf("%v, %v, %v", from, to, ok)
		}
		if ok && (from.Is4() != (data[0]>>4 == 4) || len(data) < 20) {
			t.Fatalf("%v in %x", from, data)
		}
	})
}
