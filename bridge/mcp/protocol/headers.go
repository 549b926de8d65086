package protocol

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// Delimiters of base64 values, for text that header fields cannot contain (MCP 2026-07-28, "Streamable HTTP", "Value encoding").
const (
	codedPrefix = "=?base64?"
	codedSuffix = "?="
)

// DecodeHeader decodes the value of a header. The error has the code [HeaderMismatch].
func DecodeHeader(value string) (string, *Error) {
	value = strings.Trim(value, " \t")
	inner, coded := strings.CutPrefix(value, codedPrefix)
	inner, ended := strings.CutSuffix(inner, codedSuffix)
	if !coded || !ended {
		return value, nil
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(inner)
	if err != nil {
		return "", Errorf(HeaderMismatch, "invalid base64 between %s and %s in a header value", codedPrefix, codedSuffix)
	}
	return string(raw), nil
}

// A Param is an argument of a tool that the header "Mcp-Param-" + Header repeats, for proxies.
type Param struct {
	Header string
	Path   []string // member names, from the arguments down
}

const (
	maxNested = 64 // levels of a schema that are searched
	maxParams = 64
)

// token matches a header field name (RFC 9110 §5.6.2).
var token = lazyregexp.New("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// Params returns the arguments of a tool that headers repeat, according to the x-mcp-header members of its input schema, sorted by
// header. An invalid annotation is an error: HTTP clients leave out such a tool (MCP 2026-07-28, "Custom headers from tool parameters").
func Params(schema json.RawMessage) ([]Param, error) {
	if !strings.Contains(string(schema), "x-mcp-header") {
		return nil, nil
	}
	var root any
	if err := json.Unmarshal(schema, &root); err != nil {
		return nil, err
	}
	a := annotations{}
	if err := a.read(root, nil, true, 0); err != nil {
		return nil, err
	}
	slices.SortFunc(a.all, func(x, y Param) int { return strings.Compare(x.Header, y.Header) })
	for i := 1; i < len(a.all); i++ {
		if strings.EqualFold(a.all[i-1].Header, a.all[i].Header) {
			return nil, fmt.Errorf("duplicate x-mcp-header %q", a.all[i].Header)
		}
	}
	return a.all, nil
}

type annotations struct{ all []Param }

// read collects the annotations of a schema. The parameter plain reports whether the path contains only properties, so that the schema
// describes exactly one argument.
func (a *annotations) read(schema any, path []string, plain bool, depth int) error {
	if depth > maxNested {
		return fmt.Errorf("schema has more than %d levels", maxNested)
	}
	if list, ok := schema.([]any); ok {
		for _, one := range list {
			if err := a.read(one, path, false, depth+1); err != nil {
				return err
			}
		}
	}
	s, _ := schema.(map[string]any)
	if name, there := s["x-mcp-header"]; there {
		if err := a.add(name, s["type"], path, plain); err != nil {
			return err
		}
	}
	for key, value := range s {
		var err error
		switch key {
		case "properties":
			err = a.properties(value, path, plain, depth)
		case "patternProperties", "$defs", "definitions", "dependentSchemas":
			err = a.properties(value, path, false, depth)
		case "enum", "const", "default", "examples": // contain values, not schemas
		default:
			err = a.read(value, path, false, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *annotations) properties(value any, path []string, plain bool, depth int) error {
	named, _ := value.(map[string]any)
	for name, schema := range named {
		if err := a.read(schema, append(slices.Clone(path), name), plain, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (a *annotations) add(header, kind any, path []string, plain bool) error {
	name, _ := header.(string)
	switch {
	case !token().MatchString(name):
		return fmt.Errorf("x-mcp-header %v is not a valid header field name", header)
	case !plain || len(path) == 0:
		return fmt.Errorf("x-mcp-header %q does not belong to a single argument", name)
	case kind != "string" && kind != "integer" && kind != "boolean":
		return fmt.Errorf("x-mcp-header %q has type %v: expected string, integer or boolean", name, kind)
	case len(a.all) == maxParams:
		return errors.New("too many x-mcp-header annotations")
	}
	a.all = append(a.all, Param{name, path})
	return nil
}

// HeaderMatches reports whether the value of a header equals the argument that it repeats. Numbers are compared as numbers.
func HeaderMatches(header string, argument json.RawMessage) bool {
	var text string
	if json.Unmarshal(argument, &text) == nil {
		return header == text
	}
	if header == string(argument) {
		return true
	}
	if len(header) > 64 || len(argument) > 64 || strings.ContainsAny(header, "/eEpP_xXoObB") || strings.ContainsAny(string(argument), "eE") {
		return false
	}
	a, okA := new(big.Rat).SetString(header)
	b, okB := new(big.Rat).SetString(string(argument))
	return okA && okB && a.Cmp(b) == 0
}
