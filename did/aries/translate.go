//go:build !noaries

package aries

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	legacy "github.com/hyperledger/aries-framework-go/pkg/doc/did"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// relationships are the members of a document that list methods.
var relationships = []struct {
	name string
	list func(*legacy.Doc) []legacy.Verification
}{
	{"authentication", func(d *legacy.Doc) []legacy.Verification { return d.Authentication }},
	{"assertionMethod", func(d *legacy.Doc) []legacy.Verification { return d.AssertionMethod }},
	{"keyAgreement", func(d *legacy.Doc) []legacy.Verification { return d.KeyAgreement }},
	{"capabilityInvocation", func(d *legacy.Doc) []legacy.Verification { return d.CapabilityInvocation }},
	{"capabilityDelegation", func(d *legacy.Doc) []legacy.Verification { return d.CapabilityDelegation }},
}

// precheck rejects private keys, which the module accepts, and very long keys, which it decodes slowly.
func precheck(v any) error {
	switch v := v.(type) {
	case []any:
		for _, entry := range v {
			if err := precheck(entry); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, value := range v {
			if err := precheckMember(name, value); err != nil {
				return err
			}
			if err := precheck(value); err != nil {
				return err
			}
		}
	}
	return nil
}

func precheckMember(name string, value any) error {
	jwk, _ := value.(map[string]any)
	_, private := jwk["d"]
	if strings.HasPrefix(name, "privateKey") || strings.HasPrefix(name, "secretKey") || name == "publicKeyJwk" && private {
		return fmt.Errorf("the member %q has a private key", name)
	}
	if s, _ := value.(string); strings.HasPrefix(name, "publicKey") && len(s) > 8<<10 {
		return fmt.Errorf("%q has %d characters", name, len(s))
	}
	return nil
}

// translate converts doc to the current form and parses it with did.ParseDocument. Controllers, aliases and services, which the
// module simplifies, come from top, the decoded document, if not nil.
func translate(doc *legacy.Doc, top map[string]any, id did.DID) (*did.Document, error) {
	t := translator{controllers: controllers(top, id), known: map[string]*legacy.VerificationMethod{}}
	out := map[string]any{"id": string(id)}
	for _, name := range []string{"controller", "alsoKnownAs", "service"} {
		if v, ok := top[name]; ok {
			out[name] = v
		}
	}
	methods := []any{}
	for i := range doc.VerificationMethod {
		methods = append(methods, t.method(&doc.VerificationMethod[i]))
	}
	out["verificationMethod"] = methods
	for _, r := range relationships {
		out[r.name] = t.relationship(r.list(doc))
	}
	if t.err != nil {
		return nil, fmt.Errorf("%w: document of %q: %w", did.ErrInvalid, id.Short(), t.err)
	}
	raw, err := jcs.Append(nil, out)
	if err != nil {
		return nil, fmt.Errorf("%w: document of %q: %w", did.ErrInvalid, id.Short(), err)
	}
	return did.ParseDocument(raw, id)
}

// A translator converts verification methods of the module to members of a document. err has all failures.
type translator struct {
	controllers map[string]string
	known       map[string]*legacy.VerificationMethod // by id: methods that are in the result in full
	err         error
}

// relationship returns references, and in full the embedded methods that are not yet in the result: documents of the module may have a method
// both in verificationMethod and embedded.
func (t *translator) relationship(vs []legacy.Verification) []any {
	out := []any{}
	for i := range vs {
		m := &vs[i].VerificationMethod
		switch same := t.known[m.ID]; {
		case !vs[i].Embedded:
			out = append(out, m.ID)
		case same == nil:
			out = append(out, t.method(m))
		case same.Type != m.Type || !bytes.Equal(same.Value, m.Value):
			t.err = errors.Join(t.err, fmt.Errorf("two verification methods have the id %q", m.ID))
		default:
			out = append(out, m.ID)
		}
	}
	return out
}

func (t *translator) method(m *legacy.VerificationMethod) map[string]any {
	t.known[m.ID] = m
	out := map[string]any{"id": m.ID, "type": m.Type}
	// The module replaces the controller of every method with a relative id by the document.
	if c := t.controllers[m.ID]; c != "" {
		out["controller"] = c
	} else if m.Controller != "" {
		out["controller"] = m.Controller
	}
	switch {
	case m.JSONWebKey() != nil:
		out["publicKeyJwk"] = t.jwk(m)
	case m.Type == "Bls12381G2Key2020" && len(m.Value) == 96:
		out["publicKeyMultibase"] = did.EncodeBase58(append([]byte{0xeb, 0x01}, m.Value...))
	case len(m.Value) > 32 && (m.Type == "Multikey" || strings.HasSuffix(m.Type, "2020")):
		// The module keeps the multicodec code before the key.
		out["publicKeyMultibase"] = did.EncodeBase58(m.Value)
	default:
		out["publicKeyBase58"] = did.EncodeBase58(m.Value)[1:]
	}
	return out
}

func (t *translator) jwk(m *legacy.VerificationMethod) any {
	text, err := json.Marshal(m.JSONWebKey())
	if err == nil {
		var v any
		if v, err = jcs.Decode(text, did.MaxDocument); err == nil {
			return v
		}
	}
	t.err = errors.Join(t.err, fmt.Errorf("key of %q: %w", m.ID, err))
	return nil
}

// controllers returns the controllers of the methods of a document by absolute id.
func controllers(top map[string]any, id did.DID) map[string]string {
	out := map[string]string{}
	lists := []string{"verificationMethod", "publicKey"}
	for _, r := range relationships {
		lists = append(lists, r.name)
	}
	for _, name := range lists {
		list, _ := top[name].([]any)
		for _, entry := range list {
			m, _ := entry.(map[string]any)
			method, _ := m["id"].(string)
			if strings.HasPrefix(method, "#") {
				method = string(id) + method
			}
			for _, member := range []string{"owner", "controller"} {
				if c, _ := m[member].(string); c != "" {
					out[method] = c
				}
			}
		}
	}
	return out
}
