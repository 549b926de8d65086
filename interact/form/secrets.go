package form

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td/schema"
)

// A secret is a value that a security scheme puts into an HTTP request.
type secret struct{ in, name, value string }

// Secrets are the credentials for a form. Those of the schemes basic, bearer and apikey are parts of an HTTP request.
type Secrets struct {
	// Login is a user name with a password or a pre-shared key, for a protocol that has them in its own messages ([Security.Add]).
	Login credentials.Credential
	list  []secret
	// hidden are the texts that must not appear in an error, even if the agent echoes them.
	hidden []string
}

// Sum distinguishes secrets without revealing them.
func (s *Secrets) Sum() [sha256.Size]byte { return sha256.Sum256(fmt.Append(nil, s.list)) }

// Add adds the credential of a scheme at the position that the scheme declares. The error is an [*interact.Error].
func (s *Secrets) Add(by *Scheme) error {
	found, err := by.credential()
	if err != nil {
		return err
	}
	return s.put(by, found)
}

// AddLogin sets the login to the credential of a scheme.
func (s *Secrets) AddLogin(by *Scheme) error {
	found, err := by.credential()
	if err == nil {
		s.Login = found
	}
	return err
}

func (s *Secrets) put(by *Scheme, found credentials.Credential) error {
	add := secret{in: by.In, name: by.Name}
	switch by.Scheme {
	case "basic": // RFC 7617
		pair := base64.StdEncoding.EncodeToString([]byte(found.Username + ":" + found.Password))
		add.value = "Basic " + pair
		s.hidden = append(s.hidden, found.Password, pair)
	case "bearer": // RFC 6750: the prefix belongs to the header only
		add.value = found.Token
		if add.in == "" || add.in == "header" {
			add.value = "Bearer " + found.Token
		}
		s.hidden = append(s.hidden, found.Token)
	case "apikey":
		add.value = found.Key
	}
	add.in = cmp.Or(add.in, "header")
	if add.in == "header" && add.name == "" && by.Scheme != "apikey" {
		add.name = "Authorization"
	}
	if !add.isPossible(by) {
		return interact.Errorf(interact.BadTD,
			`set a position in securityDefinitions, e.g. "in": "header", "name": "X-API-Key"`,
			"%s: the value of the security scheme %q cannot go to in %q, name %q", by.what(), interact.Clip(by.Ref, 100),
			interact.Clip(add.in, 40), interact.Clip(add.name, 100))
	}
	s.list, s.hidden = append(s.list, add), append(s.hidden, add.value)
	return nil
}

// Hide makes value a secret that must not appear in an error.
func (s *Secrets) Hide(value string) {
	if !slices.Contains(s.hidden, value) {
		s.hidden = append(s.hidden, value)
	}
}

// isPossible reports whether the binding can send the secret at its position.
func (s secret) isPossible(by *Scheme) bool {
	if slices.Contains(by.by.NotIn, s.in) {
		return false
	}
	switch s.in {
	case "header":
		return HeaderOK(s.name, s.value)
	case "cookie":
		return HeaderOK(s.name, s.value) && by.Scheme != "basic" && !strings.ContainsAny(s.value, "; ,\"\\")
	case "query", "body", "uri":
		return s.name != "" && by.Scheme != "basic"
	}
	return false
}

// Variables returns vars with the secrets that are variables of the address (in: uri).
func (s *Secrets) Variables(vars map[string][]string) map[string][]string {
	for _, x := range s.list {
		if x.in == "uri" {
			vars = maps.Clone(vars)
			if vars == nil {
				vars = map[string][]string{}
			}
			vars[x.name] = []string{x.value}
		}
	}
	return vars
}

// Apply puts the secrets into a header, its cookies, and the query of u.
func (s *Secrets) Apply(h http.Header, u *url.URL) {
	for _, x := range s.list {
		switch x.in {
		case "header":
			h.Set(x.name, x.value)
		case "cookie":
			cookies := append(h["Cookie"], x.name+"="+x.value)
			h.Set("Cookie", strings.Join(cookies, "; ")) // RFC 6265 §5.4: one field
		case "query":
			if u.RawQuery != "" {
				u.RawQuery += "&"
			}
			u.RawQuery += url.QueryEscape(x.name) + "=" + url.QueryEscape(x.value)
		}
	}
}

// IsEmpty reports whether s puts nothing into a request.
func (s *Secrets) IsEmpty() bool { return len(s.list) == 0 }

// InBody reports whether a secret is a member of the body.
func (s *Secrets) InBody() bool {
	return slices.ContainsFunc(s.list, func(x secret) bool { return x.in == "body" })
}

// Fill adds the secrets that are members of the body to body, which is JSON.
func (s *Secrets) Fill(body []byte) ([]byte, error) {
	for _, x := range s.list {
		if x.in != "body" {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber() // numbers of the consumer keep their digits
		var v any
		if len(body) == 0 {
			v = map[string]any{}
		} else if err := d.Decode(&v); err != nil {
			return nil, &interact.Error{Code: interact.Invalid, Err: err}
		}
		if !place(v, bodyPointer(x.name), x.value) {
			return nil, interact.Errorf(interact.Invalid, "send an object",
				"the security scheme requires an object as body, for its member %s", x.name)
		}
		var err error
		if body, err = json.Marshal(v); err != nil {
			return nil, &interact.Error{Code: interact.Internal, Err: err}
		}
	}
	return body, nil
}

// bodyPointer returns the JSON pointer of a name with in: body; a name that is not a pointer is a member of the body.
func bodyPointer(name string) string {
	name = strings.TrimPrefix(name, "#")
	if !strings.HasPrefix(name, "/") {
		return schema.Pointer(name)
	}
	return name
}

// Scrubbed replaces a text that repeats a secret.
const Scrubbed = "(text removed: it repeats a secret)"

// Scrub returns the text of an agent, or [Scrubbed] if it repeats a secret: to remove only the secret would show its position.
func (s *Secrets) Scrub(text string) string {
	if s.isRepeatedIn(text) {
		return Scrubbed
	}
	return text
}

// IsRepeatedIn reports whether an error contains a secret.
func (s *Secrets) IsRepeatedIn(e *interact.Error) bool {
	return s.isRepeatedIn(fmt.Sprint(e.Error(), e.Hint, e.Next, e.Issues))
}

func (s *Secrets) isRepeatedIn(text string) bool {
	for _, h := range s.hidden {
		for _, spelling := range []string{h, url.QueryEscape(h), url.PathEscape(h)} {
			if spelling != "" && strings.Contains(text, spelling) {
				return true
			}
		}
	}
	return false
}

// HeaderOK reports whether a header field is valid (RFC 9110 §5.1, §5.5).
func HeaderOK(name, value string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return name != ""
}
