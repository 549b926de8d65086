package group

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/trust/exchange"
)

// A hosted is a node with a libp2p host, whose requests go over the protocol of package trust.
type hosted struct {
	*Groups
	host host.Host
	net  *exchange.Exchange
}

// hosts returns nodes on loopback that know each other's addresses.
func hosts(t testing.TB, n int) []*hosted {
	t.Helper()
	all := make([]*hosted, n)
	at := map[did.DID]*hosted{}
	for i := range all {
		key, h := didtest.NewKey(), &hosted{}
		all[i], at[key.DID()] = h, h
		h.host = testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0")
		h.net = exchange.New(exchange.Options{Network: "test", Host: h.host, Now: time.Now, Log: slog.New(slog.DiscardHandler),
			Handle: func(ctx context.Context, from did.DID, q *exchange.Request) (*exchange.Response, error) {
				body, err := h.Serve(ctx, did.NodePrincipal(from, ""), q.Body)
				return &exchange.Response{Body: body}, err
			}})
		var err error
		h.Groups, err = Open(Options{Dir: t.TempDir(), Signer: key, Network: "test",
			Ask: func(ctx context.Context, to did.DID, body []byte, addrs ...string) ([]byte, error) {
				r, err := h.net.Ask(ctx, to, &exchange.Request{Op: exchange.OpGroup, Body: body}, addrs...)
				if err != nil {
					return nil, err
				}
				return r.Body, nil
			},
			Connect: func(ctx context.Context, to did.DID) error {
				return h.host.Connect(ctx, peer.AddrInfo{ID: at[to].host.ID(), Addrs: at[to].host.Addrs()})
			},
			Addrs:       func() []string { return []string{fmt.Sprintf("%s/p2p/%s", h.host.Addrs()[0], h.host.ID())} },
			Credentials: func(did.DID) []Credential { return nil }, Principal: func(id did.DID) *did.Principal { return did.NodePrincipal(id, "") },
			Organization: func(string) (did.DID, bool) { return "", false }, Sender: func(*did.Principal) string { return "" },
			OnChange: func([]did.DID) {}, OnNames: func() {}, Record: func(string) {}})
		if err != nil {
			t.Fatal(err)
		}
		h.net.Start()
		t.Cleanup(func() { h.net.Close(); _ = h.Close() })
	}
	return all
}

func (h *hosted) joins(t testing.TB, admin *hosted, id string) {
	t.Helper()
	i, err := admin.Invite(t.Context(), id, api.GroupInvite{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Join(t.Context(), api.GroupJoin{Invitation: i.Invitation}); err != nil {
		t.Fatal(err)
	}
}

// untilAgreed waits until nodes know one head with a number of members, and returns how long that took.
func untilAgreed(t testing.TB, id string, members int, all []*hosted) time.Duration {
	t.Helper()
	start := time.Now()
	poll.Until(t, fmt.Sprintf("%d nodes know %d members", len(all), members), func() bool {
		head := ""
		for _, h := range all {
			g, err := h.Get(id)
			if err != nil || g.Count != members || head != "" && g.Head != head {
				return false
			}
			head = g.Head
		}
		return true
	})
	return time.Since(start)
}

// TestGroupOverHosts: a join and a removal reach the members over real connections. With -run TestGroupOverHosts -v -args -hosts 100 it logs the
// figures of docs/benchmarks.md.
func TestGroupOverHosts(t *testing.T) {
	t.Parallel()
	all := hosts(t, *hostCount+1)
	ada, members := all[0], all[:*hostCount]
	g, err := ada.Create(api.GroupCreate{Name: "g"})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range members[1:] {
		h.joins(t, ada, g.ID)
	}
	untilAgreed(t, g.ID, len(members), members)
	start := time.Now()
	all[len(members)].joins(t, ada, g.ID)
	untilAgreed(t, g.ID, len(all), all)
	t.Logf("a join is known to %d members after %s", len(all), time.Since(start).Round(time.Millisecond))
	removed, err := all[1].Get(g.ID)
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	if _, err := ada.Change(t.Context(), g.ID, api.GroupChange{Kind: api.GroupRemove, Member: removed.Members[len(all)-1].DID}); err != nil {
		t.Fatal(err)
	}
	untilAgreed(t, g.ID, len(members), members)
	t.Logf("a removal is known to %d members after %s", len(members), time.Since(start).Round(time.Millisecond))
}
