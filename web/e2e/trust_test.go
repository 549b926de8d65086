package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/testnet"
)

// ask sends a request over the socket of a node.
func ask(t *testing.T, m *testnet.Member, method, path, body string) []byte {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.Socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, raw, err)
	}
	return raw
}

// TestTrust: an invitation made on the page makes a partner that waits; nothing confirms it before the operator says that the words are the same, and a page
// without rights shows it without a button.
func TestTrust(t *testing.T) {
	t.Parallel()
	net := ownMesh(t, 2)
	acme, globex := net.Members[0], net.Members[1]
	for i, m := range net.Members {
		domain := []string{"acme.example", "globex.example"}[i]
		ask(t, m, http.MethodPost, "/v1/org", fmt.Sprintf(`{"domain":%q,"recovery_file":%q}`, domain, filepath.Join(t.TempDir(), "recovery")))
	}
	p := signedIn(t, acme, wide, "admin")
	p.goTo("#/trust?tab=invitations")
	p.waitText("[data-testid=trust-waiting]", "Nothing waits.")
	p.wait("the form", `document.querySelectorAll('[data-testid="trust-invite"] .segments button').length === 2`)
	p.eval(`document.querySelectorAll('[data-testid="trust-invite"] .segments button')[1].click(); 0`)
	p.click("[data-testid=trust-invite-make]")
	p.waitText("[data-testid=trust-text]", "lmos-invite:")
	accepted, err := json.Marshal(map[string]string{"invitation": strings.TrimSpace(p.text("[data-testid=trust-text]"))})
	if err != nil {
		t.Fatal(err)
	}
	ask(t, globex, http.MethodPost, "/v1/trust/partners", string(accepted))

	looker := open(t, acme, wide, "#/trust?tab=invitations")
	looker.waitText("[data-testid=trust-pending]", "Check words")
	if n := looker.eval(`document.querySelectorAll('[data-testid="trust-confirm"], [data-testid="trust-discard"]').length`); n != 0.0 {
		t.Errorf("a page without rights has %v buttons", n)
	}

	p.waitText("[data-testid=trust-pending]", "SCID") // it came by an event
	p.click("[data-testid=trust-confirm]")
	p.wait("the button waits for the comparison", `document.querySelector('[data-testid="trust-decide-yes"]')?.disabled`)
	p.click("[data-testid=trust-compared]")
	p.wait("the button", `!document.querySelector('[data-testid="trust-decide-yes"]').disabled`)
	p.click("[data-testid=trust-decide-yes]")
	p.waitText("[data-testid=trust-waiting]", "Nothing waits.")
	if raw := ask(t, acme, http.MethodGet, "/v1/trust/partners", ""); !strings.Contains(string(raw), `"state":"partner"`) {
		t.Errorf("the partner is not confirmed: %s", raw)
	}
	p.goTo("#/trust?tab=access&who=globex&op=invoke&on=node")
	p.click("[data-testid=why-ask]")
	p.wait("the decision", `document.querySelector('[data-testid="why-result"]')?.dataset.decision === 'deny' || document.querySelector('[data-testid="trust-why"] .failure')`)
	p.goTo("#/trust?tab=audit")
	p.wait("the verified head", `document.querySelector('[data-testid="audit-head"]')?.dataset.verified === 'true'`)
	p.waitText("[data-testid=trust-audit]", "globex")
}
