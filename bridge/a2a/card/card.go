// Package card parses, encodes, signs and verifies A2A Agent Cards of versions 1.0 and 0.3. A union card has the members of both.
//
// Sources: A2A 1.0.1 §4.4, §8; RFC 7515 (JWS), RFC 8037 (EdDSA), RFC 8785 (JCS); A2A 0.3.0 §5.5.
package card

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/lmosd/lmosd/internal/jcs"
)

// Bindings of an interface. Others are URIs of custom bindings (A2A 1.0 §5.8).
const (
	JSONRPC = "JSONRPC"
	REST    = "HTTP+JSON"
)

// MaxCard is the size limit of a card, in bytes.
const MaxCard = 256 << 10

// A Card is an Agent Card of 1.0.
type Card struct {
	Name          string            `json:"name"`
	Description   string            `json:"description"`
	Version       string            `json:"version"`
	Interfaces    []Interface       `json:"supportedInterfaces"`
	Provider      *Provider         `json:"provider,omitempty"`
	Documentation string            `json:"documentationUrl,omitempty"`
	Icon          string            `json:"iconUrl,omitempty"`
	Capabilities  Capabilities      `json:"capabilities"`
	Schemes       map[string]Scheme `json:"securitySchemes,omitempty"`
	Requirements  []Requirement     `json:"securityRequirements,omitempty"`
	InputModes    []string          `json:"defaultInputModes"`
	OutputModes   []string          `json:"defaultOutputModes"`
	Skills        []Skill           `json:"skills"`
	Signatures    []Signature       `json:"signatures,omitempty"`
}

// An Interface is an address and binding of an agent. The first one is preferred. Clients repeat Tenant in every request.
type Interface struct {
	URL     string `json:"url"`
	Binding string `json:"protocolBinding"`
	Version string `json:"protocolVersion"`
	Tenant  string `json:"tenant,omitempty"`
}

// A Provider is the organization that operates an agent.
type Provider struct {
	URL          string `json:"url"`
	Organization string `json:"organization"`
}

// Capabilities are the optional features of an agent. Nil means unsupported.
type Capabilities struct {
	Streaming    *bool       `json:"streaming,omitempty"`
	Push         *bool       `json:"pushNotifications,omitempty"`
	ExtendedCard *bool       `json:"extendedAgentCard,omitempty"`
	Extensions   []Extension `json:"extensions,omitempty"`
}

// Supported reports whether a capability is supported.
func Supported(b *bool) bool { return b != nil && *b }

// An Extension is a protocol extension.
type Extension struct {
	URI         string          `json:"uri,omitempty"`
	Description string          `json:"description,omitempty"`
	Required    bool            `json:"required,omitempty"`
	Params      json.RawMessage `json:"params,omitempty"`
}

// A Skill is an ability of an agent.
type Skill struct {
	ID           string        `json:"id"`
	Name         string        `json:"name"`
	Description  string        `json:"description"`
	Tags         []string      `json:"tags"`
	Examples     []string      `json:"examples,omitempty"`
	InputModes   []string      `json:"inputModes,omitempty"`
	OutputModes  []string      `json:"outputModes,omitempty"`
	Requirements []Requirement `json:"securityRequirements,omitempty"`
}

// A Scheme is a security scheme: exactly one member is set.
type Scheme struct {
	APIKey *APIKey         `json:"apiKeySecurityScheme,omitempty"`
	HTTP   *HTTPAuth       `json:"httpAuthSecurityScheme,omitempty"`
	OAuth2 *OAuth2         `json:"oauth2SecurityScheme,omitempty"`
	OpenID *OpenID         `json:"openIdConnectSecurityScheme,omitempty"`
	MTLS   json.RawMessage `json:"mtlsSecurityScheme,omitempty"`
}

// Kinds of security schemes (A2A 1.0 §4.5).
type (
	APIKey struct {
		Description string `json:"description,omitempty"`
		Location    string `json:"location"` // header, query or cookie
		Name        string `json:"name"`
	}
	HTTPAuth struct {
		Description  string `json:"description,omitempty"`
		Scheme       string `json:"scheme"`
		BearerFormat string `json:"bearerFormat,omitempty"`
	}
	OAuth2 struct {
		Description string          `json:"description,omitempty"`
		Flows       map[string]Flow `json:"flows"`
		MetadataURL string          `json:"oauth2MetadataUrl,omitempty"`
	}
	Flow struct {
		AuthorizationURL       string            `json:"authorizationUrl,omitempty"`
		TokenURL               string            `json:"tokenUrl,omitempty"`
		RefreshURL             string            `json:"refreshUrl,omitempty"`
		DeviceAuthorizationURL string            `json:"deviceAuthorizationUrl,omitempty"`
		PKCERequired           bool              `json:"pkceRequired,omitempty"`
		Scopes                 map[string]string `json:"scopes"`
	}
	OpenID struct {
		Description string `json:"description,omitempty"`
		URL         string `json:"openIdConnectUrl"`
	}
)

// A Requirement is a set of schemes that are required together, with their scopes.
type Requirement struct {
	Schemes map[string]Scopes `json:"schemes"`
}

// Scopes of a scheme.
type Scopes struct {
	List []string `json:"list,omitempty"`
}

// A Signature is a JWS over a card (RFC 7515 §7.2, without the payload).
type Signature struct {
	Protected string          `json:"protected"`
	Signature string          `json:"signature"`
	Header    json.RawMessage `json:"header,omitempty"`
}

// Bytes encodes a card as JSON.
func (c *Card) Bytes() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(c)
	return bytes.TrimSpace(b.Bytes()), err
}

// Parse decodes a card of 1.0, of 0.3, or of both. It ignores unknown members and accepts proto names. The error states why the card
// cannot be used.
func Parse(raw []byte) (*Card, error) {
	doc, err := jcs.Object(raw, MaxCard)
	if err != nil {
		return nil, fmt.Errorf("the card is not a JSON object: %w", err)
	}
	camel(doc, 0)
	if _, modern := doc["supportedInterfaces"]; !modern {
		doc = fromV03(doc)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var c Card
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("invalid card: %w", err)
	}
	switch {
	case c.Name == "":
		return nil, fmt.Errorf("the card has no name")
	case len(c.Interfaces) == 0:
		return nil, fmt.Errorf("the card has no interface")
	}
	return &c, nil
}
