package stream

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

const someone = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"

func resetWith(code network.StreamErrorCode) error {
	return &network.StreamError{ErrorCode: code, Remote: true}
}

func TestRepeatableOperations(t *testing.T) {
	t.Parallel()
	action, read := interact.InvokeAction, interact.ReadProperty
	for name, c := range map[string]struct {
		typ    interact.Type
		lost   lostError
		stream bool
		want   bool
	}{
		"a read that was sent":                   {read, lostError{cause: errSlow, sent: true}, false, true},
		"an action that was sent":                {action, lostError{cause: errSlow, sent: true}, false, false},
		"an action that was not sent":            {action, lostError{cause: errSlow}, false, true},
		"a read that was answered":               {read, lostError{cause: errSlow, sent: true, answered: true}, false, false},
		"an action that an idle session dropped": {action, lostError{cause: resetWith(0x1006), sent: true}, false, true},
		"an action that was reset":               {action, lostError{cause: resetWith(0), sent: true}, false, false},
		"a protocol that is not spoken":          {action, lostError{cause: resetWith(0x1001), sent: true}, false, true},
		"a request stream":                       {read, lostError{cause: errSlow}, true, false},
		"this node closes":                       {read, lostError{cause: errClosed}, false, false},
		"our own reset":                          {action, lostError{cause: &network.StreamError{ErrorCode: 0x1006}, sent: true}, false, false},
	} {
		m := &interact.Message{Type: c.typ}
		if c.stream {
			m.Chunks = nothing
		}
		if got := c.lost.repeatable(m, interact.Repeatable(nil, m)); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	for typ, want := range map[interact.Type]bool{
		interact.ReadProperty: true, interact.ReadAllProperties: true, interact.ReadMultipleProperties: true,
		interact.ObserveProperty: true, interact.QueryAction: true, interact.QueryAllActions: true,
		interact.SubscribeEvent: true, interact.SubscribeAllEvents: true, interact.WriteProperty: false,
		interact.WriteAllProperties: false, interact.WriteMultipleProperties: false, interact.InvokeAction: false,
		interact.CancelAction: false, interact.UnobserveProperty: false, interact.UnsubscribeEvent: false, 99: false,
	} {
		if interact.Type.Reads(typ) != want {
			t.Errorf("type %d: got %t, want %t", typ, !want, want)
		}
	}
}

func TestErrorsOfLostConnections(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]*lostError{
		"LMOS-3030 this node is shutting down":                  {cause: errClosed},
		"LMOS-3030 host z6Mkp":                                  {cause: resetWith(0x1007)},
		"LMOS-1529 host z6Mkp":                                  {cause: resetWith(0x1002)},
		"LMOS-1503 host z6Mkp":                                  {cause: resetWith(0)},
		"LMOS-1503 host z6MkpTHR… does not answer any more":     {cause: errSilent},
		"LMOS-1503 host z6MkpTHR… was lost before it answered:": {cause: errors.New("connection reset")},
	} {
		r := interact.AsError(e.report(someone))
		if got := r.Code.String() + " " + r.Error(); !strings.HasPrefix(got, want) || r.Hint == "" && r.Next == nil || r.Remote {
			t.Errorf("got %q with hint %q, want %q", got, r.Hint, want)
		}
		if !errors.Is(e, e.cause) || e.Error() == "" {
			t.Errorf("%v hides its cause", e)
		}
	}
}

func TestUnreachableIsOneLine(t *testing.T) {
	t.Parallel()
	dial := &swarm.DialError{Cause: swarm.ErrAllDialsFailed, DialErrors: []swarm.TransportError{
		{Address: multiaddr.StringCast("/ip4/192.0.2.1/tcp/4001"), Cause: errors.New("connection refused")},
		{Address: multiaddr.StringCast("/ip4/192.0.2.1/udp/4001/quic-v1"), Cause: errors.New("timeout:\nno recent activity")},
	}}
	err := unreachable("weather", []*pathError{
		{host: td.Host{Node: someone, Addrs: []string{"/ip4/192.0.2.1/tcp/4001"}}, err: dial},
		{host: td.Host{Node: someone}, err: context.DeadlineExceeded},
	})
	want := `no path leads to "weather" on z6MkpTHR…, z6MkpTHR…: tried z6MkpTHR… at /ip4/192.0.2.1/tcp/4001: ` +
		`[/ip4/192.0.2.1/tcp/4001] connection refused; [/ip4/192.0.2.1/udp/4001/quic-v1] timeout: no recent activity; ` +
		`z6MkpTHR… at no known address: context deadline exceeded`
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if !errors.Is(err, swarm.ErrAllDialsFailed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("the causes are hidden")
	}
}
