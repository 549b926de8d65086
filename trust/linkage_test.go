package trust

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/didtest"
)

// linkage returns the DID configuration of an origin, which an issuing key of the organization of m signs as a JWT.
func (m *member) linkage(t *testing.T, origin string) string {
	t.Helper()
	block, _ := pem.Decode(must(os.ReadFile(filepath.Join(m.dir, "org", "issuer.pem")))(t))
	key := must(x509.ParsePKCS8PrivateKey(block.Bytes))(t).(ed25519.PrivateKey)
	_, method, err := m.org.Signer()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode(fmt.Appendf(nil, `{"alg":"EdDSA","kid":%q}`, method)) + "." + encode(fmt.Appendf(nil,
		`{"iss":%[1]q,"sub":%[1]q,"nbf":%[2]d,"exp":%[3]d,"vc":{"type":["VerifiableCredential","DomainLinkageCredential"],"credentialSubject":{"id":%[1]q,"origin":%[4]q}}}`,
		m.org.DID(), time.Now().Unix(), time.Now().Add(time.Hour).Unix(), origin))
	return `{"@context":"` + aries.ContextLinkage + `","linked_dids":["` + text + "." + encode(ed25519.Sign(key, []byte(text))) + `"]}`
}

// The DID configuration of a domain proves a partner whose domain serves nothing else, and no unknown organization, for which it is not fetched.
func TestDomainLinkedByConfiguration(t *testing.T) {
	t.Parallel()
	acme, globex := newMember(t), newMember(t)
	var text atomic.Value
	var fetched atomic.Int32
	text.Store("")
	options, port := didtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/did-configuration.json" {
			http.NotFound(w, r)
			return
		}
		fetched.Add(1)
		_, _ = w.Write([]byte(text.Load().(string)))
	}))
	acme.o.Web = options
	acme.founds("acme.example")
	domain := "globex.example:" + port
	globex.founds(domain)
	check := func(want bool, problem string) {
		t.Helper()
		c := must(acme.CheckDomain(t.Context(), domain))(t)
		if problems := strings.Join(c.Problems, "; "); c.Proven != want || !strings.Contains(problems, problem) {
			t.Errorf("got %+v, want %t, %q", c, want, problem)
		}
		if want && (c.Organization.State != "partner" || c.DID != globex.org.DID()) {
			t.Errorf("got %+v", c)
		}
	}
	text.Store(globex.linkage(t, "https://"+domain))
	check(false, "does not exist")
	if n := fetched.Load(); n != 0 {
		t.Errorf("fetched %d times for an unknown organization", n)
	}
	acme.federates(globex)
	check(true, "only a DID configuration")
	text.Store(globex.linkage(t, "https://other.example"))
	check(false, "other.example")
	text.Store(acme.linkage(t, "https://"+domain))
	check(false, "no entry is of")
	text.Store("<html>")
	check(false, "its DID configuration")
}
