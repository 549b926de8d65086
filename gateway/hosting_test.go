package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// Host implements [Hosting]: the fake hosts whatever is granted to owner1, its node.
func (n *fakeNode) Host(_ context.Context, grant, body []byte) (*api.Publication, error) {
	g, err := td.ParseGrant(grant)
	if err != nil || !g.Names(owner1) || !json.Valid(body) {
		return nil, interact.Errorf(interact.Forbidden, "have it signed for it", "the grant does not name this node")
	}
	h := publication.Hosted{Thing: g.Thing, Name: td.Slug(g.Title), Grant: g, Offered: true, Hosts: []did.DID{owner1}}
	n.mu.Lock()
	n.hostings = append(n.hostings, h)
	n.mu.Unlock()
	shown := hosted(h)
	return &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: g.Thing, Created: true, TDSize: len(body), Hosted: &shown}, nil
}

func (n *fakeNode) HostedThings() []api.Hosted {
	all := []api.Hosted{}
	for _, h := range n.hostings {
		all = append(all, hosted(h))
	}
	return all
}

// IsAgent reports true for owner2, an agent that is attached.
func (n *fakeNode) IsAgent(agent did.DID) bool { return agent == owner2 }

func (n *fakeNode) EndHosting(_ context.Context, ref string) (*api.Publication, error) {
	h, err := named(n.hostings, ref)
	if err != nil {
		return nil, err
	}
	return &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: h.Thing, Withdrawn: true}, nil
}

func (n *fakeNode) WithdrawGranted(_ context.Context, record []byte) (*api.Publication, error) {
	if string(record) != "tombstone" {
		return nil, interact.Errorf(interact.Invalid, "sign it again", "the record is malformed")
	}
	return &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", Withdrawn: true}, nil
}

// granted returns the grant of a Thing, as its owner gives it to nodes. The description has characters that encoders of JSON escape.
func granted(t *testing.T, id string, owner did.Signer, node did.DID) *api.HostingGrant {
	t.Helper()
	raw := strings.Replace(thingTD(id, "Weather"), "{", `{"description":"a <b> & c",`, 1)
	thing, err := td.Complete([]byte(raw), owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	g, _, err := api.SignHostingGrant(thing, owner, td.GrantLease{Number: 7, Now: time.Now(), Lifetime: time.Hour, Nodes: []did.DID{node}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestHosting(t *testing.T) {
	t.Parallel()
	owner := didtest.NewKey()
	r := start(t, Options{})
	c := dial(t, r.url, token)
	if list, err := c.Hosted(t.Context()); err != nil || list.Items == nil || len(list.Items) != 0 {
		t.Fatalf("got %+v, %v", list, err)
	}
	g := granted(t, "urn:x:one", owner, owner1)
	p, err := c.Host(t.Context(), g, []string{"globex"})
	if err != nil || !p.Created || p.Hosted == nil || p.Hosted.Number != 7 || p.Hosted.State != api.HostedNow {
		t.Fatalf("got %+v, %v", p, err)
	}
	list, err := c.Hosted(t.Context())
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "weather" || list.Items[0].Owner != owner.DID() {
		t.Fatalf("got %+v, %v", list, err)
	}
	if p, err := c.EndHosting(t.Context(), list.Items[0].Ref); err != nil || !p.Withdrawn {
		t.Errorf("end: %+v, %v", p, err)
	}
	if p, err := c.WithdrawGranted(t.Context(), []byte("tombstone")); err != nil || !p.Withdrawn {
		t.Errorf("withdraw: %+v, %v", p, err)
	}
	if _, err := c.Host(t.Context(), granted(t, "urn:x:two", owner, owner2), nil); interact.AsError(err).Code != interact.Forbidden {
		t.Errorf("a grant of others: %v", err)
	}
	body, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	asJSON := merge(asAdmin, "Content-Type", interact.JSON)
	for name, x := range map[string]struct {
		exchange
		status int
	}{
		"no token to list":          {exchange{path: "/v1/hosting"}, 401},
		"no token to host":          {exchange{method: "POST", path: "/v1/hosting", body: string(body)}, 401},
		"another type":              {exchange{method: "POST", path: "/v1/hosting", body: string(body), header: asAdmin}, 415},
		"no grant":                  {exchange{method: "POST", path: "/v1/hosting", body: `{"td":{}}`, header: asJSON}, 400},
		"a damaged grant":           {exchange{method: "POST", path: "/v1/hosting", body: `{"grant":"AAAA","td":{}}`, header: asJSON}, 400},
		"another parameter":         {exchange{method: "POST", path: "/v1/hosting?fro=x", body: string(body), header: asJSON}, 400},
		"nothing of the name":       {exchange{method: "DELETE", path: "/v1/hosting/lamp", header: asAdmin}, 404},
		"a withdrawal without":      {exchange{method: "POST", path: "/v1/hosting/withdrawal", body: `{}`, header: asJSON}, 400},
		"a withdrawal of something": {exchange{method: "POST", path: "/v1/hosting/withdrawal", body: `{"record":"AAAA"}`, header: asJSON}, 400},
		"another path":              {exchange{method: "POST", path: "/v1/hosting/weather", body: `{}`, header: asJSON}, 404},
		"another method":            {exchange{method: "PUT", path: "/v1/hosting/weather", body: `{}`, header: asJSON}, 405},
	} {
		if resp, body := r.do(t, x.exchange); resp.StatusCode != x.status || !strings.Contains(body, `"code"`) {
			t.Errorf("%s: %d %s, want %d", name, resp.StatusCode, body, x.status)
		}
	}
}

// A grant keeps the bytes that were signed, also if a program has formatted its file.
func TestHostingGrantKeepsWhatIsSigned(t *testing.T) {
	t.Parallel()
	g := granted(t, "urn:x:one", didtest.NewKey(), owner1)
	var whole map[string]json.RawMessage
	body, err := g.Encode()
	if err == nil {
		err = json.Unmarshal(body, &whole)
	}
	if err != nil {
		t.Fatal(err)
	}
	pretty, err := json.MarshalIndent(map[string]json.RawMessage{"grant": whole["grant"], "td": json.RawMessage(strings.ReplaceAll(string(whole["td"]), ",\"", " ,\n\""))}, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	// MarshalIndent escapes; the formatter of a user does not.
	pretty = []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(pretty)))
	v := td.NewVerifier(did.Resolvers(map[string]did.Resolver{"key": did.Keys()}))
	for name, raw := range map[string][]byte{"as written": body, "formatted": pretty} {
		parsed, grant, err := api.ParseHostingGrant(raw)
		if err == nil {
			err = grant.Check(t.Context(), v, parsed.TD, time.Now())
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStatesOfHosting(t *testing.T) {
	t.Parallel()
	owner := didtest.NewKey()
	g, err := td.ParseGrant(granted(t, "urn:x:one", owner, owner1).Grant)
	if err != nil {
		t.Fatal(err)
	}
	for want, h := range map[string]publication.Hosted{
		api.HostedNow:        {Offered: true},
		api.HostedWaiting:    {Offered: true, Waiting: 8},
		api.HostedDraining:   {Offered: true, Waiting: 8, Draining: true},
		api.HostedGrantEnded: {Waiting: 8},
	} {
		h.Thing, h.Name, h.Grant = g.Thing, "weather", g
		if got := hosted(h); got.State != want || got.WaitingFor != h.Waiting || got.Hosts == nil {
			t.Errorf("got %+v, want %s", got, want)
		}
	}
	two := []publication.Hosted{{Thing: "urn:x:one", Name: "weather", Grant: g}, {Thing: "urn:x:two", Name: "weather", Grant: g}}
	if _, err := named(two, "weather"); interact.AsError(err).Code != interact.Ambiguous || len(interact.AsError(err).Next) != 1 {
		t.Errorf("got %v", err)
	}
	for _, ref := range []string{"urn:x:two", "urn:x:two@" + owner.DID().Multibase(), "urn:x:two@" + owner.DID().Multibase()[:12]} {
		if h, err := named(two, ref); err != nil || h.Thing != "urn:x:two" {
			t.Errorf("%s: %+v, %v", ref, h, err)
		}
	}
}

// Who may attach agents may call for one with a key of its own that is at the node, and for no other.
func TestCallsForAnAgent(t *testing.T) {
	t.Parallel()
	g := &Gateway{o: Options{Publisher: &fakeNode{}}, guard: newGuard(Options{Tokens: tokens.New("secret")}, nil)}
	for name, c := range map[string]struct {
		via   did.Via
		agent did.DID
		want  interact.Code
	}{
		"the socket":               {did.Socket, owner2, 0},
		"without an agent":         {did.Loopback, "", 0},
		"an agent elsewhere":       {did.Socket, owner1, interact.Forbidden},
		"no DID":                   {did.Socket, "crm", interact.Forbidden},
		"without the right to ask": {did.Unproven, owner2, interact.Unauthenticated},
	} {
		from := did.Consumer(c.via, "")
		r, err := http.NewRequestWithContext(did.WithPrincipal(t.Context(), from), http.MethodGet, "/v1/id", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(api.AgentHeader, string(c.agent))
		as, err := g.asAgent(r)
		if e := interact.AsError(err); c.want != 0 {
			if e == nil || e.Code != c.want {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		if p := did.PrincipalOf(as.Context()); err != nil || p.Agent() != c.agent || c.agent == "" && p != from {
			t.Errorf("%s: got %+v, %v", name, p, err)
		}
	}
}

// A token that manages one Thing does not call for agents, neither there nor in a session.
func TestManagersOfAThingDoNotCallForAgents(t *testing.T) {
	t.Parallel()
	store := memory(t)
	r := start(t, Options{Tokens: store})
	one, every := grant(t, store, "one", "manage:weather", "call", "find"), grant(t, store, "every", "manage", "call", "find")
	for name, header := range map[string]map[string]string{"a token": one, "a session": r.signIn(t, "call", one).both()} {
		r.expect(t, name, calls, header, 204)
		r.expect(t, name+" for an agent", calls, merge(header, api.AgentHeader, string(owner2)), 403)
	}
	r.expect(t, "a manager of the node", calls, merge(every, api.AgentHeader, string(owner2)), 204)
	r.expect(t, "its session", calls, r.signIn(t, "admin", every).both(api.AgentHeader, string(owner2)), 204)
}
