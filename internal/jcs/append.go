package jcs

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
)

// Append appends the canonical form of v to dst (RFC 8785 §3.2). v consists of nil, bool, float64, string, []any and
// map[string]any, as [Decode] returns them. Anything else, NaN, an infinity, a string that is not UTF-8, and nesting
// beyond [maxDepth] are errors; dst is then returned as it was. Append does not change v and is safe for concurrent use.
func Append(dst []byte, v any) ([]byte, error) {
	room := rooms.Get().(*[]member)
	e := encoder{dst: dst, members: (*room)[:0]}
	err := e.value(v, 0)
	if cap(e.members) <= maxRoom {
		clear(e.members[:cap(e.members)]) // release the written values
		*room = e.members[:0]
		rooms.Put(room)
	}
	if err != nil {
		return dst, err
	}
	return e.dst, nil
}

// rooms has stacks for encoders, which are larger than most values.
var rooms = sync.Pool{New: func() any { return new(make([]member, 0, 48)) }}

// maxRoom is the maximum length of a kept stack.
const maxRoom = 256

// An encoder writes to dst. members is a stack: an object pushes its members, sorts them, and pops them when it is
// written.
type encoder struct {
	dst     []byte
	members []member
}

type member struct {
	name  string
	value any
}

func (e *encoder) value(v any, depth int) error {
	switch v := v.(type) {
	case nil:
		e.dst = append(e.dst, "null"...)
	case bool:
		e.dst = strconv.AppendBool(e.dst, v)
	case float64:
		return e.number(v)
	case string:
		return e.str(v)
	case []any:
		return e.array(v, depth+1)
	case map[string]any:
		return e.object(v, depth+1)
	default:
		return fmt.Errorf("canonical JSON of a %T: want nil, bool, float64, string, []any or map[string]any", v)
	}
	return nil
}

func tooDeep(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("canonical JSON: nested deeper than %d levels", maxDepth)
	}
	return nil
}

func (e *encoder) array(a []any, depth int) error {
	if err := tooDeep(depth); err != nil {
		return err
	}
	e.dst = append(e.dst, '[')
	for i, v := range a {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		if err := e.value(v, depth); err != nil {
			return err
		}
	}
	e.dst = append(e.dst, ']')
	return nil
}

func (e *encoder) object(m map[string]any, depth int) error {
	if err := tooDeep(depth); err != nil {
		return err
	}
	base := len(e.members)
	for name, v := range m {
		e.members = append(e.members, member{name, v})
	}
	mine := e.members[base:]
	slices.SortFunc(mine, func(a, b member) int { return compareNames(a.name, b.name) })
	e.dst = append(e.dst, '{')
	for i := range mine {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		if err := e.str(mine[i].name); err != nil {
			return err
		}
		e.dst = append(e.dst, ':')
		if err := e.value(mine[i].value, depth); err != nil {
			return err
		}
	}
	e.dst = append(e.dst, '}')
	e.members = e.members[:base]
	return nil
}

// compareNames orders names by their UTF-16 code units (RFC 8785 §3.2.3). That is the order of their UTF-8 bytes, but
// for characters above U+FFFF: their surrogates (D800–DFFF) come before U+E000–U+FFFF, while their lead byte (F0–F4)
// comes after EE and EF. Bytes from EE on are lead bytes, so the first difference decides.
func compareNames(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			return int(y) - int(x)
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// str writes a string with the escapes of RFC 8785 §3.2.2.2, and no others.
func (e *encoder) str(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("canonical JSON: the string %+q is not UTF-8", shorten(s))
	}
	e.dst = append(e.dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' {
			e.dst = append(e.dst, s[start:i]...)
			e.escape(c)
			start = i + 1
		}
	}
	e.dst = append(e.dst, s[start:]...)
	e.dst = append(e.dst, '"')
	return nil
}

func (e *encoder) escape(c byte) {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		e.dst = append(e.dst, '\\', c)
	case '\b':
		e.dst = append(e.dst, `\b`...)
	case '\t':
		e.dst = append(e.dst, `\t`...)
	case '\n':
		e.dst = append(e.dst, `\n`...)
	case '\f':
		e.dst = append(e.dst, `\f`...)
	case '\r':
		e.dst = append(e.dst, `\r`...)
	default:
		e.dst = append(e.dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
	}
}

// number writes f like ECMAScript's Number::toString (RFC 8785 §3.2.2.3).
func (e *encoder) number(f float64) error {
	switch abs := math.Abs(f); {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return fmt.Errorf("canonical JSON: %v is not a JSON number", f)
	case f == 0: // -0 too
		e.dst = append(e.dst, '0')
	case f == math.Trunc(f) && abs < 1<<53:
		e.dst = strconv.AppendInt(e.dst, int64(f), 10)
	case 1e-6 <= abs && abs < 1e21:
		e.dst = strconv.AppendFloat(e.dst, f, 'f', -1, 64)
	default:
		e.dst = strconv.AppendFloat(e.dst, f, 'e', -1, 64)
		// Go writes at least two digits of exponent: 1e-09 becomes 1e-9.
		if n := len(e.dst); e.dst[n-2] == '0' && !isDigit(e.dst[n-3]) {
			e.dst = append(e.dst[:n-2], e.dst[n-1])
		}
	}
	return nil
}
