package form

import (
	"errors"
	"strconv"
	"strings"
)

// A template is a URI template of RFC 6570 whose variables are strings or lists of strings ([td.Schema.Elements]). The known Go module
// for templates is not used, because it escapes the code points of characters beyond ASCII and not their UTF-8 (RFC 6570 §1.6).
type template []piece

// A piece is literal text, or an expression if it has variables.
type piece struct {
	text string
	operator
	vars []variable
}

// A variable is one name in an expression. prefix is the number of characters to use; 0 means all. An exploded variable repeats its name
// for each value of a list.
type variable struct {
	name     string
	prefix   int
	explodes bool
}

// An operator is a row of the table in RFC 6570, Appendix A.
type operator struct {
	first, sep string
	named      bool
	empty      string // after a name without a value
	reserved   bool   // reserved characters and escapes stay
}

var operators = map[byte]operator{
	'+': {sep: ",", reserved: true},
	'#': {first: "#", sep: ",", reserved: true},
	'.': {first: ".", sep: "."},
	'/': {first: "/", sep: "/"},
	';': {first: ";", sep: ";", named: true},
	'?': {first: "?", sep: "&", named: true, empty: "="},
	'&': {first: "&", sep: "&", named: true, empty: "="},
}

var errTemplate = errors.New("is not a URI template (RFC 6570)")

// parseTemplate reads a template.
func parseTemplate(text string) (template, error) {
	var t template
	for text != "" {
		literal, rest, open := strings.Cut(text, "{")
		if strings.Contains(literal, "}") {
			return nil, errTemplate
		}
		t = append(t, piece{text: literal})
		if !open {
			break
		}
		expression, after, closed := strings.Cut(rest, "}")
		p, err := parseExpression(expression)
		if err != nil || !closed {
			return nil, errTemplate
		}
		t, text = append(t, p), after
	}
	return t, nil
}

func parseExpression(text string) (piece, error) {
	if text == "" {
		return piece{}, errTemplate
	}
	p := piece{operator: operator{sep: ","}}
	if op, ok := operators[text[0]]; ok {
		p.operator, text = op, text[1:]
	}
	for spec := range strings.SplitSeq(text, ",") {
		spec, explodes := strings.CutSuffix(spec, "*") // a string explodes to itself
		name, prefix, cut := strings.Cut(spec, ":")
		v := variable{name: name, explodes: explodes}
		if cut {
			n, err := strconv.ParseUint(prefix, 10, 16)
			if err != nil || n == 0 || n >= 10000 { // RFC 6570 §2.4.1
				return piece{}, errTemplate
			}
			v.prefix = int(n)
		}
		if !isVariableName(name) {
			return piece{}, errTemplate
		}
		p.vars = append(p.vars, v)
	}
	return p, nil
}

// isVariableName follows RFC 6570 §2.3, and also accepts the hyphen, which is common.
func isVariableName(name string) bool {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.%-", r))
	}
	return name != "" && strings.IndexFunc(name, odd) < 0
}

// expand returns the template with values. A variable without a value expands to nothing (RFC 6570 §3.2.1). A list is joined by commas;
// an exploded variable expands each value of a list separately.
func (t template) expand(values map[string][]string) string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.text)
		lead := p.first
		for _, v := range p.vars {
			for i, value := range values[v.name] {
				switch joined := i > 0 && !v.explodes; {
				case joined:
					b.WriteByte(',')
				default:
					b.WriteString(lead)
					lead = p.sep
					p.begin(&b, v.name, value == "" && (v.explodes || len(values[v.name]) == 1))
				}
				if len(values[v.name]) == 1 {
					value = v.cut(value)
				}
				escapeValue(&b, value, p.reserved)
			}
		}
	}
	return b.String()
}

// begin writes the name before a value, if the operator has names.
func (o operator) begin(b *strings.Builder, name string, empty bool) {
	switch {
	case !o.named:
	case empty:
		b.WriteString(name + o.empty)
	default:
		b.WriteString(name + "=")
	}
}

// required lists the required variables: those outside query and fragment, because a path is incomplete without them.
func (t template) required() []string {
	var names []string
	for _, p := range t {
		if p.first == "?" || p.first == "&" || p.first == "#" {
			continue
		}
		for _, v := range p.vars {
			names = append(names, v.name)
		}
	}
	return names
}

func (v variable) cut(value string) string {
	if v.prefix == 0 {
		return value
	}
	n := 0
	for i := range value {
		if n == v.prefix {
			return value[:i]
		}
		n++
	}
	return value
}

// escapeValue writes value and escapes all characters except the unreserved ones (RFC 3986 §2.3) and, if reserved is set, the reserved
// ones and escapes (RFC 6570 §3.2.3).
func escapeValue(b *strings.Builder, value string, reserved bool) {
	const hex = "0123456789ABCDEF"
	for i := range len(value) {
		c := value[i]
		switch {
		case isUnreserved(c), reserved && strings.IndexByte(":/?#[]@!$&'()*+,;=", c) >= 0, reserved && isEscape(value[i:]):
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func isEscape(s string) bool {
	isHex := func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
	return len(s) >= 3 && s[0] == '%' && isHex(s[1]) && isHex(s[2])
}
