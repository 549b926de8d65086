package card

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

var b64 = base64.RawURLEncoding

// canonical returns the payload of a card's signature (A2A 1.0 §8.4): the JCS of its 1.0 members, without signatures and without
// empty values. Verifiers treat empty values differently, so cards of lmosd have none.
func canonical(c *Card) ([]byte, error) {
	plain := *c
	plain.Signatures = nil
	raw, err := json.Marshal(&plain)
	if err != nil {
		return nil, err
	}
	v, err := jcs.Decode(raw, 2*MaxCard)
	if err != nil {
		return nil, err
	}
	return jcs.Append(nil, clean(v, false))
}

// clean removes null and empty strings, arrays and objects, depth first. Array elements stay, except with prune.
func clean(v any, prune bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, m := range v {
			if m = clean(m, prune); !empty(m) {
				out[name] = m
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			if e = clean(e, prune); !prune || !empty(e) {
				out = append(out, e)
			}
		}
		return out
	}
	return v
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// Sign adds the signature of s to a card: EdDSA, with the verification method of its did:key as kid. It first removes empty values,
// which verifiers treat differently; the caller must set the members that 1.0 requires.
func Sign(c *Card, s did.Signer) error {
	c.tidy()
	payload, err := canonical(c)
	if err != nil {
		return err
	}
	kid := string(s.DID()) + "#" + s.DID().Multibase()
	protected := b64.EncodeToString(fmt.Appendf(nil, `{"alg":"EdDSA","typ":"JOSE","kid":%q}`, kid))
	signature, err := s.Sign(did.PurposeCard, []byte(protected+"."+b64.EncodeToString(payload)))
	if err != nil {
		return err
	}
	c.Signatures = append(c.Signatures, Signature{Protected: protected, Signature: b64.EncodeToString(signature)})
	return nil
}

// tidy removes empty optional values from a card. It replaces arrays and does not modify them.
func (c *Card) tidy() {
	if c.Provider != nil && (c.Provider.URL == "" || c.Provider.Organization == "") {
		c.Provider = nil
	}
	c.InputModes, c.OutputModes = texts(c.InputModes), texts(c.OutputModes)
	c.Skills = slices.Clone(c.Skills)
	for i := range c.Skills {
		s := &c.Skills[i]
		s.Name = cmp.Or(s.Name, s.ID)
		s.Tags, s.Examples, s.InputModes, s.OutputModes = texts(s.Tags), texts(s.Examples), texts(s.InputModes), texts(s.OutputModes)
	}
	c.Capabilities.Extensions = slices.Clone(c.Capabilities.Extensions)
	for i := range c.Capabilities.Extensions {
		x := &c.Capabilities.Extensions[i]
		v, err := jcs.Decode(x.Params, MaxCard)
		if v = clean(v, true); err != nil || empty(v) {
			x.Params = nil
		} else if text, err := jcs.Append(nil, v); err == nil {
			x.Params = text
		}
	}
	c.Capabilities.Extensions = slices.DeleteFunc(c.Capabilities.Extensions, func(x Extension) bool { return x.URI == "" })
}

func texts(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "" })
}

// Errors of [Verify].
var (
	// ErrUnsigned: the card has no signature.
	ErrUnsigned = errors.New("the card is not signed")
	// ErrUnknownKey: no signature of the card has a supported algorithm and a key that can be resolved.
	ErrUnknownKey = errors.New("the card is signed with an unknown key")
	// ErrSignature: a signature is invalid.
	ErrSignature = errors.New("the signature of the card is invalid")
)

// A Verification is the signer of a card.
type Verification struct {
	// Key is the DID URL of the key, or the URL of its key set followed by "#" and the key id.
	Key string
	// Form is the signed payload: "proto", as the specification defines it; "clean", without empty values; "raw", the received
	// document; "library", as the JavaScript library signs, without the security schemes.
	Form string
}

// maxSignatures is the number of signatures of a card that are checked.
const maxSignatures = 8

// Verify checks the signatures of a received card: EdDSA, ES256 and RS256, with the keys that r resolves, or finds if it is a
// [SetFinder]. One valid signature is sufficient. An invalid signature is [ErrSignature] even if others are valid, because the card
// was modified.
func Verify(ctx context.Context, raw []byte, r did.Resolver) (*Verification, error) {
	doc, err := jcs.Object(raw, MaxCard)
	if err != nil {
		return nil, fmt.Errorf("the card is not a JSON object: %w", err)
	}
	list, _ := doc["signatures"].([]any)
	if len(list) == 0 {
		return nil, ErrUnsigned
	}
	delete(doc, "signatures")
	payloads := payloadsOf(doc)
	var good *Verification
	for i, s := range list {
		if i == maxSignatures {
			break
		}
		v, err := verifyOne(ctx, s, payloads, r)
		switch {
		case errors.Is(err, ErrSignature):
			return nil, err
		case err == nil && good == nil:
			good = v
		}
	}
	if good == nil {
		return nil, ErrUnknownKey
	}
	return good, nil
}

// A payload is a form of the signed card.
type payload struct {
	form string
	text []byte
}

func payloadsOf(doc map[string]any) (all []payload) {
	add := func(form string, v any) {
		if text, err := jcs.Append(nil, v); err == nil {
			all = append(all, payload{form, text})
		}
	}
	known := project(doc, message)
	add("proto", byPresence(known, message))
	add("clean", clean(known, false))
	add("raw", doc)
	if m, ok := known.(map[string]any); ok {
		delete(m, "securitySchemes")
		add("library", clean(byPresence(m, message), true))
	}
	return all
}

func verifyOne(ctx context.Context, v any, payloads []payload, r did.Resolver) (*Verification, error) {
	m, _ := v.(map[string]any)
	protected, _ := m["protected"].(string)
	text, _ := m["signature"].(string)
	signature, err := b64.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%w: it is not base64url", ErrUnknownKey)
	}
	c, err := readHeader(protected)
	if err != nil {
		return nil, err
	}
	key, name, err := c.find(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, p := range payloads {
		if verifies(c.alg, key, []byte(protected+"."+b64.EncodeToString(p.text)), signature) {
			return &Verification{Key: name, Form: p.form}, nil
		}
	}
	return nil, fmt.Errorf("%w: it was not made by %s", ErrSignature, name)
}

// A shape describes the 1.0 members of an object. A nil shape has all members.
type shape struct {
	fields   map[string]*shape // shapes of the values, or of their elements
	required []string          // fields that are always written
	entries  *shape            // the shape of the values of a map, in place of fields
	kept     []string          // optional fields with presence, which are written if they are set
}

func fields(required []string, kept []string, more map[string]*shape, plain ...string) *shape {
	s := &shape{fields: map[string]*shape{}, required: required, kept: kept}
	for _, name := range append(append(plain, required...), kept...) {
		s.fields[name] = nil
	}
	maps.Copy(s.fields, more)
	return s
}

func list(names ...string) []string { return names }

// message is the AgentCard of a2a.proto.
var message = func() *shape {
	requirement := fields(nil, nil, map[string]*shape{"schemes": {entries: fields(nil, nil, nil, "list")}})
	flows := map[string]*shape{}
	for _, name := range list("authorizationCode", "clientCredentials", "deviceCode", "implicit", "password") {
		flows[name] = fields(nil, nil, nil, "authorizationUrl", "tokenUrl", "refreshUrl", "deviceAuthorizationUrl", "pkceRequired",
			"scopes")
	}
	scheme := fields(nil, nil, map[string]*shape{
		"apiKeySecurityScheme":   fields(list("location", "name"), nil, nil, "description"),
		"httpAuthSecurityScheme": fields(list("scheme"), nil, nil, "description", "bearerFormat"),
		"oauth2SecurityScheme": fields(list("flows"), nil, map[string]*shape{"flows": fields(nil, nil, flows)}, "description",
			"oauth2MetadataUrl"),
		"openIdConnectSecurityScheme": fields(list("openIdConnectUrl"), nil, nil, "description"),
		"mtlsSecurityScheme":          fields(nil, nil, nil, "description"),
	})
	return fields(
		list("name", "description", "version", "supportedInterfaces", "capabilities", "defaultInputModes", "defaultOutputModes",
			"skills"),
		list("documentationUrl", "iconUrl"),
		map[string]*shape{
			"supportedInterfaces": fields(list("url", "protocolBinding", "protocolVersion"), nil, nil, "tenant"),
			"provider":            fields(list("url", "organization"), nil, nil),
			"capabilities": fields(nil, list("streaming", "pushNotifications", "extendedAgentCard"),
				map[string]*shape{"extensions": fields(nil, nil, nil, "uri", "description", "required", "params")}),
			"securitySchemes":      {entries: scheme},
			"securityRequirements": requirement,
			"skills": fields(list("id", "name", "description", "tags"), nil, map[string]*shape{"securityRequirements": requirement},
				"examples", "inputModes", "outputModes"),
		})
}()

// project returns the members of v that s has.
func project(v any, s *shape) any {
	if s == nil {
		return v
	}
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = project(e, s)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name, m := range v {
			of, known := s.fields[name]
			if s.entries != nil {
				of, known = s.entries, true
			}
			if known {
				out[name] = project(m, of)
			}
		}
		return out
	}
	return v
}

// byPresence removes default values as proto presence requires (A2A 1.0 §8.4.1).
func byPresence(v any, s *shape) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = byPresence(e, s)
		}
		return out
	case map[string]any:
		if s == nil {
			return v
		}
		out := map[string]any{}
		for name, m := range v {
			of := s.fields[name]
			if s.entries != nil {
				of = s.entries
			}
			m = byPresence(m, of)
			if s.entries != nil || slices.Contains(s.required, name) || slices.Contains(s.kept, name) && m != nil || !isDefault(m) {
				out[name] = m
			}
		}
		return out
	}
	return v
}

func isDefault(v any) bool {
	switch v := v.(type) {
	case bool:
		return !v
	case float64:
		return v == 0
	case map[string]any:
		return false // a message that is set is present
	}
	return empty(v)
}
