package did

import (
	"errors"
	"fmt"
	"strings"
)

// MaxLength limits a DID, in bytes. DID Core sets no limit.
const MaxLength = 1024

// Parse reads a DID in its canonical spelling. A did:key must be "did:key:z6Mk…" with 48 characters after "did:key:", the only spelling of an
// Ed25519 key that can sign. Parse rejects the base64url form, a version, and keys of other algorithms. It checks other methods only against
// the syntax of DID Core §3.1. The error wraps [ErrInvalid].
func Parse(s string) (DID, error) {
	if strings.HasPrefix(s, keyPrefix) {
		if _, err := keyOf(s); err != nil {
			return "", err
		}
		return DID(s), nil
	}
	if err := checkSyntax(s); err != nil {
		return "", invalid(s, err.Error())
	}
	return DID(s), nil
}

// ParseForeign is [Parse] for the DIDs of foreign documents: it also accepts a did:key of any algorithm in its
// base58btc form. Such a DID may be resolved and displayed, but is never a principal of the mesh. The error wraps [ErrInvalid].
func ParseForeign(s string) (DID, error) {
	if !strings.HasPrefix(s, keyPrefix) || isEd25519(s) {
		return Parse(s)
	}
	if err := checkSyntax(s); err != nil {
		return "", invalid(s, err.Error())
	}
	b, err := DecodeBase58(s[len(keyPrefix):])
	if err != nil {
		return "", invalid(s, err.Error())
	}
	switch m, err := splitMultikey(b); {
	case err != nil:
		return "", invalid(s, err.Error())
	case m.keyType == Ed25519:
		return "", invalid(s, "not the canonical spelling of an Ed25519 key")
	}
	return DID(s), nil
}

// Method returns the method name, "key" of a did:key, or "" of the zero value.
func (d DID) Method() string {
	rest, _ := strings.CutPrefix(string(d), "did:")
	method, _, _ := strings.Cut(rest, ":")
	return method
}

// Multibase returns the key part of a did:key, "z6Mk…", or "" for any other method.
func (d DID) Multibase() string {
	if body, ok := strings.CutPrefix(string(d), keyPrefix); ok {
		return body
	}
	return ""
}

// Short returns a form for tables and logs, at most 25 characters: "z6MkpTHR…" for a did:key, else the DID without
// "did:", cut if it is long. It is not unique and cannot be parsed.
func (d DID) Short() string {
	if body := d.Multibase(); len(body) > 8 {
		return body[:8] + "…"
	}
	s := strings.TrimPrefix(string(d), "did:")
	if len(s) > 25 {
		return s[:24] + "…"
	}
	return s
}

// A URL is a DID URL (DID Core §3.2).
type URL struct {
	DID      DID
	Path     string // with its slash, or empty
	Query    string // without the question mark
	Fragment string // without the hash sign
}

// ParseURL reads an absolute DID URL, such as the id of a verification method. The URL of an Ed25519 did:key has neither path nor query, and
// its fragment, if it has one, names one of the two keys of its document: the key itself, or the X25519 key derived from it. The error wraps
// [ErrInvalid].
func ParseURL(s string) (URL, error) {
	if len(s) > 2*MaxLength {
		return URL{}, invalid(s, "too long for a DID URL")
	}
	rest, fragment, hasFragment := strings.Cut(s, "#")
	rest, query, hasQuery := strings.Cut(rest, "?")
	path := ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		rest, path = rest[:i], rest[i:]
	}
	id, err := ParseForeign(rest)
	if err != nil {
		return URL{}, err
	}
	u := URL{id, path, query, fragment}
	switch {
	case hasFragment && fragment == "" || hasQuery && query == "":
		return URL{}, invalid(s, "an empty fragment or query")
	case !isURLText(path, "/") || !isURLText(query, "/?") || !isURLText(fragment, "/?"):
		return URL{}, invalid(s, "a character that is not valid in a URL")
	}
	return u, u.checkKeyURL(s)
}

// String returns the text of the DID URL.
func (u URL) String() string {
	s := string(u.DID) + u.Path
	if u.Query != "" {
		s += "?" + u.Query
	}
	if u.Fragment != "" {
		s += "#" + u.Fragment
	}
	return s
}

// checkKeyURL applies the rules of did:key, whose document has only two keys.
func (u URL) checkKeyURL(s string) error {
	body := u.DID.Multibase()
	if !isEd25519(string(u.DID)) {
		return nil
	}
	if u.Path != "" || u.Query != "" {
		return invalid(s, "a did:key has no path and no query")
	}
	if u.Fragment == "" || u.Fragment == body {
		return nil
	}
	if pub, err := u.DID.Key(); err == nil {
		if x, err := Agreement(pub); err == nil && u.Fragment == agreementMultibase(x) {
			return nil
		}
	}
	return invalid(s, "the fragment is not a key of this did:key")
}

// checkSyntax checks s against the grammar of DID Core §3.1.
func checkSyntax(s string) error {
	rest, ok := strings.CutPrefix(s, "did:")
	method, id, found := strings.Cut(rest, ":")
	switch {
	case !ok:
		return errors.New(`a DID begins with "did:"`)
	case len(s) > MaxLength:
		return fmt.Errorf("%d bytes, the limit is %d", len(s), MaxLength)
	case !found || method == "" || strings.Trim(method, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
		return errors.New("a DID is did:METHOD:ID with a method of lower-case letters and digits")
	case id == "" || strings.HasSuffix(id, ":"):
		return errors.New("the part after the method is empty or ends in a colon")
	}
	return checkIDChars(id)
}

func checkIDChars(id string) error {
	for i := 0; i < len(id); i++ {
		switch c := id[i]; {
		case isAlnum(c) || c == '.' || c == '-' || c == '_' || c == ':':
		case c == '%' && i+2 < len(id) && isHex(id[i+1]) && isHex(id[i+2]):
			i += 2
		default:
			return fmt.Errorf("%q is not allowed at byte %d of the part after the method", c, i)
		}
	}
	return nil
}

// isURLText reports whether s has only the characters of RFC 3986 §3.3 (pchar) and those of extra.
func isURLText(s, extra string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case isAlnum(c) || strings.IndexByte("-._~!$&'()*+,;=:@", c) >= 0 || strings.IndexByte(extra, c) >= 0:
		case c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// invalid returns an error that wraps [ErrInvalid] and quotes s, cut to a length that fits a line.
func invalid(s, reason string) error {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return fmt.Errorf("%w %q: %s", ErrInvalid, s, reason)
}
