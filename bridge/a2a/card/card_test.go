package card

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A golden vector, which the JavaScript library accepts.
const (
	goldenPayload = `{"capabilities":{"pushNotifications":false,"streaming":true},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"description":"Echo agent","name":"echo","skills":[{"description":"Echo the text","id":"echo","name":"echo","tags":["echo"]}],"supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0","url":"https://node.example/a2a/echo"}],"version":"1.0.0"}`
	goldenKey     = "did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd#z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd"
	goldenSig     = "LQUFHHQen-WvHBwQMatzPkP2MCk7DFOZgtgnQ1i5c9p366tMGQOS6zOg8MV3U0NBwuCpKQrKWGhVDzcYIDA6AQ"
)

func key(t testing.TB) *keystore.Key {
	t.Helper()
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(i)
	}
	k, err := keystore.FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// golden returns the signed card of the vector.
func golden(t testing.TB) *Card {
	t.Helper()
	c, err := Parse([]byte(goldenPayload))
	if err == nil {
		err = Sign(c, key(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGoldenVector(t *testing.T) {
	t.Parallel()
	c := golden(t)
	payload, err := canonical(c)
	if err != nil || string(payload) != goldenPayload {
		t.Errorf("the payload is %s, %v", payload, err)
	}
	header, err := b64.DecodeString(c.Signatures[0].Protected)
	if want := `{"alg":"EdDSA","typ":"JOSE","kid":"` + goldenKey + `"}`; err != nil || string(header) != want || c.Signatures[0].Signature != goldenSig {
		t.Errorf("the header is %s and the signature %s", header, c.Signatures[0].Signature)
	}
}

// verificationOf verifies text, and returns the signed form or the error.
func verificationOf(t *testing.T, text []byte) string {
	t.Helper()
	v, err := Verify(t.Context(), text, did.Keys())
	switch {
	case errors.Is(err, ErrSignature):
		return "wrong"
	case errors.Is(err, ErrUnknownKey):
		return "unknown"
	case errors.Is(err, ErrUnsigned):
		return "unsigned"
	case err != nil:
		return "error"
	}
	if v.Key != goldenKey {
		t.Errorf("the key is %s", v.Key)
	}
	return v.Form
}

// signedAs returns a document with a signature over payload.
func signedAs(t *testing.T, doc, payload string) []byte {
	t.Helper()
	protected := b64.EncodeToString([]byte(`{"alg":"EdDSA","typ":"JOSE","kid":"` + goldenKey + `"}`))
	s, err := key(t).Sign(did.PurposeCard, []byte(protected+"."+b64.EncodeToString([]byte(payload))))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.TrimSuffix(doc, "}") + `,"signatures":[{"protected":"` + protected + `","signature":"` + b64.EncodeToString(s) + `"}]}`)
}

func TestVerify(t *testing.T) {
	t.Parallel()
	c := golden(t)
	pure, err := c.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	union, err := Union(c)
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(from, to string) []byte { return bytes.Replace(pure, []byte(from), []byte(to), 1) }
	foreign := strings.Replace(goldenPayload, `"echo","skills"`, `"echo","provider":{"organization":"","url":"https://x.example"},"skills"`, 1)
	for name, test := range map[string]struct {
		card []byte
		want string
	}{
		"pure":                      {pure, "proto"},
		"with the words of 0.3":     {union, "proto"},
		"one letter":                {replaced("Echo agent", "Echo agemt"), "wrong"},
		"one letter of a URL":       {replaced("node.example", "node.axample"), "wrong"},
		"one member more":           {replaced(`{"name"`, `{"iconUrl":"https://evil.example/x.png","name"`), "wrong"},
		"another signature":         {replaced(goldenSig[:8], "AAAAAAAA"), "wrong"},
		"a member that 1.0 has not": {replaced(`{"name"`, `{"x-note":1,"name"`), "proto"},
		"unsigned":                  {[]byte(goldenPayload), "unsigned"},
		"another algorithm":         {replaced(c.Signatures[0].Protected, b64.EncodeToString([]byte(`{"alg":"ES256","kid":"x"}`))), "unknown"},
		"no algorithm":              {replaced(c.Signatures[0].Protected, b64.EncodeToString([]byte(`{"alg":"none"}`))), "unknown"},
		"something critical":        {replaced(c.Signatures[0].Protected, b64.EncodeToString([]byte(`{"alg":"EdDSA","crit":["b64"],"b64":false,"kid":"`+goldenKey+`"}`))), "unknown"},
		"an unknown key":            {replaced(c.Signatures[0].Protected, b64.EncodeToString([]byte(`{"alg":"EdDSA","kid":"did:web:x.example#1"}`))), "unknown"},
		"no base64":                 {replaced(c.Signatures[0].Protected, "%"), "unknown"},
		"an empty required member, by the letter": {signedAs(t, foreign, foreign), "proto"},
		"the same, without what is empty":         {signedAs(t, foreign, strings.Replace(foreign, `"organization":"",`, "", 1)), "clean"},
		"as it came":                              {signedAs(t, `{"x-y":[],`+goldenPayload[1:], canonicalText(t, `{"x-y":[],`+goldenPayload[1:])), "raw"},
		"no JSON":                                 {[]byte("{"), "error"},
		"one of two":                              {[]byte(strings.Replace(string(pure), `"signatures":[`, `"signatures":[{"protected":"e30","signature":"x"},`, 1)), "proto"},
		"a name twice":                            {[]byte(`{"name":"x",` + string(pure[1:])), "error"},
	} {
		if got := verificationOf(t, test.card); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func canonicalText(t *testing.T, text string) string {
	t.Helper()
	v, err := jcs.Decode([]byte(text), MaxCard)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jcs.Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// oldCard is a card of 0.3.
const oldCard = `{"protocolVersion":"0.3.0","name":"Old","description":"d","version":"1","url":"https://old.example/rpc","preferredTransport":"JSONRPC",
	"additionalInterfaces":[{"url":"https://old.example/rest","transport":"HTTP+JSON"},{"url":"https://old.example/rpc","transport":"JSONRPC"}],
	"capabilities":{"streaming":true,"stateTransitionHistory":true},"supportsAuthenticatedExtendedCard":true,
	"securitySchemes":{"key_1":{"type":"apiKey","in":"header","name":"X-Key"},"b":{"type":"http","scheme":"bearer"},
	"o":{"type":"oauth2","flows":{"clientCredentials":{"tokenUrl":"https://id.example/t","scopes":{"read_all":"x"}}}},
	"i":{"type":"openIdConnect","openIdConnectUrl":"https://id.example"},"m":{"type":"mutualTLS"}},
	"security":[{"key_1":[]},{"o":["read_all"]}],
	"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],
	"skills":[{"id":"s","name":"S","description":"x","tags":["t"],"security":[{"b":[]}]}]}`

func TestParseVersion03(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(oldCard))
	if err != nil {
		t.Fatal(err)
	}
	want := []Interface{{"https://old.example/rpc", JSONRPC, "0.3", ""}, {"https://old.example/rest", REST, "0.3", ""}}
	if len(c.Interfaces) != 2 || c.Interfaces[0] != want[0] || c.Interfaces[1] != want[1] {
		t.Errorf("the interfaces are %+v", c.Interfaces)
	}
	if !Supported(c.Capabilities.Streaming) || !Supported(c.Capabilities.ExtendedCard) || Supported(c.Capabilities.Push) || len(c.Skills) != 1 || len(c.Skills[0].Requirements) != 1 {
		t.Errorf("the card is %+v", c)
	}
	if s := c.Schemes["key_1"].APIKey; s == nil || s.Location != "header" || s.Name != "X-Key" || c.Schemes["o"].OAuth2.Flows["clientCredentials"].TokenURL == "" ||
		c.Schemes["b"].HTTP == nil || c.Schemes["i"].OpenID == nil || c.Schemes["m"].MTLS == nil {
		t.Errorf("the schemes are %+v", c.Schemes)
	}
	if len(c.Requirements) != 2 || c.Requirements[1].Schemes["o"].List[0] != "read_all" {
		t.Errorf("the requirements are %+v", c.Requirements)
	}
	// The union has the members of the old card.
	union, err := Union(c)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		URL, PreferredTransport string
		SecuritySchemes         map[string]struct{ Type, In string }
		Security                []map[string][]string
	}
	if err := json.Unmarshal(union, &doc); err != nil || doc.URL != "https://old.example/rpc" || doc.PreferredTransport != JSONRPC ||
		doc.SecuritySchemes["key_1"].In != "header" || doc.SecuritySchemes["m"].Type != "mutualTLS" || len(doc.Security) != 2 || doc.Security[1]["o"][0] != "read_all" {
		t.Errorf("the union is %s, %v", union, err)
	}
}

func TestSnakeCase(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(`{"name":"x","supported_interfaces":[{"url":"https://x","protocol_binding":"JSONRPC","protocol_version":"1.0"}],
		"default_input_modes":["a/b"],"security_schemes":{"my_key":{"api_key_security_scheme":{"location":"query","name":"k"}}}}`))
	if err != nil || c.Interfaces[0].Binding != JSONRPC || c.InputModes[0] != "a/b" || c.Schemes["my_key"].APIKey == nil {
		t.Errorf("the card is %+v, %v", c, err)
	}
}

func TestUnusableCards(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, `[]`, `{}`, `{"name":"x"}`, `{"name":"x","supportedInterfaces":[]}`, `{"name":7,"url":"https://x"}`,
		strings.Repeat("[", 100), `{"name":"` + strings.Repeat("x", MaxCard) + `"}`} {
		if c, err := Parse([]byte(text)); err == nil {
			t.Errorf("%.40s is %+v", text, c)
		}
	}
}

// TestSignNormalizesEmptyValues signs a card with empty values: after Sign all forms of its payload are equal.
func TestSignNormalizesEmptyValues(t *testing.T) {
	t.Parallel()
	c := golden(t)
	c.Signatures = nil
	c.Provider = &Provider{URL: "https://x.example"}
	c.InputModes = append(c.InputModes, "")
	c.Skills[0].Name, c.Skills[0].Examples, c.Skills[0].InputModes = "", []string{"", "x"}, []string{}
	c.Capabilities.Extensions = []Extension{{URI: "https://x.example/e", Params: json.RawMessage(`{"a":"","b":[],"c":{"d":null},"e":[{}, 1.50],"f":false}`)}, {URI: "https://x.example/f", Params: json.RawMessage(`{}`)}, {Description: "x"}}
	if err := Sign(c, key(t)); err != nil {
		t.Fatal(err)
	}
	raw, err := c.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jcs.Object(raw, MaxCard)
	if err != nil {
		t.Fatal(err)
	}
	delete(doc, "signatures")
	forms := payloadsOf(doc)
	for _, p := range forms {
		if string(p.text) != string(forms[0].text) {
			t.Errorf("%s is %s\nnot %s", p.form, p.text, forms[0].text)
		}
	}
	if got := string(c.Capabilities.Extensions[0].Params); got != `{"e":[1.5],"f":false}` || len(c.Capabilities.Extensions) != 2 || c.Skills[0].Name != "echo" || c.Provider != nil {
		t.Errorf("the card is %s", raw)
	}
}

func FuzzCard(f *testing.F) {
	f.Add([]byte(oldCard))
	signed, err := golden(f).Bytes()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, _ = Verify(t.Context(), raw, did.Keys())
		c, err := Parse(raw)
		if err != nil {
			return
		}
		c.Schemes, c.Requirements, c.Version, c.Description = nil, nil, "1", "d" // as in cards of a node
		c.InputModes, c.OutputModes = []string{"a/b"}, []string{"a/b", ""}
		for i := range c.Skills {
			c.Skills[i].Requirements, c.Skills[i].ID, c.Skills[i].Description, c.Skills[i].Tags = nil, "s", "d", []string{"t"}
		}
		c.Skills = append(c.Skills, Skill{ID: "s", Description: "d", Tags: []string{"t"}})
		c.Interfaces, c.Capabilities.Streaming = []Interface{{"https://x", JSONRPC, "1.0", ""}}, new(bool)
		if err := Sign(c, key(t)); err != nil {
			return // not encodable as JCS
		}
		union, err := Union(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(union) > MaxCard {
			return
		}
		c.Signatures = c.Signatures[len(c.Signatures)-1:]
		union, err = Union(c)
		if err == nil {
			if v, err := Verify(t.Context(), union, did.Keys()); err != nil || v.Form != "proto" {
				t.Errorf("%s: %v %v", union, v, err)
			}
		}
	})
}
