package ucan

import (
	"bytes"
	"cmp"
	"math/big"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/cbor"
)

// Bounds of policies. The last one limits the time of a check: values that are visited, for all policies of a chain.
const (
	maxPolicyDepth = 32
	maxStatements  = 256
	maxSteps       = 1 << 16
)

// A Policy is a list of statements about the arguments of an invocation, which must all be true. It is immutable. The zero value is true.
type Policy struct {
	source     []any
	statements []statement
}

// A statement is one of a policy, with its selector parsed.
type statement struct {
	op       string
	selector selector
	value    any         // of comparisons
	pattern  []string    // of like: the texts between its stars
	of       []statement // of and, or, not, all, any
}

// NewPolicy reads a policy in the form of UCAN, for example
//
//	[]any{[]any{"<=", ".amount", 100}}
//
// The error wraps [InvalidClaim], or [TooLarge] for more than 256 statements or 32 levels.
func NewPolicy(source []any) (Policy, error) {
	b, err := cbor.MarshalDAG(source)
	if err != nil {
		return Policy{}, failed(InvalidClaim, CID{}, "%v", err)
	}
	v, err := cbor.UnmarshalDAG(b)
	if err != nil {
		return Policy{}, failed(InvalidClaim, CID{}, "%v", err)
	}
	return policyOf(v.([]any))
}

// policyOf reads a policy from decoded DAG-CBOR.
func policyOf(source []any) (Policy, error) {
	p := policyParser{}
	statements, err := p.list(source, 1)
	return Policy{source: source, statements: statements}, err
}

// Source returns the policy in the form of UCAN. The caller must not change it.
func (p Policy) Source() []any { return p.source }

// A policyParser counts the statements of a policy.
type policyParser struct{ count int }

func (p *policyParser) list(source []any, depth int) ([]statement, error) {
	statements := make([]statement, len(source))
	for i, v := range source {
		var err error
		if statements[i], err = p.statement(v, depth); err != nil {
			return nil, err
		}
	}
	return statements, nil
}

func (p *policyParser) statement(source any, depth int) (statement, error) {
	if p.count++; p.count > maxStatements || depth > maxPolicyDepth {
		return statement{}, failed(TooLarge, CID{}, "a policy with more than %d statements or %d levels", maxStatements, maxPolicyDepth)
	}
	parts, _ := source.([]any)
	if len(parts) == 0 {
		return statement{}, badStatement(source)
	}
	op, _ := parts[0].(string)
	switch {
	case len(parts) == 2 && (op == "and" || op == "or"):
		list, ok := parts[1].([]any)
		if !ok {
			return statement{}, badStatement(source)
		}
		of, err := p.list(list, depth+1)
		return statement{op: op, of: of}, err
	case len(parts) == 2 && op == "not":
		of, err := p.list(parts[1:], depth+1)
		return statement{op: op, of: of}, err
	case len(parts) == 3:
		return p.selected(op, parts, depth)
	}
	return statement{}, badStatement(source)
}

// selected reads a statement with a selector.
func (p *policyParser) selected(op string, parts []any, depth int) (statement, error) {
	text, ok := parts[1].(string)
	if !ok {
		return statement{}, badStatement(parts)
	}
	selector, err := parseSelector(text)
	if err != nil {
		return statement{}, err
	}
	s := statement{op: op, selector: selector, value: parts[2]}
	switch op {
	case "==", "!=":
		return s, nil
	case "<", "<=", ">", ">=":
		if _, ok := compare(s.value, s.value); ok {
			return s, nil
		}
	case "like":
		if glob, ok := s.value.(string); ok {
			s.pattern = splitGlob(glob)
			return s, nil
		}
	case "all", "any":
		s.value = nil
		s.of, err = p.list(parts[2:], depth+1)
		return s, err
	}
	return statement{}, badStatement(parts)
}

func badStatement(source any) error {
	return failed(InvalidClaim, CID{}, "%.80q is not a statement of a policy", source)
}

// splitGlob returns the texts between the stars of a pattern. \* is a star of the text.
func splitGlob(glob string) []string {
	var parts []string
	var part strings.Builder
	for i := 0; i < len(glob); i++ {
		switch {
		case glob[i] == '*':
			parts = append(parts, part.String())
			part.Reset()
		case strings.HasPrefix(glob[i:], `\*`):
			part.WriteByte('*')
			i++
		default:
			part.WriteByte(glob[i])
		}
	}
	return append(parts, part.String())
}

// like reports whether the whole of text matches. The leftmost place of each part leaves the most text to those after it.
func like(parts []string, text string) bool {
	text, ok := strings.CutPrefix(text, parts[0])
	if len(parts) == 1 {
		return ok && text == ""
	}
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, parts[last])
}

// A match evaluates policies on the arguments of one invocation, and counts its steps. With more than maxSteps its result has no meaning.
type match struct{ steps int }

func (m *match) all(statements []statement, v any) bool {
	return !slices.ContainsFunc(statements, func(s statement) bool { return !m.holds(s, v) })
}

// holds evaluates one statement. A statement whose selector cannot be resolved is false, also of !=.
func (m *match) holds(s statement, v any) bool {
	if m.steps++; m.steps > maxSteps {
		return false
	}
	switch s.op {
	case "and":
		return m.all(s.of, v)
	case "or":
		return len(s.of) == 0 || slices.ContainsFunc(s.of, func(s statement) bool { return m.holds(s, v) })
	case "not":
		return !m.holds(s.of[0], v)
	}
	found, ok := s.selector.find(v, &m.steps)
	if !ok {
		return false
	}
	switch s.op {
	case "==":
		return m.equal(found, s.value)
	case "!=":
		return !m.equal(found, s.value)
	case "like":
		text, ok := found.(string)
		return ok && like(s.pattern, text)
	case "all", "any":
		return m.quantified(s, found)
	}
	order, ok := compare(found, s.value)
	return ok && (order < 0 && s.op[0] == '<' || order > 0 && s.op[0] == '>' || order == 0 && len(s.op) == 2)
}

// quantified evaluates all or any on the elements of a list or the values of a map.
func (m *match) quantified(s statement, v any) bool {
	if object, ok := v.(map[string]any); ok {
		m.steps += len(object)
		v = values(object)
	}
	list, ok := v.([]any)
	if !ok {
		return false
	}
	want := s.op == "any"
	found := slices.ContainsFunc(list, func(e any) bool { return m.holds(s.of[0], e) == want })
	return found == want
}

// equal compares deeply. 1 and 1.0 are equal.
func (m *match) equal(a, b any) bool {
	if m.steps++; m.steps > maxSteps {
		return false
	}
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, m.equal)
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if other, ok := b[k]; !ok || !m.equal(v, other) {
				return false
			}
		}
		return true
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	case cbor.Link:
		b, ok := b.(cbor.Link)
		return ok && bytes.Equal(a, b)
	case int64, float64:
		order, ok := compare(a, b)
		return ok && order == 0
	}
	switch b.(type) {
	case nil, bool, string:
		return a == b
	}
	return false
}

// compare compares two numbers exactly. It returns false if one is not a number.
func compare(a, b any) (int, bool) {
	x, okX := a.(int64)
	y, okY := b.(int64)
	if okX && okY {
		return cmp.Compare(x, y), true
	}
	u, okU := number(a)
	w, okW := number(b)
	if !okU || !okW {
		return 0, false
	}
	return u.Cmp(w), true
}

// number returns the value of a number. DAG-CBOR has neither NaN nor infinities.
func number(v any) (*big.Float, bool) {
	switch v := v.(type) {
	case int64:
		return new(big.Float).SetInt64(v), true
	case float64:
		return big.NewFloat(v), true
	}
	return nil, false
}
