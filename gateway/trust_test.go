package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A fakeTrust records the calls of its methods with their arguments. The member owner2 and the partner "none" do not exist.
type fakeTrust struct {
	calls chan string
	name  string // of the organization
}

func newFakeTrust() *fakeTrust { return &fakeTrust{make(chan string, 1), "acme.example"} }

// call records a call; an earlier one that no test received is dropped.
func (f *fakeTrust) call(name string, args ...any) error {
	text, err := json.Marshal(append([]any{}, args...))
	if err != nil {
		return err
	}
	select {
	case <-f.calls:
	default:
	}
	f.calls <- name + string(text)
	if slices.Contains(args, any(owner2)) || slices.Contains(args, any("none")) {
		return interact.Errorf(interact.NotFound, "look at the list", "there is no such member or partner")
	}
	return nil
}

func (f *fakeTrust) organization() *api.Organization {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	return &api.Organization{DID: "did:webvh:QmAcme:acme.example", SCID: "QmAcme", Name: f.name, Head: "1-QmHead", State: api.OrganizationConfirmed,
		Roles: []string{"node"}, Until: at, Issuer: true, Root: true,
		Issuers: []api.Issuer{{Method: "#i1", Node: owner1, This: true, ListVersion: 3, ListFrom: at}},
		Members: []api.Member{{DID: owner1, Name: "host-1", Roles: []string{"node"}, Until: at, Connected: true}, {DID: owner2, Roles: []string{"node"}, Revoked: at}}}
}

func (f *fakeTrust) Organization() (*api.Organization, error) { return f.organization(), nil }
func (f *fakeTrust) Init(_ context.Context, o api.OrganizationInit) (*api.Organization, error) {
	return f.organization(), f.call("Init", o)
}
func (f *fakeTrust) Join(_ context.Context, a api.Acceptance) (*api.Organization, error) {
	return f.organization(), f.call("Join", a)
}
func (f *fakeTrust) joinRequest() *api.JoinRequest {
	return &api.JoinRequest{Node: owner1, Organization: "did:webvh:QmAcme:acme.example", SCID: "QmAcme", Name: "acme.example", Words: f.partner().Words,
		Expires: time.Date(2026, 11, 20, 12, 10, 0, 0, time.UTC)}
}
func (f *fakeTrust) Offers(context.Context) []api.Offer { return nil }
func (f *fakeTrust) RequestJoin(_ context.Context, q api.JoinQuery) (*api.JoinRequest, error) {
	return f.joinRequest(), f.call("RequestJoin", q)
}
func (f *fakeTrust) JoinRequests() ([]api.JoinRequest, error) {
	return []api.JoinRequest{*f.joinRequest()}, nil
}
func (f *fakeTrust) Renew(context.Context) (*api.Organization, error) {
	return f.organization(), f.call("Renew")
}
func (f *fakeTrust) Leave(context.Context) error              { return f.call("Leave") }
func (f *fakeTrust) Export(_ context.Context, d string) error { return f.call("Export", d) }

func (f *fakeTrust) invitation() api.Invitation {
	return api.Invitation{ID: "9f2c", Text: "lmos-invite:c2VjcmV0", InvitationKind: api.InvitePartner, Roles: []string{"logistics"}, Uses: 1,
		Expires: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC), Organization: f.organization().DID, SCID: "QmAcme"}
}

func (f *fakeTrust) Invite(_ context.Context, r api.InvitationRequest) (*api.Invitation, error) {
	i := f.invitation()
	return &i, f.call("Invite", r)
}
func (f *fakeTrust) Invitations() []api.Invitation { return []api.Invitation{f.invitation()} }
func (f *fakeTrust) SetRoles(_ context.Context, m did.DID, roles []string) error {
	return f.call("SetRoles", m, strings.Join(roles, " "))
}
func (f *fakeTrust) KeptCheckpoints(context.Context) []api.KeptCheckpoints {
	return []api.KeptCheckpoints{{Node: owner1, Lines: []string{`{"n":1}`}}}
}
func (f *fakeTrust) Revoke(_ context.Context, m did.DID) error      { return f.call("Revoke", m) }
func (f *fakeTrust) Restore(_ context.Context, m did.DID) error     { return f.call("Restore", m) }
func (f *fakeTrust) AddIssuer(_ context.Context, n did.DID) error   { return f.call("AddIssuer", n) }
func (f *fakeTrust) RemoveIssuer(_ context.Context, m string) error { return f.call("RemoveIssuer", m) }
func (f *fakeTrust) SetBootstrap(_ context.Context, all []string) (*api.Organization, error) {
	return f.organization(), f.call("SetBootstrap", all)
}
func (f *fakeTrust) RotateRoot(context.Context) error { return f.call("RotateRoot") }
func (f *fakeTrust) RemoveRoot(context.Context) error { return f.call("RemoveRoot") }
func (f *fakeTrust) Deactivate(context.Context) error { return f.call("Deactivate") }
func (f *fakeTrust) RemovePartner(_ context.Context, n string) error {
	return f.call("RemovePartner", n)
}
func (f *fakeTrust) Distrust(_ context.Context, id did.DID, on bool) error {
	return f.call("Distrust", id, on)
}
func (f *fakeTrust) ExportRoot(_ context.Context, passphrase string) ([]byte, error) {
	return []byte("-----BEGIN"), f.call("ExportRoot", passphrase)
}
func (f *fakeTrust) ImportRoot(_ context.Context, key []byte, passphrase string) error {
	return f.call("ImportRoot", string(key), passphrase)
}
func (f *fakeTrust) Recover(_ context.Context, key []byte, file string) error {
	return f.call("Recover", string(key), file)
}

func (f *fakeTrust) partner() *api.Partner {
	return &api.Partner{Name: "globex", DID: "did:webvh:QmGlobex:globex.example", SCID: "QmGlobex", State: api.PartnerUnconfirmed,
		Since: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Words: []string{"apple", "bird", "cloud", "door", "egg", "fox"}, Head: "1-QmHead", Connected: 2}
}

func (f *fakeTrust) Partners() []api.Partner { return []api.Partner{*f.partner()} }
func (f *fakeTrust) Accept(_ context.Context, a api.Acceptance) (*api.Partner, error) {
	return f.partner(), f.call("Accept", a)
}
func (f *fakeTrust) Confirm(_ context.Context, name, head string) (*api.Partner, error) {
	return f.partner(), f.call("Confirm", name, head)
}
func (f *fakeTrust) Standing(_ context.Context, id did.DID) (*api.Standing, error) {
	return &api.Standing{DID: id, Relation: "partner", Organization: &api.OrganizationClaim{Name: "globex", DID: f.partner().DID, State: "partner"},
		Roles: []string{"logistics"}, Credential: json.RawMessage(`{"type":["VerifiableCredential"]}`)}, f.call("Standing", id)
}
func (f *fakeTrust) CheckDomain(_ context.Context, domain string) (*api.DomainCheck, error) {
	return &api.DomainCheck{Domain: domain, Proven: true, DID: f.partner().DID, SCID: "QmGlobex", Head: "1-QmHead",
		Organization: &api.OrganizationClaim{Name: "globex", DID: f.partner().DID, State: "partner"}}, f.call("CheckDomain", domain)
}
func (f *fakeTrust) credential() api.ForeignCredential {
	return api.ForeignCredential{Hash: "9f2c9f2c9f2c", Issuer: "did:web:registry.example", IssuerName: "registry", Subject: owner1,
		Types: []string{"RoleCredential"}, Until: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC), Held: true}
}
func (f *fakeTrust) ForeignCredentials() []api.ForeignCredential {
	return []api.ForeignCredential{f.credential()}
}
func (f *fakeTrust) Present(_ context.Context, p api.CredentialPresentation) (*api.ForeignCredential, error) {
	c := f.credential()
	return &c, f.call("Present", p)
}
func (f *fakeTrust) FetchCredentials(_ context.Context, q api.CredentialFetch) ([]api.ForeignCredential, error) {
	return f.ForeignCredentials(), f.call("FetchCredentials", q)
}
func (f *fakeTrust) RemoveCredential(_ context.Context, hash string) error {
	return f.call("RemoveCredential", hash)
}
func (f *fakeTrust) issuer() api.ForeignIssuer {
	return api.ForeignIssuer{Name: "registry", DID: "did:web:registry.example", Roles: []string{"adjuster"}, Since: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
}
func (f *fakeTrust) ForeignIssuers() []api.ForeignIssuer { return []api.ForeignIssuer{f.issuer()} }
func (f *fakeTrust) TrustIssuer(_ context.Context, i api.ForeignIssuer) (*api.ForeignIssuer, error) {
	made := f.issuer()
	return &made, f.call("TrustIssuer", i)
}
func (f *fakeTrust) RemoveForeignIssuer(_ context.Context, name string) error {
	return f.call("RemoveForeignIssuer", name)
}
func (f *fakeTrust) Credential() ([]byte, error) { return []byte(`{"id":"urn:x"}`), nil }
func (f *fakeTrust) Document(path string) ([]byte, string, bool) {
	media, ok := map[string]string{"/.well-known/did.jsonl": "text/jsonl", "/.well-known/did.json": "application/did+json",
		"/.well-known/lmosd/status/i1.json": "application/vc"}[path]
	return []byte(`{"path":"` + path + `"}`), media, ok
}

// asJSON are the headers of an administrator who sends JSON.
var asJSON = merge(asAdmin, "Content-Type", "application/json")

// goodRequests has a good request for each route of trust, with the method of Trust that it calls.
var goodRequests = map[string]struct {
	path, body string
	status     int
	call       string
}{
	"GET /v1/org":                            {status: 200},
	"POST /v1/trust/check":                   {body: `{"domain":"globex.example"}`, status: 200, call: `CheckDomain["globex.example"]`},
	"POST /v1/org":                           {body: `{"domain":"acme.example","recovery_file":"/r"}`, status: 201, call: `Init[{"domain":"acme.example","recovery_file":"/r"}]`},
	"DELETE /v1/org":                         {status: 204, call: `Leave[]`},
	"GET /v1/org/invitations":                {status: 200},
	"POST /v1/org/invitations":               {body: `{"kind":"partner","life":"36h","uses":2,"roles":["a"]}`, status: 201, call: `Invite[{"kind":"partner","roles":["a"],"uses":2,"life":"36h0m0s"}]`},
	"POST /v1/org/join":                      {body: `{"invitation":"lmos-invite:\n a b"}`, status: 200, call: `Join[{"invitation":"lmos-invite:ab"}]`},
	"GET /v1/org/offers":                     {status: 200},
	"GET /v1/org/requests":                   {status: 200},
	"POST /v1/org/requests":                  {body: `{"node":"` + string(owner1) + `"}`, status: 200, call: `RequestJoin[{"node":"` + string(owner1) + `"}]`},
	"POST /v1/org/renew":                     {status: 200, call: `Renew[]`},
	"POST /v1/org/members/{did}/revoke":      {status: 204, call: `Revoke["` + string(owner1) + `"]`},
	"POST /v1/org/members/{did}/restore":     {status: 204, call: `Restore["` + string(owner1) + `"]`},
	"PUT /v1/org/members/{did}/roles":        {body: `{"roles":["a","b"]}`, status: 204, call: `SetRoles["` + string(owner1) + `","a b"]`},
	"POST /v1/org/issuers":                   {body: `{"node":"` + string(owner1) + `"}`, status: 204, call: `AddIssuer["` + string(owner1) + `"]`},
	"DELETE /v1/org/issuers/{method}":        {path: "/v1/org/issuers/%23i2", status: 204, call: `RemoveIssuer["#i2"]`},
	"PUT /v1/org/bootstrap":                  {body: `{"addresses":["/ip4/192.0.2.7"]}`, status: 200, call: `SetBootstrap[["/ip4/192.0.2.7"]]`},
	"PUT /v1/org/root":                       {body: `{"key":"k","passphrase":"p"}`, status: 204, call: `ImportRoot["k","p"]`},
	"DELETE /v1/org/root":                    {status: 204, call: `RemoveRoot[]`},
	"POST /v1/org/root/rotate":               {status: 204, call: `RotateRoot[]`},
	"POST /v1/org/root/export":               {body: `{"passphrase":"p"}`, status: 200, call: `ExportRoot["p"]`},
	"POST /v1/org/root/recover":              {body: `{"key":"k","recovery_file":"/r"}`, status: 204, call: `Recover["k","/r"]`},
	"POST /v1/org/deactivate":                {status: 204, call: `Deactivate[]`},
	"POST /v1/org/export":                    {body: `{"dir":"/d"}`, status: 204, call: `Export["/d"]`},
	"GET /v1/trust/partners":                 {status: 200},
	"POST /v1/trust/partners":                {body: `{"invitation":"lmos-invite:a","name":"g"}`, status: 201, call: `Accept[{"invitation":"lmos-invite:a","name":"g"}]`},
	"POST /v1/trust/partners/{name}/confirm": {body: `{"head":"2-Qm"}`, status: 200, call: `Confirm["globex","2-Qm"]`},
	"DELETE /v1/trust/partners/{name}":       {status: 204, call: `RemovePartner["globex"]`},
	"GET /v1/trust/credentials":              {status: 200},
	"POST /v1/trust/credentials":             {body: `{"credential":{"id":"urn:x"},"to":["` + string(owner1) + `"]}`, status: 201, call: `Present[{"credential":{"id":"urn:x"},"to":["` + string(owner1) + `"]}]`},
	"POST /v1/trust/credentials/fetch":       {body: `{"from":"did:web:w.example"}`, status: 201, call: `FetchCredentials[{"from":"did:web:w.example"}]`},
	"DELETE /v1/trust/credentials/{hash}":    {status: 204, call: `RemoveCredential["9f2c9f2c9f2c"]`},
	"GET /v1/trust/issuers":                  {status: 200},
	"POST /v1/trust/issuers":                 {body: `{"name":"registry","did":"did:web:registry.example","roles":["adjuster"]}`, status: 201, call: `TrustIssuer[{"name":"registry","did":"did:web:registry.example","roles":["adjuster"]}]`},
	"DELETE /v1/trust/issuers/{name}":        {status: 204, call: `RemoveForeignIssuer["globex"]`},
	"PUT /v1/trust/distrusted/{did}":         {status: 204, call: `Distrust["` + string(owner1) + `",true]`},
	"DELETE /v1/trust/distrusted/{did}":      {status: 204, call: `Distrust["` + string(owner1) + `",false]`},
	"GET /v1/trust/standing/{did}":           {status: 200, call: `Standing["` + string(owner1) + `"]`},
	"GET /v1/audit/checkpoints":              {status: 200},
	"GET /agent/vc":                          {status: 200},
	"GET /.well-known/did.jsonl":             {status: 200},
	"GET /.well-known/lmosd/status/{list}":   {status: 200},
	"GET /.well-known/did.json":              {status: 200},
}

func pathOf(pattern string) string {
	_, path, _ := strings.Cut(pattern, " ")
	return strings.NewReplacer("{did}", string(owner1), "{name}", "globex", "{list}", "i1.json", "{hash}", "9f2c9f2c9f2c").Replace(path)
}

// TestTrustRoutes sends a good request to each route, over the socket; then, over TCP and without a token, to those for administrators.
func TestTrustRoutes(t *testing.T) {
	t.Parallel()
	trust := newFakeTrust()
	r := start(t, Options{Trust: trust, Operation: Operation{PublicURL: "https://acme.example"}})
	without := start(t, Options{})
	routes := slices.Sorted(maps.Keys(r.trustRoutes()))
	if len(routes) != len(goodRequests) {
		t.Errorf("%d routes, %d requests", len(routes), len(goodRequests))
	}
	for _, pattern := range routes {
		good, ok := goodRequests[pattern]
		if !ok {
			t.Errorf("no request for %s", pattern)
			continue
		}
		x := exchange{path: pathOf(pattern), body: good.body, status: good.status, header: map[string]string{}}
		x.method, _, _ = strings.Cut(pattern, " ")
		if good.path != "" {
			x.path = good.path
		}
		if x.body != "" {
			x.header["Content-Type"] = "application/json"
		}
		t.Run(pattern, func(t *testing.T) {
			y := x
			y.socket = true
			r.check(t, y)
			if good.call != "" {
				if call := <-trust.calls; call != good.call {
					t.Errorf("called %s, want %s", call, good.call)
				}
			}
			isPublic := strings.HasPrefix(pattern, "GET /.well-known")
			if x.method != http.MethodGet || strings.HasSuffix(pattern, "invitations") {
				y = x
				y.status, y.code = 401, "LMOS-1401"
				without.check(t, y)
			}
			y = x
			y.header = merge(x.header, "Authorization", "Bearer "+token)
			y.status, y.code = 404, "LMOS-1404"
			if isPublic {
				y.code = "LMOS-1405"
			}
			without.check(t, y)
		})
	}
}

func TestInvalidTrustRequests(t *testing.T) {
	t.Parallel()
	trust := newFakeTrust()
	r := start(t, Options{Trust: trust})
	long := strings.Repeat("x", maxTrustBody)
	for name, x := range map[string]exchange{
		"not JSON":                     {method: "POST", path: "/v1/org", body: `domain=x`},
		"an unknown member":            {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","role":"admin"}`, contain: "unknown field"},
		"auto with a domain":           {method: "POST", path: "/v1/org", body: `{"auto":true,"domain":"acme.example"}`},
		"two values":                   {method: "POST", path: "/v1/org/join", body: `{"invitation":"lmos-invite:a"} {}`},
		"no domain":                    {method: "POST", path: "/v1/org", body: `{"recovery_file":"/r"}`, contain: "domain is missing"},
		"no recovery file":             {method: "POST", path: "/v1/org", body: `{"domain":"acme.example"}`, contain: "recovery_file is missing"},
		"a relative recovery file":     {method: "POST", path: "/v1/org", body: `{"domain":"acme.example","recovery_file":"r"}`, contain: "is relative"},
		"another kind":                 {method: "POST", path: "/v1/org/invitations", body: `{"kind":"guest"}`},
		"no kind":                      {method: "POST", path: "/v1/org/invitations", body: `{}`},
		"negative uses":                {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","uses":-1}`},
		"a long life":                  {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","life":"721h"}`},
		"a life that is no time":       {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","life":"long"}`, contain: "expected a duration"},
		"an issuer that is a partner":  {method: "POST", path: "/v1/org/invitations", body: `{"kind":"partner","issuer":true}`},
		"a node until a date":          {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","until":"2036-01-01T00:00:00Z"}`},
		"a partner until yesterday":    {method: "POST", path: "/v1/org/invitations", body: `{"kind":"partner","until":"2020-01-01T00:00:00Z"}`, contain: "in the past"},
		"for a name":                   {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","for":"globex"}`},
		"an empty role":                {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","roles":[""]}`},
		"many roles":                   {method: "POST", path: "/v1/org/invitations", body: `{"kind":"node","roles":["a"` + strings.Repeat(`,"a"`, maxRoles) + `]}`},
		"an empty invitation":          {method: "POST", path: "/v1/org/join", body: `{"invitation":" "}`},
		"no invitation":                {method: "POST", path: "/v1/trust/partners", body: `{"name":"globex"}`},
		"a member that is no DID":      {method: "POST", path: "/v1/org/members/host-1/revoke"},
		"roles of no DID":              {method: "PUT", path: "/v1/org/members/host-1/roles", body: `{"roles":[]}`},
		"no roles":                     {method: "PUT", path: "/v1/org/members/" + string(owner1) + "/roles", body: `{}`},
		"an issuer that is no DID":     {method: "POST", path: "/v1/org/issuers", body: `{"node":"x"}`},
		"no key":                       {method: "PUT", path: "/v1/org/root", body: `{"passphrase":"p"}`},
		"no key of recovery":           {method: "POST", path: "/v1/org/root/recover", body: `{"recovery_file":"/r"}`},
		"a relative file of recovery":  {method: "POST", path: "/v1/org/root/recover", body: `{"key":"k","recovery_file":"r"}`},
		"no folder":                    {method: "POST", path: "/v1/org/export", body: `{}`},
		"a relative folder":            {method: "POST", path: "/v1/org/export", body: `{"dir":"d"}`},
		"distrust of no DID":           {method: "PUT", path: "/v1/trust/distrusted/globex"},
		"the standing of no DID":       {path: "/v1/trust/standing/globex"},
		"a parameter":                  {path: "/v1/org?x=1", code: "LMOS-2000"},
		"a large body":                 {method: "POST", path: "/v1/org/join", body: `{"invitation":"` + long + `"}`, status: 413, code: "LMOS-1413"},
		"a form":                       {method: "POST", path: "/v1/org/join", body: "x", header: asAdmin, status: 415, code: "LMOS-1415"},
		"an unknown member of the org": {method: "POST", path: "/v1/org/members/" + string(owner2) + "/revoke", status: 404, code: "LMOS-1404"},
		"an unknown partner":           {method: "POST", path: "/v1/trust/partners/none/confirm", status: 404, code: "LMOS-1404"},
		"no partner to remove":         {method: "DELETE", path: "/v1/trust/partners/none", status: 404, code: "LMOS-1404"},
		"an unknown status list":       {path: "/.well-known/lmosd/status/i9.json", status: 404, code: "LMOS-1405"},
		"another method":               {method: "PATCH", path: "/v1/org", status: 405, code: "LMOS-1406"},
	} {
		t.Run(name, func(t *testing.T) {
			if x.header == nil {
				x.header = asJSON
			}
			if x.status == 0 {
				x.status = 400
				if x.code == "" {
					x.code = "LMOS-1400"
				}
			}
			r.check(t, x)
		})
	}
}

// A root key is not sent in clear text between hosts.
func TestRootKeyNeedsASecretChannel(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Trust: newFakeTrust(), Listen: "0.0.0.0:0"})
	for _, x := range []exchange{
		{method: "POST", path: "/v1/org/root/export", body: `{}`},
		{method: "PUT", path: "/v1/org/root", body: `{"key":"k"}`},
		{method: "POST", path: "/v1/org/root/recover", body: `{"key":"k","recovery_file":"/r"}`},
	} {
		x.header, x.status, x.code = asJSON, 403, "LMOS-1403"
		r.check(t, x)
	}
	r.check(t, exchange{method: "POST", path: "/v1/org/root/export", header: asJSON, body: `{}`, socket: true, status: 200, contain: "-----BEGIN",
		want: map[string]string{"Cache-Control": "no-store", "Content-Type": "application/octet-stream"}})
}

// A proxy on this machine connects over loopback, and its client may use plain HTTP.
func TestRootKeyThroughAProxy(t *testing.T) {
	t.Parallel()
	local := start(t, Options{Trust: newFakeTrust()})
	behind := start(t, Options{Trust: newFakeTrust(), Proxy: true})
	export := exchange{method: "POST", path: "/v1/org/root/export", header: asJSON, body: `{}`, status: 403, code: "LMOS-1403"}
	behind.check(t, export)
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		x := export
		x.header = merge(asJSON, name, "192.0.2.1")
		local.check(t, x)
	}
	export.status, export.code = 200, ""
	local.check(t, export)
}

// The did:web of a host is that of the organization if the host is its domain, else that of the node.
func TestDIDDocumentOfAnOrganization(t *testing.T) {
	t.Parallel()
	trust := newFakeTrust()
	start(t, Options{Trust: trust, Operation: Operation{PublicURL: "https://ACME.example"}}).check(t, exchange{path: "/.well-known/did.json", status: 200,
		contain: `{"path":"/.well-known/did.json"}`, want: map[string]string{"Content-Type": "application/did+json"}})
	r := start(t, Options{Trust: trust, Operation: Operation{PublicURL: "https://node.acme.example"}})
	r.check(t, exchange{path: "/.well-known/did.json", status: 200, contain: `"id":"did:web:node.acme.example"`})
	r.check(t, exchange{path: "/.well-known/did.jsonl", status: 200, want: map[string]string{"Content-Type": "text/jsonl"}})
	r.check(t, exchange{path: "/agent/vc", status: 200, contain: `"urn:x"`, want: map[string]string{"Content-Type": "application/vc"}})
	start(t, Options{Trust: trust}).check(t, exchange{path: "/.well-known/did.json", status: 404, code: "LMOS-1405"})
}

func TestGoldenTrust(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Trust: newFakeTrust()})
	for name, x := range map[string]exchange{
		"organization":      {path: "/v1/org"},
		"invitation":        {method: "POST", path: "/v1/org/invitations", header: asJSON, body: `{"kind":"partner"}`},
		"invitation-list":   {path: "/v1/org/invitations", header: asAdmin},
		"join-request":      {method: "POST", path: "/v1/org/requests", header: asJSON, body: `{"node":"` + string(owner1) + `"}`},
		"join-request-list": {path: "/v1/org/requests", header: asAdmin},
		"offer-list":        {path: "/v1/org/offers", header: asAdmin},
		"partner":           {method: "POST", path: "/v1/trust/partners/globex/confirm", header: asAdmin},
		"partner-list":      {path: "/v1/trust/partners"},
		"standing":          {path: "/v1/trust/standing/" + string(owner1)},
		"checkpoints":       {path: "/v1/audit/checkpoints", header: asAdmin},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := r.do(t, x)
			golden(t, name, []byte(body), r.url)
		})
	}
}

// The client of package api and the gateway agree.
func TestTrustClient(t *testing.T) {
	t.Parallel()
	trust := newFakeTrust()
	r := start(t, Options{Trust: trust})
	c, ctx := dial(t, r.url, token), t.Context()
	for want, f := range map[string]func() error{
		`Init[{"domain":"d","recovery_file":"/r"}]`: func() error {
			o, err := c.InitOrganization(ctx, api.OrganizationInit{Domain: "d", RecoveryFile: "/r"})
			if err == nil && (o.Kind != "Organization" || len(o.Members) != 2) {
				err = errors.New("another organization")
			}
			return err
		},
		`Init[{"domain":"","recovery_file":"","auto":true}]`: func() error {
			_, err := c.InitOrganization(ctx, api.OrganizationInit{Auto: true})
			return err
		},
		`Leave[]`: func() error { return c.LeaveOrganization(ctx) },
		`Invite[{"kind":"node","life":"1h0m0s"}]`: func() error {
			i, err := c.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode, Life: api.Duration(time.Hour)})
			if err == nil && i.Text == "" {
				err = errors.New("no text")
			}
			return err
		},
		`Join[{"invitation":"a"}]`: func() error {
			_, err := c.JoinOrganization(ctx, api.Acceptance{Invitation: "a"})
			return err
		},
		`RequestJoin[{"node":"` + string(owner1) + `","scid":"QmX"}]`: func() error {
			_, err := c.RequestJoin(ctx, api.JoinQuery{Node: owner1, SCID: "QmX"})
			return err
		},
		`Renew[]`:                                func() error { _, err := c.RenewCredential(ctx); return err },
		`Revoke["` + string(owner1) + `"]`:       func() error { return c.Revoke(ctx, owner1) },
		`Restore["` + string(owner1) + `"]`:      func() error { return c.Restore(ctx, owner1) },
		`SetRoles["` + string(owner1) + `","a"]`: func() error { return c.SetRoles(ctx, owner1, []string{"a"}) },
		`AddIssuer["` + string(owner1) + `"]`:    func() error { return c.AddIssuer(ctx, owner1) },
		`RemoveIssuer["#i2"]`:                    func() error { return c.RemoveIssuer(ctx, "#i2") },
		`SetBootstrap[null]`:                     func() error { _, err := c.SetBootstrap(ctx, nil); return err },
		`SetBootstrap[[]]`:                       func() error { _, err := c.SetBootstrap(ctx, []string{}); return err },
		`RotateRoot[]`:                           func() error { return c.RotateRoot(ctx) },
		`RemoveRoot[]`:                           func() error { return c.RemoveRoot(ctx) },
		`ExportRoot["p"]`:                        func() error { _, err := c.ExportRoot(ctx, "p"); return err },
		`ImportRoot["k","p"]`:                    func() error { return c.ImportRoot(ctx, api.RootImport{Key: "k", Passphrase: "p"}) },
		`Recover["k","/r"]`:                      func() error { return c.RecoverOrganization(ctx, api.RootRecovery{Key: "k", RecoveryFile: "/r"}) },
		`Deactivate[]`:                           func() error { return c.DeactivateOrganization(ctx) },
		`Export["/d"]`:                           func() error { return c.ExportOrganization(ctx, "/d") },
		`Accept[{"invitation":"a"}]`:             func() error { _, err := c.AcceptInvitation(ctx, api.Acceptance{Invitation: "a"}); return err },
		`Confirm["glob ex","2-Qm"]`:              func() error { _, err := c.ConfirmPartner(ctx, "glob ex", "2-Qm"); return err },
		`Present[{"credential":{"id":"urn:x"}}]`: func() error {
			_, err := c.PresentCredential(ctx, api.CredentialPresentation{Credential: json.RawMessage(`{"id":"urn:x"}`)})
			return err
		},
		`FetchCredentials[{"from":"did:web:w.example"}]`: func() error {
			_, err := c.FetchCredentials(ctx, api.CredentialFetch{From: "did:web:w.example"})
			return err
		},
		`RemoveCredential["9f2c9f2c9f2c"]`: func() error { return c.RemoveCredential(ctx, "9f2c9f2c9f2c") },
		`TrustIssuer[{"name":"r","did":"did:web:r.example","roles":["a"]}]`: func() error {
			_, err := c.TrustIssuer(ctx, api.ForeignIssuer{Name: "r", DID: "did:web:r.example", Roles: []string{"a"}})
			return err
		},
		`RemoveForeignIssuer["r"]`: func() error { return c.RemoveForeignIssuer(ctx, "r") },
		`RemovePartner["globex"]`:  func() error { return c.RemovePartner(ctx, "globex") },
		`Distrust["` + string(owner1) + `",true]`: func() error {
			return c.Distrust(ctx, owner1, true)
		},
		`Distrust["did:webvh:QmX:a.example%3A8443",false]`: func() error { return c.Distrust(ctx, "did:webvh:QmX:a.example%3A8443", false) },
		`Standing["` + string(owner1) + `"]`:               func() error { _, err := c.Standing(ctx, owner1); return err },
	} {
		if err := f(); err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if call := <-trust.calls; call != want {
			t.Errorf("called %s, want %s", call, want)
		}
	}
	if list, err := c.JoinRequests(ctx); err != nil || len(list.Items) != 1 || len(list.Items[0].Words) != 6 {
		t.Errorf("requests %+v, %v", list, err)
	}
	if list, err := c.Offers(ctx); err != nil || list.Items == nil {
		t.Errorf("offers %+v, %v", list, err)
	}
	list, err := c.Invitations(ctx)
	if err != nil || len(list.Items) != 1 || list.Items[0].Text != "" {
		t.Errorf("invitations %+v, %v", list, err)
	}
	if partners, err := c.Partners(ctx); err != nil || len(partners.Items) != 1 {
		t.Errorf("partners %+v, %v", partners, err)
	}
	if o, err := c.Organization(ctx); err != nil || o.SCID != "QmAcme" {
		t.Errorf("organization %+v, %v", o, err)
	}
	if err := c.Revoke(ctx, owner2); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}
