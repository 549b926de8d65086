package did

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
)

// Limits of a DID document. The number of keys is limited because checking them takes time.
const (
	MaxDocument = 256 << 10 // bytes
	MaxMethods  = 128       // verification methods, including embedded ones, and entries of one relationship
)

// ParseDocument reads the DID document of want: strict JSON within [MaxDocument] and [MaxMethods] whose id is want, byte for byte; an empty
// want accepts any id. It reads multikeys, JSON Web Keys and the Ed25519 and X25519 suites of 2018 to 2020, string and array forms,
// relative ids, and methods embedded in a relationship. Keys of unknown algorithms stay in the document with an empty KeyType and no
// PublicKey. It rejects duplicate ids of methods, private key members, and keys that are malformed or weak ([CheckKey]). Raw refers to raw,
// which the caller must not change. The error wraps [ErrInvalid].
//
// The caller must obtain the document from a trustworthy source.
func ParseDocument(raw []byte, want DID) (*Document, error) {
	return parse(raw, want, (*reader).context, (*reader).controllers, (*reader).methods, (*reader).relationships, (*reader).services)
}

func parse(raw []byte, want DID, steps ...func(*reader) error) (*Document, error) {
	top, err := jcs.Object(raw, MaxDocument)
	if err != nil {
		return nil, fmt.Errorf("%w: document of %q: %w", ErrInvalid, want.Short(), err)
	}
	r := &reader{top: top, doc: &Document{Raw: raw}}
	err = r.id(want)
	for _, step := range steps {
		if err == nil {
			err = step(r)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: document of %q: %w", ErrInvalid, r.doc.ID.Short(), err)
	}
	return r.doc, nil
}

// ParseServices is [ParseDocument] for the id and the services only. LMOS documents have malformed keys.
func ParseServices(raw []byte, want DID) (*Document, error) {
	return parse(raw, want, (*reader).services)
}

// A reader fills doc from top.
type reader struct {
	top map[string]any
	doc *Document
}

func (r *reader) id(want DID) error {
	s, _ := r.top["id"].(string)
	if want != "" && s != string(want) {
		r.doc.ID = want
		return fmt.Errorf("the document's id is %q", cut(s))
	}
	id, err := ParseForeign(s)
	r.doc.ID = id
	return err
}

// context checks only the form: contexts are never fetched, and documents without one are in use (DID Core §6.2).
func (r *reader) context() error {
	switch v := r.top["@context"].(type) {
	case nil, string, map[string]any:
		return nil
	case []any:
		for _, c := range v {
			switch c.(type) {
			case string, map[string]any:
			default:
				return errors.New("@context has an entry that is neither a string nor an object")
			}
		}
		return nil
	}
	return errors.New("@context is not a string, an object or an array")
}

func (r *reader) controllers() error {
	controllers, err := texts(r.top["controller"])
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	for _, c := range controllers {
		id, err := ParseForeign(c)
		if err != nil {
			return fmt.Errorf("controller: %w", err)
		}
		r.doc.Controller = append(r.doc.Controller, id)
	}
	if r.doc.AlsoKnownAs, err = texts(r.top["alsoKnownAs"]); err != nil {
		return fmt.Errorf("alsoKnownAs: %w", err)
	}
	return nil
}

func (r *reader) methods() error {
	v, ok := r.top["verificationMethod"]
	if !ok {
		v = r.top["publicKey"] // before DID Core 1.0
	}
	list, err := items(v)
	if err != nil {
		return fmt.Errorf("verificationMethod: %w", err)
	}
	for _, v := range list {
		m, ok := v.(map[string]any)
		if !ok {
			return errors.New("verificationMethod has an entry that is not an object")
		}
		if _, err := r.method(m); err != nil {
			return err
		}
	}
	return nil
}

// method adds a verification method and returns its absolute id.
func (r *reader) method(m map[string]any) (string, error) {
	id, err := r.absolute(m["id"])
	if err != nil {
		return "", fmt.Errorf("verification method: %w", err)
	}
	if len(r.doc.VerificationMethod) >= MaxMethods {
		return "", fmt.Errorf("more than %d verification methods", MaxMethods)
	}
	if r.doc.Method(id) != nil {
		return "", fmt.Errorf("two verification methods have the id %q", cut(id))
	}
	vm := VerificationMethod{ID: id, Controller: r.doc.ID}
	vm.Type, _ = m["type"].(string)
	// Some documents omit a controller that is the document's own DID.
	if c, ok := m["controller"]; ok {
		s, _ := c.(string)
		if vm.Controller, err = ParseForeign(s); err != nil {
			return "", fmt.Errorf("controller of %q: %w", cut(id), err)
		}
	}
	key, err := readMaterial(m, vm.Type)
	if err != nil {
		return "", fmt.Errorf("key of %q: %w", cut(id), err)
	}
	vm.KeyType, vm.PublicKey = key.keyType, key.key
	r.doc.VerificationMethod = append(r.doc.VerificationMethod, vm)
	return id, nil
}

// readMaterial reads the member that holds the key.
func readMaterial(m map[string]any, typ string) (material, error) {
	var found []material
	for name, v := range m {
		var key material
		var err error
		s, _ := v.(string)
		switch {
		case isPrivateMember(name):
			return material{}, fmt.Errorf("the method has the private member %q", name)
		case name == "publicKeyMultibase":
			key, err = readMultibase(s)
		case name == "publicKeyBase58":
			key, err = readBase58(s, typ)
		case name == "publicKeyJwk":
			jwk, _ := v.(map[string]any)
			key, err = readJWK(jwk)
		default:
			continue
		}
		if err != nil {
			return material{}, err
		}
		found = append(found, key)
	}
	switch {
	case len(found) > 1: // DID Core §5.2: at most one form of the key
		return material{}, errors.New("the method has the key in more than one form")
	case len(found) == 0: // blockchainAccountId, publicKeyHex and others
		return material{}, nil
	}
	if want := suites[typ]; want != "" && found[0].keyType != want {
		return material{}, fmt.Errorf("a method of type %s with a key of another algorithm", typ)
	}
	return found[0], nil
}

func isPrivateMember(name string) bool {
	return name == "d" || strings.HasPrefix(name, "privateKey") || strings.HasPrefix(name, "secretKey")
}

// relationships reads the lists of methods by purpose. An entry is the id of a method, or a method for this purpose only (DID Core §5.3).
func (r *reader) relationships() error {
	for _, name := range relationships {
		list, err := items(r.top[name])
		if err == nil && len(list) > MaxMethods {
			err = fmt.Errorf("more than %d entries", MaxMethods)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		ids := r.doc.relationship(name)
		for _, v := range list {
			var id string
			if m, ok := v.(map[string]any); ok {
				id, err = r.method(m)
			} else {
				id, err = r.absolute(v)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			*ids = append(*ids, id)
		}
	}
	return nil
}

func (r *reader) services() error {
	list, err := items(r.top["service"])
	if err != nil {
		return fmt.Errorf("service: %w", err)
	}
	for _, v := range list {
		s, err := r.service(v)
		if err != nil {
			return fmt.Errorf("service: %w", err)
		}
		r.doc.Service = append(r.doc.Service, s)
	}
	return nil
}

func (r *reader) service(v any) (Service, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return Service{}, errors.New("an entry that is not an object")
	}
	id, _ := m["id"].(string)
	if strings.HasPrefix(id, "#") {
		id = string(r.doc.ID) + id
	}
	types, err := texts(m["type"])
	if err != nil {
		return Service{}, fmt.Errorf("type of %q: %w", cut(id), err)
	}
	endpoint, err := jcs.Append(nil, m["serviceEndpoint"])
	if err != nil {
		return Service{}, fmt.Errorf("serviceEndpoint of %q: %w", cut(id), err)
	}
	return Service{ID: id, Type: types, Endpoint: json.RawMessage(endpoint)}, nil
}

// absolute returns the id v of a method as a checked absolute DID URL.
func (r *reader) absolute(v any) (string, error) {
	s, _ := v.(string)
	if strings.HasPrefix(s, "#") {
		s = string(r.doc.ID) + s
	}
	u, err := ParseURL(s)
	if err != nil {
		return "", err
	}
	if u.Fragment == "" && u.Path == "" && u.Query == "" {
		return "", invalid(s, "the id of a method needs a fragment, a path or a query")
	}
	return s, nil
}

// items returns the entries of a member that may be absent, one value, or an array.
func items(v any) ([]any, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case []any:
		return v, nil
	case string, map[string]any:
		return []any{v}, nil
	}
	return nil, errors.New("not an array")
}

// texts returns the strings of a member that may be absent, one string, or an array.
func texts(v any) ([]string, error) {
	list, err := items(v)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, errors.New("an entry that is not a string")
		}
		out = append(out, s)
	}
	return out, nil
}
