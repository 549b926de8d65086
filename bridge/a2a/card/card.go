// Package card reads, writes, signs and verifies agent cards: what an A2A agent says of itself, in the words of 1.0, of 0.3, or
// of both at once.
//
// Sources: A2A 1.0.1 §4.4, §8; RFC 7515 (JWS), RFC 8037 (EdDSA), RFC 8785 (JCS); A2A 0.3.0 §5.5.
package card

import (
	"encoding/json"
	"fmt"

	"github.com/lmosd/lmosd/internal/jcs"
)

// Bindings of an interface. A URI is a custom one (A2A 1.0 §5.8).
const (
	JSONRPC = "JSONRPC"
	REST    = "HTTP+JSON"
	GRPC    = "GRPC"
)

// maxCard bounds a card, in bytes.
const maxCard = 256 << 10

// A Card is an agent card of 1.0.
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

// An Interface is where and how an agent is asked. The first is preferred. Tenant is repeated in every request.
type Interface struct {
	URL     string `json:"url"`
	Binding string `json:"protocolBinding"`
	Version string `json:"protocolVersion"`
	Tenant  string `json:"tenant,omitempty"`
}

// A Provider offers an agent.
type Provider struct {
	URL          string `json:"url"`
	Organization string `json:"organization"`
}

// Capabilities are what an agent can do beside answering. Nil says nothing, which is no.
type Capabilities struct {
	Streaming    *bool       `json:"streaming,omitempty"`
	Push         *bool       `json:"pushNotifications,omitempty"`
	ExtendedCard *bool       `json:"extendedAgentCard,omitempty"`
	Extensions   []Extension `json:"extensions,omitempty"`
}

// Yes reports whether a capability is there.
func Yes(b *bool) bool { return b != nil && *b }

// An Extension is one of the protocol.
type Extension struct {
	URI         string          `json:"uri,omitempty"`
	Description string          `json:"description,omitempty"`
	Required    bool            `json:"required,omitempty"`
	Params      json.RawMessage `json:"params,omitempty"`
}

// A Skill is one thing that an agent can do.
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

// A Scheme is how callers prove who they are: exactly one member is set.
type Scheme struct {
	APIKey *APIKey         `json:"apiKeySecurityScheme,omitempty"`
	HTTP   *HTTPAuth       `json:"httpAuthSecurityScheme,omitempty"`
	OAuth2 *OAuth2         `json:"oauth2SecurityScheme,omitempty"`
	OpenID *OpenID         `json:"openIdConnectSecurityScheme,omitempty"`
	MTLS   json.RawMessage `json:"mtlsSecurityScheme,omitempty"`
}

// Schemes by kind (A2A 1.0 §4.5).
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

// A Requirement names schemes that are needed together, with their scopes.
type Requirement struct {
	Schemes map[string]Scopes `json:"schemes"`
}

// Scopes of a scheme.
type Scopes struct {
	List []string `json:"list,omitempty"`
}

// A Signature is a JWS of a card (RFC 7515 §7.2, without its payload).
type Signature struct {
	Protected string          `json:"protected"`
	Signature string          `json:"signature"`
	Header    json.RawMessage `json:"header,omitempty"`
}

// Parse reads a card of 1.0, of 0.3, or of both. It is tolerant: unknown members are passed over, names of the proto are read.
// The error says what keeps it from being used.
func Parse(raw []byte) (*Card, error) {
	doc, err := jcs.Object(raw, maxCard)
	if err != nil {
		return nil, fmt.Errorf("the card is no JSON object: %w", err)
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
		return nil, fmt.Errorf("the card cannot be read: %w", err)
	}
	switch {
	case c.Name == "":
		return nil, fmt.Errorf("the card has no name")
	case len(c.Interfaces) == 0:
		return nil, fmt.Errorf("the card names no interface")
	}
	return &c, nil
}
