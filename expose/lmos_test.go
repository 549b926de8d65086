package expose

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// lmosDID is a DID document like that in the LMOS documentation: without the context of WoT Discovery, with a key of 2018, and with services
// for the TD and for credentials.
const lmosDID = `{"id": "did:web:telekom.de:agents:billing", "controller": "did:web:telekom.de",
	"verificationMethod": [{"id": "did:web:telekom.de:agents:billing#key-1", "type": "Ed25519VerificationKey2018",
		"controller": "did:web:telekom.de:agents:billing", "publicKeyBase58": "9WXnvfXR9HjWCqWBxbWnqq3hwZEQhnAhgdeGNJwc9H3v"}],
	"authentication": ["did:web:telekom.de:agents:billing#key-1"], "assertionMethod": ["did:web:telekom.de:agents:billing#key-1"],
	"service": [{"id": "did:web:telekom.de:agents:billing#vc", "type": "VerifiableCredentialService", "serviceEndpoint": "HERE/agent/vc"},
		{"id": "did:web:telekom.de:agents:billing#td", "type": "WotThing", "serviceEndpoint": "ENDPOINT"}]}`

const lmosAgent = `{"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"lmos": "https://eclipse.dev/lmos/protocol/v1"}],
	"@type": "lmos:Agent", "title": "Billing", "securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n", LINKS
	"actions": {"chat": {"forms": [{"href": "HERE/chat"}]}}}`

const lmosCapabilities = `{"id": "acme-billing-agent", "description": "Billing agent", "supportedTenants": ["acme"],
	"supportedChannels": ["web"], "capabilities": [{"id": "urn:acme:capability:view-bill", "name": "view-bill", "version": "1.0.0",
		"description": "Capability to view a bill", "examples": ["show my bill"]}]}`

// TestDocumentsOfLMOSAgents reads capabilities and identities of agents in the formats of the LMOS platform.
func TestDocumentsOfLMOSAgents(t *testing.T) {
	t.Parallel()
	agent := func(links string) string { return strings.Replace(lmosAgent, "LINKS", links, 1) }
	document := func(endpoint string) string { return strings.Replace(lmosDID, "ENDPOINT", endpoint, 1) }
	const meta = `"links": [{"rel": "service-meta", "href": "lmos/capabilities", "type": "application/json"}],`
	viewBill := []string{"urn:acme:capability:view-bill"}
	otherHost := strings.Replace(meta, "lmos/capabilities", "http://127.0.0.1:1/lmos/capabilities", 1)
	for name, c := range map[string]struct {
		documents map[string]string
		path      string
		want      []string // capabilities
	}{
		"at the target of its link": {map[string]string{"/td": agent(meta), "/lmos/capabilities": lmosCapabilities}, "/td", viewBill},
		"at the usual path":         {map[string]string{"/td": agent(""), "/.well-known/capabilities.json": lmosCapabilities}, "/td", viewBill},
		"the link has no target":    {map[string]string{"/td": agent(meta), "/.well-known/capabilities.json": lmosCapabilities}, "/td", viewBill},
		"no document":               {map[string]string{"/td": agent(meta)}, "/td", nil},
		"no capabilities.json":      {map[string]string{"/td": agent(meta), "/lmos/capabilities": `[1]`}, "/td", nil},
		"no valid capability":       {map[string]string{"/td": agent(meta), "/lmos/capabilities": `{"capabilities": [5]}`}, "/td", nil},
		"a link to another host":    {map[string]string{"/td": agent(otherHost)}, "/td", nil},
		"a well-known DID document": {map[string]string{"/.well-known/did.json": document("HERE/td"), "/td": agent("")}, "/", nil},
		"its own have precedence": {map[string]string{"/td": agent(meta + `"lmos:capabilities": ["urn:x:own"],`),
			"/lmos/capabilities": lmosCapabilities}, "/td", []string{"urn:x:own"}},
		"a DID document": {map[string]string{"/agents/did.json": document("HERE/td"), "/td": agent(meta),
			"/lmos/capabilities": lmosCapabilities}, "/agents/did.json", viewBill},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			thing := complete(t, open(t, Spec{Target: site(t, c.documents) + c.path}))
			got := capabilities(thing)
			if thing.Title != "Billing" || !slices.Equal(got, c.want) {
				t.Errorf("got %s with %v, want %v", thing.Title, got, c.want)
			}
		})
	}
}

// A server cannot make this node send requests to other hosts.
func TestLMOSAgentsStayAtTheirOrigin(t *testing.T) {
	t.Parallel()
	agent := strings.Replace(lmosAgent, "LINKS", "", 1)
	other := site(t, map[string]string{"/td": agent, "/.well-known/capabilities.json": lmosCapabilities})
	document := func(endpoint string) string { return strings.Replace(lmosDID, "ENDPOINT", endpoint, 1) }
	redirecting := http.NewServeMux()
	redirecting.HandleFunc("/.well-known/did.json", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, document("http://"+r.Host+"/td"))
	})
	redirecting.Handle("/td", http.RedirectHandler(other+"/td", http.StatusFound))
	redirecting.HandleFunc("/agent", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, agent) })
	redirecting.Handle("/.well-known/capabilities.json", http.RedirectHandler(other+"/.well-known/capabilities.json", http.StatusFound))
	server := httptest.NewServer(redirecting)
	t.Cleanup(server.Close)
	for name, address := range map[string]string{"by an endpoint": site(t, map[string]string{"/.well-known/did.json": document(other + "/td")}),
		"by a redirect": server.URL} {
		if a, err := Open(t.Context(), Spec{Target: address}, nil, nil); err == nil {
			a.Close()
			t.Errorf("%s, a document led to another host", name)
		}
	}
	if got := capabilities(complete(t, open(t, Spec{Target: server.URL + "/agent"}))); got != nil {
		t.Errorf("by a redirect, another host added the capabilities %v", got)
	}
}
