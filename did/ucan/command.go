package ucan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxCommand limits a command, in bytes. The specification sets no limit.
const maxCommand = 4096

// A Command is a path like "/lmos/invoke/logistics/track". A delegation of a command covers the commands below it; "/" covers all.
type Command string

// ParseCommand reads a command: it begins with a slash, is lower case, and has neither empty segments nor a slash at its end. The error
// wraps [InvalidClaim].
func ParseCommand(s string) (Command, error) {
	switch {
	case !strings.HasPrefix(s, "/"), len(s) > maxCommand, !utf8.ValidString(s), strings.ToLower(s) != s,
		s != "/" && strings.HasSuffix(s, "/"), strings.Contains(s, "//"):
		return "", failed(InvalidClaim, CID{}, "%.80q is not a command like /lmos/invoke/logistics/track", s)
	}
	return Command(s), nil
}

// Covers reports whether a delegation of c lets its audience use other.
func (c Command) Covers(other Command) bool {
	return c == "/" || c == other || strings.HasPrefix(string(other), string(c)+"/")
}

// ops are the operations of commands of lmosd.
var ops = []string{"invoke", "read", "write", "subscribe", "find"}

// An Action is what a command of lmosd lets its audience do.
type Action struct {
	Op    string // invoke, read, write, subscribe or find
	Thing string // name or id of the Thing; empty: all Things of the host
	Name  string // affordance; empty: all of the Thing. Always empty of find
}

// Command returns the command "/lmos/<op>/<thing>/<name>". Bytes of thing and name outside [a-z0-9._~-] are written as % and two
// hexadecimal digits, so that different names make different commands and a slash in a name does not begin a segment.
func (a Action) Command() (Command, error) {
	switch {
	case !slices.Contains(ops, a.Op):
		return "", failed(InvalidClaim, CID{}, "unknown operation %.80q, expected one of %s", a.Op, strings.Join(ops, ", "))
	case a.Name != "" && (a.Thing == "" || a.Op == "find"):
		return "", failed(InvalidClaim, CID{}, "%s of the affordance %.80q needs a Thing, and find has no affordance", a.Op, a.Name)
	}
	path := "/lmos/" + a.Op
	for _, segment := range []string{a.Thing, a.Name} {
		if segment != "" {
			path += "/" + escape(segment)
		}
	}
	return ParseCommand(path)
}

// ParseAction is the inverse of [Action.Command]. It refuses other spellings of an action. The error wraps [InvalidClaim].
func ParseAction(c Command) (Action, error) {
	bad := failed(InvalidClaim, CID{}, "%.80q is not a command /lmos/<op>/<thing>/<name>", c)
	path, ok := strings.CutPrefix(string(c), "/lmos/")
	segments := strings.Split(path, "/")
	if !ok || len(segments) > 3 {
		return Action{}, bad
	}
	for i := range segments[1:] {
		s, err := unescape(segments[i+1])
		if err != nil {
			return Action{}, bad
		}
		segments[i+1] = s
	}
	segments = append(segments, "", "")
	a := Action{Op: segments[0], Thing: segments[1], Name: segments[2]}
	if again, err := a.Command(); err != nil || again != c {
		return Action{}, bad
	}
	return a, nil
}

func escape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("._~-", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "%")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if len(after) < 2 {
			return "", strconv.ErrSyntax
		}
		c, err := strconv.ParseUint(after[:2], 16, 8)
		if err != nil {
			return "", err
		}
		b.WriteByte(byte(c))
		s = after[2:]
	}
}
