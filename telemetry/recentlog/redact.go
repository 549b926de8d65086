package recentlog

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// secretNames are the last words of the keys of attributes whose values are never kept.
var secretNames = []string{"token", "secret", "password", "passphrase", "authorization", "cookie", "apikey"}

// isSecret reports whether an attribute has a secret by its key: "access_token", "callerSecret".
func isSecret(key string) bool {
	key = strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
	return slices.ContainsFunc(secretNames, func(name string) bool { return strings.HasSuffix(key, name) })
}

// Forms of secrets in texts. Groups stay.
var (
	// Access tokens and invitations of lmosd, JSON Web Tokens, and private keys in PEM.
	secretForms = lazyregexp.New(`lmos_[0-9A-Za-z]{20,}|lmos-invite:\S+|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*-----|$)`)
	// Credentials in HTTP headers (RFC 6750, RFC 7617). Shorter words are words.
	headerForms = lazyregexp.New(`(?i)\b(bearer\s+)[\w.~+/=-]{8,}|\b(basic\s+)[\w+/=-]{12,}`)
	// Members of queries, forms and JSON with a secret as value.
	memberForms = lazyregexp.New(`(?i)\b([\w-]*(?:token|secret|password|passphrase|api[_-]?key|client_assertion|code_verifier)(?:=|\\?"\s*:\s*\\?"))[^\s"&,;}]+`)
	// The user of a URL (RFC 3986 §3.2.1).
	userForms = lazyregexp.New(`\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@"]+@`)
)

// Redact returns text with [Redacted] in place of what has the form of a secret: access tokens, invitations, JSON Web Tokens, private keys,
// credentials in headers and URLs, and values of members such as "client_secret".
func Redact(text string) string {
	text = secretForms().ReplaceAllString(text, Redacted)
	text = headerForms().ReplaceAllString(text, "${1}${2}"+Redacted)
	text = userForms().ReplaceAllString(text, "${1}"+Redacted+"@")
	return memberForms().ReplaceAllString(text, "${1}"+Redacted)
}
