package tokens

import (
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// Limits of a token.
const (
	maxScope  = 256 // bytes of a scope
	maxScopes = 64
	maxRoles  = 16
)

// all is the operation of a scope that permits every operation.
const all access.Op = "*"

// Operations are the operations of scopes. "call" is read, write, invoke and subscribe, "*" is every operation.
func Operations() []string {
	return []string{string(access.Find), string(access.Read), string(access.Write), string(access.Invoke), string(access.Subscribe),
		string(access.Call), string(access.Manage), string(all)}
}

// A Scope is one right of a token: an operation, on all Things or on some. Its text is "invoke", "invoke:weather" or
// "invoke:weather/getWeather".
type Scope struct {
	// Op is one of [Operations].
	Op access.Op
	// On is what access rules name (access.Rule.On): a name or an id of a Thing, a name with an affordance, "cap:" with a capability, or
	// "node". Empty: every Thing, and the node.
	On string
}

// ParseScope parses the text of a scope: at most 256 printable ASCII characters without spaces, quotes and backslashes (RFC 6749 §3.3). The
// error is an [*interact.Error] of code Usage.
func ParseScope(text string) (Scope, error) {
	op, on, named := strings.Cut(text, ":")
	s := Scope{access.Op(op), on}
	switch {
	case len(text) > maxScope:
		return Scope{}, scopeError("expected at most %d bytes, got %d", maxScope, len(text))
	case strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) >= 0:
		return Scope{}, scopeError("a scope has no spaces, quotes, backslashes and letters beyond ASCII, got %q", text)
	case !isOperation(op):
		return Scope{}, scopeError("unknown operation %q in the scope %q", op, text)
	case named && (on == "" || strings.HasPrefix(on, "/")):
		return Scope{}, scopeError("the scope %q names no agent", text)
	case on == "*":
		s.On = ""
	}
	return s, nil
}

func scopeError(format string, args ...any) error {
	return interact.Errorf(interact.Usage, "a scope is one of "+strings.Join(Operations(), ", ")+", optionally with an agent and an affordance: "+
		"invoke:weather/getWeather", format, args...)
}

func isOperation(op string) bool {
	for _, known := range Operations() {
		if op == known {
			return true
		}
	}
	return false
}

// String returns the text of a scope.
func (s Scope) String() string {
	if s.On == "" {
		return string(s.Op)
	}
	return string(s.Op) + ":" + s.On
}

// MarshalText implements [encoding.TextMarshaler].
func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Scope) UnmarshalText(text []byte) (err error) {
	*s, err = ParseScope(string(text))
	return err
}

// Rules returns the access rules that permit a caller, as rules name it, what a scope permits. A caller that may call a part of a Thing may find the Thing.
func (s Scope) Rules(caller string) []access.Rule {
	rule := func(op access.Op, on string) access.Rule {
		r := access.Rule{Allow: []string{caller}, To: []string{string(op)}}
		if on != "" {
			r.On = []string{on}
		}
		return r
	}
	thing := s.On
	if !strings.Contains(thing, ":") { // else an id or a capability
		thing, _, _ = strings.Cut(thing, "/")
	}
	switch s.Op {
	case access.Find:
		return []access.Rule{rule(access.Find, thing)}
	case access.Manage, all:
		return []access.Rule{rule(s.Op, s.On)}
	}
	return []access.Rule{rule(s.Op, s.On), rule(access.Find, thing)}
}

// isCall reports whether a scope permits to call a Thing in some way.
func (s Scope) isCall() bool { return s.Op != access.Find && s.Op != access.Manage }

// CheckRoles checks the roles of a token: words of [a-z0-9._-], at most 64 characters, the first of which is a letter or digit.
func CheckRoles(roles []string) error {
	if len(roles) > maxRoles {
		return interact.Errorf(interact.Usage, "give fewer roles", "expected at most %d roles, got %d", maxRoles, len(roles))
	}
	seen := map[string]bool{}
	for _, role := range roles {
		switch {
		case !isWord(role) || strings.ContainsRune("._-", rune(role[0])):
			return interact.Errorf(interact.Usage, "use lower-case letters, digits, dots, hyphens and underscores, at most 64", "invalid role %q", role)
		case seen[role]:
			return interact.Errorf(interact.Usage, "give it once", "the role %q is given twice", role)
		}
		seen[role] = true
	}
	return nil
}

// isWord reports whether text is 1 to 64 of [a-z0-9._-].
func isWord(text string) bool {
	return text != "" && len(text) <= 64 && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}
