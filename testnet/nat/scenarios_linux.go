package nat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A scene is a scenario that runs.
type scene struct {
	*world
	name string
	add  func(Step)
}

// healFor limits the time until a mesh works again.
const healFor = 60 * time.Second

// A scenario is a world, and what happens in it.
type scenario struct {
	spec worldSpec
	play func(ctx context.Context, s *scene) error
}

var both = []Transport{QUIC, TCP}

// scenarios has those of [Scenarios].
var scenarios = map[string]scenario{
	"relay-killed":    {worldSpec{transports: both, port: p2pPort}, relayKilled},
	"udp-blocked":     {worldSpec{transports: both, port: p2pPort}, udpBlocked},
	"router-reboots":  {worldSpec{transports: both, port: p2pPort}, routerReboots},
	"private-outside": {worldSpec{transports: both, port: p2pPort, private: true}, between(PortRestricted, PortRestricted)},
	"double-nat":      {worldSpec{transports: both, port: p2pPort}, doubleNAT},
	"only-443":        {worldSpec{transports: both, port: 443}, between(Only443, Only443)},
	"node-killed":     {worldSpec{transports: both, port: p2pPort}, nodeKilled},
	"node-moves":      {worldSpec{transports: both, port: p2pPort}, nodeMoves},
	"partition":       {worldSpec{transports: both, port: p2pPort}, partition},
	"ipv6-ipv4":       {worldSpec{transports: both, port: p2pPort, v6: true}, versions},
}

// play adds the rows of a scenario.
func (r *Report) play(ctx context.Context, o Options, name string) error {
	sc, ok := scenarios[name]
	if !ok {
		return fmt.Errorf("unknown scenario %q", name)
	}
	sc.spec.name = name
	w, err := newWorld(ctx, o, sc.spec)
	if err != nil {
		return err
	}
	err = sc.play(ctx, &scene{world: w, name: name, add: func(s Step) {
		r.Steps = append(r.Steps, s)
		if o.OnStep != nil {
			o.OnStep(s)
		}
	}})
	r.Routers += int(w.verified.Load())
	return errors.Join(err, w.close())
}

// step adds a row.
func (s *scene) step(what string, took time.Duration, path Path, err error) {
	st := Step{Scenario: s.name, What: what, OK: err == nil, Took: milliseconds(took), Path: path}
	if err != nil {
		st.Err = err.Error()
	}
	s.add(st)
}

// routed returns a function that makes a machine behind new routers.
func (w *world) routed(kinds ...Kind) func() (*Machine, error) {
	return func() (*Machine, error) { return w.behindNew(kinds...) }
}

// at returns a function that makes a public machine.
func (w *world) at(addr netip.Addr) func() (*Machine, error) {
	return func() (*Machine, error) { return w.public(addr) }
}

// with runs f with a new couple.
func (s *scene) with(ctx context.Context, caller, called func() (*Machine, error), f func(c *couple) error) error {
	c, err := s.meet(ctx, caller, called)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.close())
}

// row adds the rows of a new couple: all interactions, and the direct connection if there is one.
func (s *scene) row(ctx context.Context, what string, caller, called func() (*Machine, error)) error {
	return s.with(ctx, caller, called, func(c *couple) error {
		if before := c.caller.path(ctx, c.called.DID); before != None {
			what += ", connected before the call"
		}
		r := Result{Path: None}
		c.measure(ctx, &r, s.o.Punch)
		var err error
		if r.Err != "" {
			err = errors.New(r.Err)
		}
		s.step(what+": first answer", time.Duration(r.First*float64(time.Millisecond)), r.Path, err)
		if r.Path == Punched {
			s.step(what+": direct", time.Duration(r.Direct*float64(time.Millisecond)), r.Path, nil)
		}
		return nil
	})
}

// again adds a row with the time until a call succeeds. Calls that fail are repeated; the row has the error of the last one that failed.
func (s *scene) again(ctx context.Context, what string, c *couple) {
	start, failed := time.Now(), error(nil)
	wait, cancel := context.WithTimeout(ctx, healFor)
	defer cancel()
	st := Step{Scenario: s.name, Calls: 1}
	for ; ; st.Calls++ {
		call, end := context.WithTimeout(wait, answerMax)
		_, err := c.caller.ping(call, c.agent)
		end()
		if st.OK = err == nil; st.OK || wait.Err() != nil {
			break
		}
		failed = err
		select {
		case <-time.After(50 * time.Millisecond):
		case <-wait.Done():
		}
	}
	st.What, st.Took, st.Path = what, milliseconds(time.Since(start)), c.caller.path(ctx, c.called.DID)
	if failed != nil {
		st.Err = failed.Error()
	}
	s.add(st)
}

// between returns a scenario of one pair of kinds.
func between(caller, called Kind) func(context.Context, *scene) error {
	return func(ctx context.Context, s *scene) error {
		return s.row(ctx, fmt.Sprintf("%s calls %s", caller, called), s.routed(caller), s.routed(called))
	}
}

func udpBlocked(ctx context.Context, s *scene) error {
	return errors.Join(
		s.row(ctx, "UDP blocked at the called node", s.routed(PortRestricted), s.routed(UDPBlocked)),
		s.row(ctx, "UDP blocked at the caller", s.routed(UDPBlocked), s.routed(PortRestricted)),
		s.row(ctx, "UDP blocked at both", s.routed(UDPBlocked), s.routed(UDPBlocked)))
}

func doubleNAT(ctx context.Context, s *scene) error {
	return errors.Join(
		s.row(ctx, "the called node behind two routers", s.routed(PortRestricted), s.routed(PortRestricted, PortRestricted)),
		s.row(ctx, "both nodes behind two routers", s.routed(PortRestricted, PortRestricted), s.routed(PortRestricted, PortRestricted)))
}

func versions(ctx context.Context, s *scene) error {
	six := netip.AddrFrom16([16]byte{0x2a, 0, 1, 15: 1})
	return errors.Join(
		s.row(ctx, "IPv6 only calls IPv4 only", s.at(six), s.at(s.site(1))),
		s.row(ctx, "IPv4 only calls IPv6 only", s.at(s.site(2)), s.at(six.Next())))
}

// relayKilled kills the relay of the connection. A third relay starts once the nodes have two.
func relayKilled(ctx context.Context, s *scene) error {
	return s.with(ctx, s.routed(Symmetric), s.routed(Symmetric), func(c *couple) error {
		third, err := s.public(s.site(int(s.lastSite.Add(1))))
		if err != nil {
			return err
		}
		spare, err := s.start(ctx, third, "--mesh.dht.mode=server")
		if err != nil {
			return errors.Join(err, third.close())
		}
		defer spare.close()
		if err := s.admit(ctx, spare); err != nil {
			return err
		}
		s.again(ctx, "first call", c)
		used, err := c.relay(ctx, s.relays[:])
		if err != nil {
			return err
		}
		if err := used.Kill(); err != nil {
			return err
		}
		killed := time.Now()
		s.again(ctx, "relay killed: next call", c)
		err = c.called.until(ctx, healFor, "it has two relays again", func(ctx context.Context) bool {
			return len(slices.DeleteFunc(c.called.circuits(ctx), func(a string) bool { return strings.Contains(a, used.peerID()) })) >= 2
		})
		s.step("relay killed: two relays again", time.Since(killed), "", err)
		return nil
	})
}

// relay returns the node through which the two are connected.
func (c *couple) relay(ctx context.Context, of []*node) (*node, error) {
	peers, err := c.caller.Peers(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range peers.Items {
		for _, n := range of {
			if p.DID == c.called.DID && isCircuit(p.Addr) && strings.Contains(p.Addr, n.peerID()) {
				return n, nil
			}
		}
	}
	return nil, errors.New("the two nodes are not connected through a relay")
}

// routerReboots deletes the state of the router of the called node, and makes it map to other ports.
func routerReboots(ctx context.Context, s *scene) error {
	var errs []error
	for _, k := range []Kind{PortRestricted, Symmetric} {
		errs = append(errs, s.with(ctx, s.routed(Symmetric), s.routed(k), func(c *couple) error {
			s.again(ctx, fmt.Sprintf("%s: first call", k), c)
			if err := c.called.routers[0].reboot(); err != nil {
				return err
			}
			s.again(ctx, fmt.Sprintf("%s: next call after the reboot", k), c)
			return nil
		}))
	}
	return errors.Join(errs...)
}

// nodeKilled kills the called node, and starts it again with its key behind the same router.
func nodeKilled(ctx context.Context, s *scene) error {
	return s.with(ctx, s.routed(PortRestricted), s.routed(PortRestricted), func(c *couple) error {
		s.again(ctx, "first call", c)
		if err := c.called.Kill(); err != nil {
			return err
		}
		if err := c.called.run(ctx, c.called.N); err != nil {
			return err
		}
		s.again(ctx, "killed and started again: next call", c)
		err := s.reserve(ctx, c.called)
		s.step("killed and started again: two relays", c.called.reserved, "", err)
		return nil
	})
}

// nodeMoves connects the machine of the called node to another router, while the node runs.
func nodeMoves(ctx context.Context, s *scene) error {
	return s.with(ctx, s.routed(PortRestricted), s.routed(PortRestricted), func(c *couple) error {
		s.again(ctx, "first call", c)
		to, err := s.behindNew(AddressRestricted)
		if err != nil {
			return err
		}
		defer to.close()
		if err := errors.Join(c.called.ip("link delete eth0"), to.ip("link delete eth0")); err != nil {
			return err
		}
		if err := to.routers[0].serve(c.called.namespace, "eth0"); err != nil {
			return err
		}
		s.again(ctx, "behind another router: next call", c)
		return nil
	})
}

// partition cuts the path between two public nodes. The relays are between them.
func partition(ctx context.Context, s *scene) error {
	a, b := s.site(int(s.lastSite.Add(1))), s.site(int(s.lastSite.Add(1)))
	return s.with(ctx, s.at(a), s.at(b), func(c *couple) error {
		s.again(ctx, "first call", c)
		s.Set(a, b, Link{Cut: true})
		s.again(ctx, "cut: next call", c)
		s.Set(a, b, Link{Delay: s.o.Delay})
		s.again(ctx, "healed: next call", c)
		start := time.Now()
		err := c.caller.until(ctx, healFor, "it is connected directly", func(ctx context.Context) bool {
			_, err := c.caller.ping(ctx, c.agent)
			return err == nil && c.caller.path(ctx, c.called.DID) == Direct
		})
		s.step("healed: direct", time.Since(start), c.caller.path(ctx, c.called.DID), err)
		return nil
	})
}
