package localnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/testnet"
)

// The outsider is node 7, and a host that speaks the protocols without the checks of this project. Logistics is an agent of node 5 for partners;
// orders of node 2 is public: each probe finds it, so that an empty answer means a refusal.

// explainFind adds why the outsider may not find logistics.
func (f *federation) explainFind(ctx context.Context) error {
	return f.explain(ctx, f.logistics, f.other, "1404", "find", "logistics")
}

func (f *federation) outsiderFinds(ctx context.Context) (string, error) {
	answered, err := f.lacks(ctx, f.other)
	if err != nil {
		return "", err
	}
	out, code, err := f.lmosd(ctx, f.other, "find", "-o", "name")
	if err != nil || code != 0 || strings.Contains(out, "logistics") || !strings.Contains(out, ":orders") {
		return "", fmt.Errorf("lmosd find: exit code %d, %v\n%s", code, err, out)
	}
	return fmt.Sprintf("lmosd find asks %d nodes, and lists orders and support, not logistics", answered), f.explainFind(ctx)
}

func (f *federation) outsiderShows(ctx context.Context) (string, error) {
	for ref, want := range map[string]interact.Code{f.orders.Ref: 0, f.track.Ref: interact.NotFound} {
		if _, err := f.other.Agent(ctx, ref); codeOf(err) != want {
			return "", fmt.Errorf("%s gave %v", ref, err)
		}
	}
	if out, code, err := f.lmosd(ctx, f.other, "show", f.track.Ref); err != nil || code == 0 {
		return "", fmt.Errorf("lmosd show: exit code %d, %v\n%s", code, err, out)
	}
	return "lmosd show with the id of logistics: " + interact.NotFound.String(), f.explainFind(ctx)
}

// mcpVersion is a revision of MCP whose requests need no session.
const mcpVersion = "2026-07-28"

// forwarded is what a proxy adds to a request of another host: the caller is then untrusted, although it reaches the node over loopback.
const forwarded = "for=192.0.2.1"

// post sends JSON to a node as an untrusted client of its HTTP API; no body: GET.
func (f *federation) post(ctx context.Context, m *testnet.Member, path, body string) (status int, text string, err error) {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, m.API+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Forwarded", forwarded)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Mcp-Protocol-Version", mcpVersion)
	r.Header.Set("Mcp-Method", "tools/call")
	r.Header.Set("Mcp-Name", "mesh_search")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(b), err
}

// outsiderAsksThird asks node 3, which has the description because it may find it.
func (f *federation) outsiderAsksThird(ctx context.Context) (string, error) {
	if _, err := f.service.Agent(ctx, f.track.Ref); err != nil {
		return "", fmt.Errorf("node 3 does not have the description: %w", err)
	}
	for _, p := range []struct {
		at   *api.Publication
		want int
	}{{f.orders, http.StatusOK}, {f.track, http.StatusNotFound}} {
		if status, text, err := f.post(ctx, f.service, "/things/"+p.at.Ref, ""); err != nil || status != p.want {
			return "", fmt.Errorf("node 3 gives %s with status %d, %v: %s", p.at.Ref, status, err, text)
		}
	}
	return "node 3 has the description of logistics, and answers 404", f.explainFind(ctx)
}

// outsiderReadsDHT asks each node for the records, with a host without checks.
func (f *federation) outsiderReadsDHT(ctx context.Context) (string, error) {
	s, err := testnet.NewAdversary(f.net.Network)
	if err != nil {
		return "", err
	}
	defer s.Close()
	public := 0
	for _, m := range f.net.Members {
		for _, p := range []*api.Publication{f.orders, f.track} {
			value, err := s.Value(ctx, m.Addrs[0], td.Key(p.Owner, p.Ref))
			switch {
			case err != nil:
				return "", err
			case value != nil && p == f.track:
				return "", fmt.Errorf("node %d has the record of logistics in the DHT", m.N)
			case value != nil:
				public++
			}
		}
	}
	if public == 0 {
		return "", errors.New("no node has the record of a public agent in the DHT, so the probe shows nothing")
	}
	return fmt.Sprintf("all seven nodes asked: %d have the record of orders, none that of logistics", public), f.explainFind(ctx)
}

// outsiderListsMCP searches with the MCP server of the host of the agent and of node 3.
func (f *federation) outsiderListsMCP(ctx context.Context) (string, error) {
	for _, m := range []*testnet.Member{f.logistics, f.service} {
		for _, word := range []string{"orders", "logistics"} {
			status, text, err := f.post(ctx, m, "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mesh_search",
"arguments":{"query":%q},"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":{}}}}`, word, mcpVersion))
			if err != nil || status != http.StatusOK || strings.Contains(text, "logistics") || word == "orders" && !strings.Contains(text, `"orders"`) {
				return "", fmt.Errorf("mesh_search %s at node %d: status %d, %v: %s", word, m.N, status, err, text)
			}
		}
	}
	return "mesh_search, at nodes 3 and 5 through a proxy: orders, not logistics", f.explainFind(ctx)
}

// outsiderListsA2A asks the A2A server of the host of the agent and of node 3.
func (f *federation) outsiderListsA2A(ctx context.Context) (string, error) {
	for _, m := range []*testnet.Member{f.logistics, f.service} {
		for name, want := range map[string]int{"orders": http.StatusOK, "logistics": http.StatusNotFound} {
			if status, text, err := f.post(ctx, m, "/a2a/"+name+"/.well-known/agent-card.json", ""); err != nil || status != want {
				return "", fmt.Errorf("the card of %s at node %d: status %d, %v: %s", name, m.N, status, err, text)
			}
			status, text, err := f.post(ctx, m, "/a2a", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":
{"messageId":%q,"role":"ROLE_USER","parts":[{"text":%q}]}}}`, name, name))
			if err != nil || status != http.StatusOK || strings.Contains(text, f.track.Ref) || name == "orders" && !strings.Contains(text, f.orders.Ref) {
				return "", fmt.Errorf("the directory at node %d about %s: status %d, %v: %s", m.N, name, status, err, text)
			}
		}
	}
	return "directory and cards, at nodes 3 and 5 through a proxy: orders, not logistics", f.explainFind(ctx)
}

// outsiderListens joins the gossip. Logistics is published again before a public agent, whose record ends the probe.
func (f *federation) outsiderListens(ctx context.Context) (string, error) {
	s, err := testnet.NewAdversary(f.net.Network)
	if err != nil {
		return "", err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	ids, err := s.Listen(ctx, f.logistics.Addrs[0])
	if err != nil {
		return "", err
	}
	received, leaked := 0, false
	err = f.wait(ctx, "the outsider receives the record of a public agent", func(ctx context.Context) error {
		if _, err := f.logistics.Publish(ctx, f.agents.describe("logistics", td.Partners)); err != nil {
			return err
		}
		if _, err := f.logistics.Publish(ctx, f.agents.describe("rates", td.Public)); err != nil {
			return err
		}
		for {
			select {
			case id := <-ids:
				received++
				leaked = leaked || id == f.track.Ref
			default:
				if received > 0 {
					return nil
				}
				return errors.New("nothing has arrived")
			}
		}
	})
	switch {
	case leaked:
		err = errors.New("the outsider has received the record of logistics")
	case err == nil:
		_, err = f.logistics.Unpublish(ctx, "rates")
	}
	return "joins all topics at node 5: receives public records, not that of logistics", errors.Join(err, f.explainFind(ctx))
}

// outsiderCalls calls the public agent and the one that it may not find.
func (f *federation) outsiderCalls(ctx context.Context) (string, error) {
	_, err := refused(interact.Forbidden, "")(invoke(ctx, f.other, f.orders, "track"))
	_, hidden := refused(interact.NotFound, "")(invoke(ctx, f.other, f.track, "track"))
	if err := errors.Join(err, hidden); err != nil {
		return "", err
	}
	return "orders: " + interact.Forbidden.String() + ", logistics: " + interact.NotFound.String(), errors.Join(
		f.explain(ctx, f.issuer, f.other, "1403", "invoke", "orders/track"), f.explain(ctx, f.logistics, f.other, "1404", "invoke", track))
}

// outsiderDials restarts node 1 for members only. The outsider and a host without checks dial it; node 2, a member, stays connected.
func (f *federation) outsiderDials(ctx context.Context) (string, error) {
	if err := f.acme.Stop(); err != nil {
		return "", err
	}
	if err := f.net.Restart(ctx, f.acme, "--trust.connect", "members"); err != nil {
		return "", err
	}
	if err := f.issuer.Connect(ctx, f.acme.Addrs[0]); err != nil {
		return "", err
	}
	s, err := testnet.NewAdversary(f.net.Network)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if _, err := s.Value(ctx, f.acme.Addrs[0], td.Key(f.orders.Owner, f.orders.Ref)); !errors.Is(err, testnet.ErrRefused) {
		return "", fmt.Errorf("node 1 answers an outsider: %v", err)
	}
	_, _, err = f.lmosd(ctx, f.other, "peers", "connect", f.acme.Addrs[0])
	if err != nil {
		return "", err
	}
	err = f.wait(ctx, "node 1 is connected to node 2 and not to the outsider", func(ctx context.Context) error {
		peers, err := f.acme.Peers(ctx)
		if err != nil {
			return err
		}
		var has []string
		member := false
		for _, p := range peers.Items {
			has = append(has, p.DID.Short())
			if member = member || p.DID == f.issuer.DID; p.DID == f.other.DID {
				return fmt.Errorf("the outsider is among %v", has)
			}
		}
		if !member {
			return fmt.Errorf("node 2 is not among %v", has)
		}
		_, err = f.denied(ctx, f.acme, f.other, "connect", "")
		return err
	})
	if err != nil {
		return "", err
	}
	return "node 1 has trust.connect: members now: streams refused, connection closed; node 2 stays", f.explain(ctx, f.acme, f.other, "connect", "connect")
}
