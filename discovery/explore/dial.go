package explore

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap"
	"github.com/lmosd/lmosd/td"
)

// A Dialer connects to addr, a host and a port. network is "tcp", "udp", or a variant of them.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// connect returns the Connection of an introduction, restricted to its addresses; nil if its Things cannot be called.
func (d *Discoveries) connect(c change) Connection {
	if d.o.Connect == nil {
		return nil
	}
	return d.o.Connect(dialTo(c.Introduction, d.allow(c.configuredHost)), c.configuredHost != "")
}

// agent returns the agent of a Thing over its own forms. Forms with "lmos:" addresses are not supported.
func (in *introduction) agent(d *td.Description) interact.Thing {
	if in.conn != nil {
		if agent := in.conn.Agent(d); agent != nil {
			return agent
		}
	}
	return interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return interact.Fail(interact.Errorf(interact.Unreachable,
			"interact.direct: secure allows calls to forms with addresses", "no supported form for the introduced Thing %s", d.Name()))
	})
}

const connectTimeout = 5 * time.Second

// dialTo returns a Dialer for the addresses that allow permits, and for the name of the introduction's host. It resolves no other name.
func dialTo(in dnssd.Introduction, allow func(dnssd.Introduction, netip.Addr) error) Dialer {
	return func(ctx context.Context, network, hostport string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(hostport)
		if err != nil {
			return nil, err
		}
		addrs := in.Addrs
		if !strings.EqualFold(strings.TrimSuffix(host, "."), in.Host) {
			addr, err := netip.ParseAddr(host)
			if err != nil {
				return nil, interact.Errorf(interact.Unreachable, "its description must have the host "+in.Host+", or an address",
					"expected the host %s of the introduction, got %q", in.Host, host)
			}
			addrs = []netip.Addr{addr.Unmap()}
		}
		failed := []error{errors.New("no address")}
		for _, addr := range addrs {
			if err := allow(in, addr); err != nil {
				failed = append(failed, interact.Errorf(interact.Unreachable,
					"introduced Things are called at the address of their introduction only", "%v", err))
				continue
			}
			c, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
			if err == nil {
				return c, nil
			}
			failed = append(failed, err)
		}
		return nil, failed[len(failed)-1]
	}
}

// A fetcher fetches TDs over CoAP (WoT Discovery §7.1.1: GET, block-wise, application/td+json), through dial.
type fetcher struct {
	dial Dialer
	open sync.Once
	coap *coap.Client
}

// fetchTimeout is the time limit for one TD over CoAP.
const fetchTimeout = 10 * time.Second

// td implements the Fetch of [dnssd.ExplorerOptions].
func (f *fetcher) td(ctx context.Context, address string) ([]byte, error) {
	f.open.Do(func() { f.coap = coap.NewClient(coap.Options{Dial: f.dial, MaxBody: td.MaxTD}) })
	const name = "td"
	server := f.coap.Thing(&td.Thing{ID: address, Properties: map[string]*td.Property{name: {Affordance: td.Affordance{
		Forms: []td.Form{{Href: address, ContentType: "application/td+json", Ops: []string{"readproperty"}}}}}}})
	r, err := interact.Call(ctx, server, &interact.Message{Type: interact.ReadProperty, Thing: address, Name: name,
		Deadline: time.Now().Add(fetchTimeout)})
	if err != nil {
		return nil, err
	}
	return r.Data, nil
}

func (f *fetcher) close() {
	if f.coap != nil {
		f.coap.Close()
	}
}
