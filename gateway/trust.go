package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/td"
)

// Limits of a request about trust.
const (
	maxTrustBody      = 16 << 10 // bytes
	maxPresentation   = 64 << 10 // bytes: a credential, and nodes
	maxPresentedTo    = 64       // nodes
	maxRoles          = 32
	maxUses           = 1000
	maxInvitationLife = 30 * 24 * time.Hour
)

// vcType is the media type of a credential (VC 2.0 §6.3).
const vcType = "application/vc"

// trustRoutes returns the routes of the organization and its partners, by pattern of the mux. All but the public documents respond NotFound
// on a node without Options.Trust.
func (g *Gateway) trustRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/org":                            g.trust(read, g.getOrganization),
		"POST /v1/org":                           g.trust(admin, g.initOrganization),
		"DELETE /v1/org":                         g.trust(admin, done(func(t Trust, r *http.Request) error { return t.Leave(r.Context()) })),
		"GET /v1/org/invitations":                g.trust(admin, g.listInvitations),
		"POST /v1/org/invitations":               g.trust(admin, g.invite),
		"POST /v1/org/join":                      g.trust(admin, g.join),
		"GET /v1/org/offers":                     g.trust(admin, g.listOffers),
		"GET /v1/org/requests":                   g.trust(admin, g.listJoinRequests),
		"POST /v1/org/requests":                  g.trust(admin, g.requestJoin),
		"POST /v1/org/renew":                     g.trust(admin, g.renew),
		"POST /v1/org/members/{did}/revoke":      g.trust(admin, member(Trust.Revoke)),
		"POST /v1/org/members/{did}/restore":     g.trust(admin, member(Trust.Restore)),
		"PUT /v1/org/members/{did}/roles":        g.trust(admin, g.setRoles),
		"POST /v1/org/issuers":                   g.trust(admin, g.addIssuer),
		"DELETE /v1/org/issuers/{method}":        g.trust(admin, done(func(t Trust, r *http.Request) error { return t.RemoveIssuer(r.Context(), r.PathValue("method")) })),
		"PUT /v1/org/bootstrap":                  g.trust(admin, g.setBootstrap),
		"PUT /v1/org/root":                       g.trust(admin, g.importRoot),
		"DELETE /v1/org/root":                    g.trust(admin, done(func(t Trust, r *http.Request) error { return t.RemoveRoot(r.Context()) })),
		"POST /v1/org/root/rotate":               g.trust(admin, done(func(t Trust, r *http.Request) error { return t.RotateRoot(r.Context()) })),
		"POST /v1/org/root/export":               g.trust(admin, g.exportRoot),
		"POST /v1/org/root/recover":              g.trust(admin, g.recoverRoot),
		"POST /v1/org/deactivate":                g.trust(admin, done(func(t Trust, r *http.Request) error { return t.Deactivate(r.Context()) })),
		"POST /v1/org/export":                    g.trust(admin, g.exportOrganization),
		"GET /v1/trust/partners":                 g.trust(read, g.listPartners),
		"POST /v1/trust/partners":                g.trust(admin, g.accept),
		"POST /v1/trust/partners/{name}/confirm": g.trust(admin, g.confirmPartner),
		"DELETE /v1/trust/partners/{name}":       g.trust(admin, done(func(t Trust, r *http.Request) error { return t.RemovePartner(r.Context(), r.PathValue("name")) })),
		"GET /v1/trust/credentials":              g.trust(admin, g.listCredentials),
		"POST /v1/trust/credentials":             g.trust(admin, g.presentCredential),
		"POST /v1/trust/credentials/fetch":       g.trust(admin, g.fetchCredentials),
		"DELETE /v1/trust/credentials/{hash}":    g.trust(admin, done(func(t Trust, r *http.Request) error { return t.RemoveCredential(r.Context(), r.PathValue("hash")) })),
		"GET /v1/trust/issuers":                  g.trust(admin, g.listForeignIssuers),
		"POST /v1/trust/issuers":                 g.trust(admin, g.trustIssuer),
		"DELETE /v1/trust/issuers/{name}":        g.trust(admin, done(func(t Trust, r *http.Request) error { return t.RemoveForeignIssuer(r.Context(), r.PathValue("name")) })),
		"PUT /v1/trust/distrusted/{did}":         g.trust(admin, distrust(true)),
		"DELETE /v1/trust/distrusted/{did}":      g.trust(admin, distrust(false)),
		"GET /v1/trust/standing/{did}":           g.trust(read, g.standing),
		"POST /v1/trust/check":                   g.trust(admin, g.checkDomain),
		"GET /v1/audit/checkpoints":              g.trust(admin, g.keptCheckpoints),
		"GET /agent/vc":                          g.trust(open, g.credential),
		"GET /.well-known/did.jsonl":             g.protect(open, g.organizationDocument),
		"GET /.well-known/lmosd/status/{list}":   g.protect(open, g.organizationDocument),
		"GET /.well-known/did.json":              g.protect(open, g.didDocument),
	}
}

// A trustHandler is a [handler] of a node with an organization, or that may get one.
type trustHandler func(t Trust, w http.ResponseWriter, r *http.Request) error

// trust returns a protected handler.
func (g *Gateway) trust(a access, h trustHandler) http.Handler {
	return kept(g, a, g.o.Trust, "this node keeps no organization", h)
}

// kept returns a protected handler for a part of the node that only a node with a data directory has. Without it, the response is NotFound.
func kept[T comparable](g *Gateway, a access, part T, absent string, h func(part T, w http.ResponseWriter, r *http.Request) error, params ...string) http.Handler {
	return g.protect(a, func(w http.ResponseWriter, r *http.Request) error {
		var none T
		if part == none {
			return interact.Errorf(interact.NotFound, "", "%s", absent).Then(interact.StepStatus)
		}
		if _, err := tdd.Params(r, params...); err != nil {
			return err
		}
		w.Header().Set("Cache-Control", "no-store") // invitations, keys and tokens are secrets, and the rest changes at once
		return h(part, w, r)
	})
}

// done returns the handler of a change whose response has no body.
func done(change func(Trust, *http.Request) error) trustHandler {
	return func(t Trust, w http.ResponseWriter, r *http.Request) error {
		if err := change(t, r); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

// member returns the handler of a change of the member that the path names.
func member(change func(Trust, context.Context, did.DID) error) trustHandler {
	return done(func(t Trust, r *http.Request) error {
		id, err := pathDID(r)
		if err != nil {
			return err
		}
		return change(t, r.Context(), id)
	})
}

func distrust(on bool) trustHandler {
	return member(func(t Trust, ctx context.Context, id did.DID) error { return t.Distrust(ctx, id, on) })
}

// pathDID returns the DID in the path of r.
func pathDID(r *http.Request) (did.DID, error) {
	return readDID(r.PathValue("did"), "the path")
}

// readDID returns the DID in a part of a request.
func readDID(text, where string) (did.DID, error) {
	id, err := did.Parse(text)
	if err != nil {
		return "", interact.Errorf(interact.Invalid, `for example "did:key:z6Mk…"`, "expected a DID in %s, got %q", where, tdd.Clip(text))
	}
	return id, nil
}

// readBody reads the JSON object of a request into v. Unknown members are errors: a misspelled one would change what is permitted.
func readBody(w http.ResponseWriter, r *http.Request, v any, example string) error {
	return readLimited(w, r, maxTrustBody, v, example)
}

// readLimited is readBody with a limit of the body in bytes.
func readLimited(w http.ResponseWriter, r *http.Request, limit int64, v any, example string) error {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return err
	}
	body, err := problem.ReadBody(w, r, limit)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err = d.Decode(v)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("more than one JSON value")
		}
	}
	if err != nil {
		return interact.Errorf(interact.Invalid, "send "+example, "the body is not valid: %s", tdd.Clip(strings.TrimPrefix(err.Error(), "json: ")))
	}
	return nil
}

// missing returns the error for an empty member of a body.
func missing(name, example string) error {
	return interact.Errorf(interact.Invalid, "send "+example, "the member %s is missing", name)
}

// checkPath checks the path of a file or a folder that the node is to write.
func checkPath(name, path, example string) error {
	switch {
	case path == "":
		return missing(name, example)
	case !filepath.IsAbs(path):
		return interact.Errorf(interact.Invalid, "send an absolute path on the host of the node", "%s %q is relative", name, tdd.Clip(path))
	}
	return nil
}

// checkRoles checks the number of roles; their names are checked by the organization.
func checkRoles(roles []string) error {
	if len(roles) > maxRoles {
		return interact.Errorf(interact.Invalid, "send fewer", "%d roles, at most %d are possible", len(roles), maxRoles)
	}
	for _, role := range roles {
		if role == "" {
			return interact.Errorf(interact.Invalid, "leave it out", "a role is empty")
		}
	}
	return nil
}

func (g *Gateway) getOrganization(t Trust, w http.ResponseWriter, _ *http.Request) error {
	o, err := t.Organization()
	return writeOrganization(w, http.StatusOK, o, err)
}

func (g *Gateway) initOrganization(t Trust, w http.ResponseWriter, r *http.Request) error {
	const example = `{"domain":"acme.example","recovery_file":"/home/ada/acme.example.recovery"}`
	var o api.OrganizationInit
	if err := readBody(w, r, &o, example); err != nil {
		return err
	}
	switch {
	case o.Auto && o.Domain+o.RecoveryFile != "":
		return interact.Errorf(interact.Invalid, "leave out domain and recovery_file", "auto excludes a domain and a recovery file")
	case o.Auto:
	case o.Domain == "":
		return missing("domain", example)
	default:
		if err := checkPath("recovery_file", o.RecoveryFile, example); err != nil {
			return err
		}
	}
	made, err := t.Init(r.Context(), o)
	return writeOrganization(w, http.StatusCreated, made, err)
}

func (g *Gateway) join(t Trust, w http.ResponseWriter, r *http.Request) error {
	a, err := readAcceptance(w, r)
	if err != nil {
		return err
	}
	o, err := t.Join(r.Context(), *a)
	return writeOrganization(w, http.StatusOK, o, err)
}

func (g *Gateway) listOffers(t Trust, w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, http.StatusOK, api.OfferList{APIVersion: api.APIVersion, Kind: "OfferList", Items: orEmpty(t.Offers(r.Context()))})
}

func (g *Gateway) listJoinRequests(t Trust, w http.ResponseWriter, _ *http.Request) error {
	all, err := t.JoinRequests()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.JoinRequestList{APIVersion: api.APIVersion, Kind: "JoinRequestList", Items: orEmpty(all)})
}

func (g *Gateway) requestJoin(t Trust, w http.ResponseWriter, r *http.Request) error {
	var q api.JoinQuery
	if err := readBody(w, r, &q, `{"node":"did:key:z6Mk…"}`); err != nil {
		return err
	}
	if _, err := readDID(string(q.Node), "node"); err != nil {
		return err
	}
	j, err := t.RequestJoin(r.Context(), q)
	if err != nil {
		return err
	}
	shown := *j
	shown.APIVersion, shown.Kind = api.APIVersion, "JoinRequest"
	return writeJSON(w, http.StatusOK, shown)
}

func (g *Gateway) renew(t Trust, w http.ResponseWriter, r *http.Request) error {
	o, err := t.Renew(r.Context())
	return writeOrganization(w, http.StatusOK, o, err)
}

func writeOrganization(w http.ResponseWriter, status int, o *api.Organization, err error) error {
	if err != nil {
		return err
	}
	shown := *o
	shown.APIVersion, shown.Kind = api.APIVersion, "Organization"
	shown.Roles, shown.Issuers = orEmpty(shown.Roles), orEmpty(shown.Issuers)
	return writeJSON(w, status, shown)
}

// orEmpty returns list, as an array in JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (g *Gateway) listInvitations(t Trust, w http.ResponseWriter, _ *http.Request) error {
	list := api.InvitationList{APIVersion: api.APIVersion, Kind: "InvitationList", Items: []api.Invitation{}}
	for _, i := range t.Invitations() {
		i.Text = "" // a list shows no secrets
		list.Items = append(list.Items, i)
	}
	return writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) invite(t Trust, w http.ResponseWriter, r *http.Request) error {
	var i api.InvitationRequest
	if err := readBody(w, r, &i, `{"kind":"node","roles":["customer-service"]}`); err != nil {
		return err
	}
	if err := checkInvitation(&i, time.Now()); err != nil {
		return err
	}
	made, err := t.Invite(r.Context(), i)
	if err != nil {
		return err
	}
	shown := *made
	shown.APIVersion, shown.Kind = api.APIVersion, "Invitation"
	return writeJSON(w, http.StatusCreated, shown)
}

// checkInvitation checks what does not depend on the organization.
func checkInvitation(i *api.InvitationRequest, now time.Time) (err error) {
	invalid := func(hint, format string, args ...any) error {
		return interact.Errorf(interact.Invalid, hint, format, args...)
	}
	switch life := time.Duration(i.Life); {
	case i.Kind != api.InviteNode && i.Kind != api.InvitePartner:
		return invalid(`send {"kind":"node"} or {"kind":"partner"}`, "the kind is %q, expected node or partner", tdd.Clip(i.Kind))
	case i.Uses < 0 || i.Uses > maxUses:
		return invalid("leave it out for one use", "uses is %d, expected 1 to %d", i.Uses, maxUses)
	case life < 0 || life > maxInvitationLife:
		return invalid(`send {"life":"24h"}, or leave it out`, "life is %s, expected up to %s", life, maxInvitationLife)
	case i.Issuer && i.Kind != api.InviteNode:
		return invalid("leave it out", "only an invitation of kind node has the member issuer")
	case !i.Until.IsZero() && i.Kind != api.InvitePartner:
		return invalid("leave it out", "only an invitation of kind partner has the member until")
	case !i.Until.IsZero() && !i.Until.After(now):
		return invalid("send a later time, or leave it out", "until is in the past")
	}
	if i.For != "" {
		if i.For, err = readDID(string(i.For), "the member for"); err != nil {
			return err
		}
	}
	return checkRoles(i.Roles)
}

// readAcceptance reads an acceptance. White space in an invitation, which terminals and mail programs add, is left out.
func readAcceptance(w http.ResponseWriter, r *http.Request) (*api.Acceptance, error) {
	const example = `{"invitation":"lmos-invite:…"}`
	var a api.Acceptance
	if err := readBody(w, r, &a, example); err != nil {
		return nil, err
	}
	if a.Invitation = strings.Join(strings.Fields(a.Invitation), ""); a.Invitation == "" {
		return nil, missing("invitation", example)
	}
	return &a, nil
}

func (g *Gateway) setRoles(t Trust, w http.ResponseWriter, r *http.Request) error {
	id, err := pathDID(r)
	if err != nil {
		return err
	}
	const example = `{"roles":["customer-service"]}`
	var body api.RolesRequest
	if err := readBody(w, r, &body, example); err != nil {
		return err
	}
	if body.Roles == nil {
		return missing("roles", example)
	}
	if err := checkRoles(body.Roles); err != nil {
		return err
	}
	return done(func(t Trust, r *http.Request) error { return t.SetRoles(r.Context(), id, body.Roles) })(t, w, r)
}

func (g *Gateway) addIssuer(t Trust, w http.ResponseWriter, r *http.Request) error {
	var body api.IssuerRequest
	if err := readBody(w, r, &body, `{"node":"did:key:z6Mk…"}`); err != nil {
		return err
	}
	node, err := readDID(string(body.Node), "the member node")
	if err != nil {
		return err
	}
	return done(func(t Trust, r *http.Request) error { return t.AddIssuer(r.Context(), node) })(t, w, r)
}

func (g *Gateway) setBootstrap(t Trust, w http.ResponseWriter, r *http.Request) error {
	var body api.OrganizationBootstrap
	if err := readBody(w, r, &body, `{"addresses":["/ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…"]}`); err != nil {
		return err
	}
	o, err := t.SetBootstrap(r.Context(), body.Addresses)
	return writeOrganization(w, http.StatusOK, o, err)
}

// checkSecret returns an error if other hosts could read the request and the response: a root key is in one of them. Behind a proxy on this
// machine the connection to the client may be plain HTTP.
func (g *Gateway) checkSecret(r *http.Request) error {
	if isTrusted(r) || r.TLS != nil || g.guard.loopback && !g.guard.mayBeProxied(r) {
		return nil
	}
	return interact.Errorf(interact.Forbidden, "use the Unix socket of the node, or HTTPS", "a root key is not sent over plain HTTP")
}

func (g *Gateway) exportRoot(t Trust, w http.ResponseWriter, r *http.Request) error {
	if err := g.checkSecret(r); err != nil {
		return err
	}
	var body api.RootExport
	if err := readBody(w, r, &body, `{"passphrase":"…"}`); err != nil {
		return err
	}
	key, err := t.ExportRoot(r.Context(), body.Passphrase)
	if err != nil {
		return err
	}
	tdd.WriteBytes(w, http.StatusOK, "application/octet-stream", key)
	return nil
}

func (g *Gateway) importRoot(t Trust, w http.ResponseWriter, r *http.Request) error {
	if err := g.checkSecret(r); err != nil {
		return err
	}
	const example = `{"key":"-----BEGIN …","passphrase":"…"}`
	var body api.RootImport
	if err := readBody(w, r, &body, example); err != nil {
		return err
	}
	if body.Key == "" {
		return missing("key", example)
	}
	return done(func(t Trust, r *http.Request) error {
		return t.ImportRoot(r.Context(), []byte(body.Key), body.Passphrase)
	})(t, w, r)
}

func (g *Gateway) recoverRoot(t Trust, w http.ResponseWriter, r *http.Request) error {
	if err := g.checkSecret(r); err != nil {
		return err
	}
	const example = `{"key":"-----BEGIN …","recovery_file":"/home/ada/acme.example.recovery-2"}`
	var body api.RootRecovery
	if err := readBody(w, r, &body, example); err != nil {
		return err
	}
	if body.Key == "" {
		return missing("key", example)
	}
	if err := checkPath("recovery_file", body.RecoveryFile, example); err != nil {
		return err
	}
	return done(func(t Trust, r *http.Request) error {
		return t.Recover(r.Context(), []byte(body.Key), body.RecoveryFile)
	})(t, w, r)
}

func (g *Gateway) exportOrganization(t Trust, w http.ResponseWriter, r *http.Request) error {
	const example = `{"dir":"/var/www/acme.example"}`
	var body api.OrganizationExport
	if err := readBody(w, r, &body, example); err != nil {
		return err
	}
	if err := checkPath("dir", body.Dir, example); err != nil {
		return err
	}
	return done(func(t Trust, r *http.Request) error { return t.Export(r.Context(), body.Dir) })(t, w, r)
}

func (g *Gateway) listCredentials(t Trust, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.ForeignCredentialList{APIVersion: api.APIVersion, Kind: "ForeignCredentialList", Items: orEmpty(t.ForeignCredentials())})
}

// presentCredential stores a credential whose subject is this node. That of another node shows it on its own connection.
func (g *Gateway) presentCredential(t Trust, w http.ResponseWriter, r *http.Request) error {
	const example = `{"credential":{"@context":["https://www.w3.org/2018/credentials/v1"],…}}`
	var body api.CredentialPresentation
	if err := readLimited(w, r, maxPresentation, &body, example); err != nil {
		return err
	}
	if len(body.Credential) == 0 {
		return missing("credential", example)
	}
	if len(body.To) > maxPresentedTo {
		return interact.Errorf(interact.Invalid, "send fewer", "%d nodes, at most %d are possible", len(body.To), maxPresentedTo)
	}
	c, err := t.Present(r.Context(), body)
	if err != nil {
		return err
	}
	shown := *c
	shown.APIVersion, shown.Kind = api.APIVersion, "ForeignCredential"
	return writeJSON(w, http.StatusCreated, shown)
}

func (g *Gateway) fetchCredentials(t Trust, w http.ResponseWriter, r *http.Request) error {
	const example = `{"from":"did:web:wallet.example"}`
	var body api.CredentialFetch
	if err := readBody(w, r, &body, example); err != nil {
		return err
	}
	if _, err := readDID(string(body.From), "from"); err != nil {
		return err
	}
	all, err := t.FetchCredentials(r.Context(), body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, api.ForeignCredentialList{APIVersion: api.APIVersion, Kind: "ForeignCredentialList", Items: orEmpty(all)})
}

func (g *Gateway) listForeignIssuers(t Trust, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.ForeignIssuerList{APIVersion: api.APIVersion, Kind: "ForeignIssuerList", Items: orEmpty(t.ForeignIssuers())})
}

func (g *Gateway) trustIssuer(t Trust, w http.ResponseWriter, r *http.Request) error {
	var body api.ForeignIssuer
	if err := readBody(w, r, &body, `{"name":"registry","did":"did:web:registry.example","roles":["adjuster"]}`); err != nil {
		return err
	}
	if err := checkRoles(body.Roles); err != nil {
		return err
	}
	i, err := t.TrustIssuer(r.Context(), body)
	if err != nil {
		return err
	}
	shown := *i
	shown.APIVersion, shown.Kind = api.APIVersion, "ForeignIssuer"
	return writeJSON(w, http.StatusCreated, shown)
}

func (g *Gateway) listPartners(t Trust, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.PartnerList{APIVersion: api.APIVersion, Kind: "PartnerList", Items: orEmpty(t.Partners())})
}

func (g *Gateway) accept(t Trust, w http.ResponseWriter, r *http.Request) error {
	a, err := readAcceptance(w, r)
	if err != nil {
		return err
	}
	p, err := t.Accept(r.Context(), *a)
	return writePartner(w, http.StatusCreated, p, err)
}

func (g *Gateway) confirmPartner(t Trust, w http.ResponseWriter, r *http.Request) error {
	var body api.Confirmation
	if r.ContentLength != 0 {
		if err := readBody(w, r, &body, `{"head":"3-Qm…"}`); err != nil {
			return err
		}
	}
	p, err := t.Confirm(r.Context(), r.PathValue("name"), body.Head)
	return writePartner(w, http.StatusOK, p, err)
}

func writePartner(w http.ResponseWriter, status int, p *api.Partner, err error) error {
	if err != nil {
		return err
	}
	shown := *p
	shown.APIVersion, shown.Kind = api.APIVersion, "Partner"
	return writeJSON(w, status, shown)
}

func (g *Gateway) standing(t Trust, w http.ResponseWriter, r *http.Request) error {
	id, err := pathDID(r)
	if err != nil {
		return err
	}
	s, err := t.Standing(r.Context(), id)
	if err != nil {
		return err
	}
	shown := *s
	shown.APIVersion, shown.Kind = api.APIVersion, "Standing"
	return writeJSON(w, http.StatusOK, shown)
}

func (g *Gateway) keptCheckpoints(t Trust, w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, http.StatusOK, api.KeptCheckpointsList{APIVersion: api.APIVersion, Kind: "KeptCheckpointsList", Items: orEmpty(t.KeptCheckpoints(r.Context()))})
}

// maxChecked limits the agents that a check of a domain lists.
const maxChecked = 64

// checkDomain checks a domain, and then the agents that claim it.
func (g *Gateway) checkDomain(t Trust, w http.ResponseWriter, r *http.Request) error {
	const example = `{"domain": "acme.example"}`
	var body api.DomainCheckRequest
	if err := readBody(w, r, &body, example); err != nil {
		return err
	}
	if body.Domain == "" {
		return missing("domain", example)
	}
	c, err := t.CheckDomain(r.Context(), body.Domain)
	if err != nil {
		return err
	}
	shown := *c
	shown.APIVersion, shown.Kind, shown.Problems, shown.Agents = api.APIVersion, "DomainCheck", orEmpty(c.Problems), []api.CheckedAgent{}
	var found []*td.Description
	for d, err := range g.o.Directory.Find(r.Context(), td.Query{Organization: c.Domain, Claimed: true, Limit: maxChecked}) {
		if err != nil {
			break // what is known is listed
		}
		found = append(found, d)
	}
	g.o.Directory.VerifyMembers(r.Context(), found...)
	for _, d := range found {
		shown.Agents = append(shown.Agents, api.CheckedAgent{Ref: d.Ref(), Owner: d.Record.Owner,
			Organization: claimOf(g.o.Directory.Affiliation(r.Context(), d))})
	}
	return writeJSON(w, http.StatusOK, shown)
}

func (g *Gateway) credential(t Trust, w http.ResponseWriter, _ *http.Request) error {
	raw, err := t.Credential()
	if err != nil {
		return err
	}
	tdd.WriteBytes(w, http.StatusOK, vcType, raw)
	return nil
}

// organizationDocument serves a public document of the organization. It proves itself, so that each copy is as good as that of the domain.
func (g *Gateway) organizationDocument(w http.ResponseWriter, r *http.Request) error {
	if g.o.Trust != nil {
		if content, media, ok := g.o.Trust.Document(r.URL.Path); ok {
			tdd.WriteBytes(w, http.StatusOK, media, content)
			return nil
		}
	}
	return errNothing(r)
}

// didDocument serves the did:web document of the host in Options.PublicURL: that of the organization if the host is its domain, else that
// of the node.
func (g *Gateway) didDocument(w http.ResponseWriter, r *http.Request) error {
	id, ok := web.Of(g.o.PublicURL)
	if !ok {
		return errNothing(r)
	}
	if g.servesDomain() {
		return g.organizationDocument(w, r)
	}
	td := strings.TrimSuffix(g.o.PublicURL, "/") + "/.well-known/wot"
	tdd.WriteBytes(w, http.StatusOK, "application/did+json", web.Document(id, g.o.Status.Status(r.Context()).DID, td))
	return nil
}

// servesDomain reports whether the host in Options.PublicURL is the domain of the organization.
func (g *Gateway) servesDomain() bool {
	if g.o.Trust == nil {
		return false
	}
	o, err := g.o.Trust.Organization()
	u, urlErr := url.Parse(g.o.PublicURL)
	return err == nil && urlErr == nil && strings.EqualFold(u.Host, o.Name)
}
