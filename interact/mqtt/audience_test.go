package mqtt

import (
	"context"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// The broker reads the directory for its clients (directory.Options.Sees).
func TestDescriptionsAreForTheClient(t *testing.T) {
	t.Parallel()
	for _, via := range []did.Via{did.Unproven, did.Token} {
		from := did.Consumer(via, "")
		b := &Broker{o: BrokerOptions{Find: func(ctx context.Context, ref string) (*td.Description, error) {
			if did.PrincipalOf(ctx) != from {
				t.Errorf("%s: the caller is %s", via, did.PrincipalOf(ctx).Short())
			}
			return nil, interact.NoAgent(ref)
		}}}
		if _, err := b.find(t.Context(), from, "x"); interact.AsError(err).Code != interact.NotFound {
			t.Error(err)
		}
	}
}

// A subscription to what the client may not observe is refused, and one with a wildcard observes only the rest.
func TestSubscriptionsThatRulesDeny(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	from := did.Consumer(did.Token, "meter")
	b := serve(t, m, func(o *BrokerOptions) {
		o.Auth = func(string, string) (*did.Principal, context.Context) { return from, context.Background() }
		o.Permits = func(who *did.Principal, d *td.Description, typ interact.Type, name string) bool {
			return who == from && d == m.lamp && !(typ == interact.ObserveProperty && name == "level") && !(typ == interact.SubscribeEvent && name == "out")
		}
	})
	p := newPeer(t, b.Addr().String(), nil)
	for filter, want := range map[string]byte{"lamp/properties/level/observable": 0x87, "lamp/events/out": 0x87, "lamp/properties/color/observable": 1, "lamp/#": 1} {
		ack, err := p.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: 1}}})
		if ack == nil || len(ack.Reasons) != 1 || ack.Reasons[0] != want {
			t.Errorf("%s: got %+v, %v, want %#x", filter, ack, err, want)
		}
	}
	until(t, "color is observed", func() bool { return m.observers("color") == 1 })
	if m.observers("level") != 0 || m.observers("out") != 0 {
		t.Error("what the client may not observe is observed")
	}
}
