// Package openapi converts an OpenAPI document to a Thing Description with one action per operation.
//
// The result follows the WoT HTTP binding, and the rules by which interact/form fills it:
//
//   - name: the operationId, or without one the method and the path: "getPetsPetId".
//   - form: the server and the path with its parameters as a URI template, and the method (htv:methodName).
//   - uriVariables: the parameters of path and query, with their schemas. A list becomes one or several values (TD 1.1 has single values
//     only). Required parameters of the query have lmosd:required. A consumer provides the variables as members of the input, next to those
//     of the body; a body that is not an object is the member "value".
//   - input: the schema of the request's body. output: that of the first successful response with a schema.
//   - safe for GET and HEAD, idempotent also for PUT and DELETE, synchronous always.
//   - security: basic, bearer, API keys. OAuth 2 becomes bearer: the user obtains the token.
//
// References are expanded, and cycles are cut at the second repetition. Features that a description does not support are omitted with a
// warning. The package sends no requests: a document that refers to other files must be bundled first.
//
// Sources: OpenAPI 3.0.4 and 3.1.1; WoT Thing Description 1.1; WoT Binding Templates, HTTP.
package openapi

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// Limits of a document.
const (
	// MaxDocument is the limit of a document in bytes.
	MaxDocument = 4 << 20

	maxOperations = 1000 // more do not fit into a TD
	maxParameters = 200  // of an operation
	maxName       = 256  // bytes of a parameter's name
	maxAddress    = 2048 // bytes of a server's address
	maxWarnings   = 100  // in the result
	maxText       = 500  // characters of a description
)

// Options are the settings of [Convert]. The zero value works.
type Options struct {
	// Server is the address of the API, "https://api.example/v1"; empty means the first one in the document.
	Server string
	// Name is the title of the Thing; empty means that of the document.
	Name string
	// Inputs are inputs of the actions that the document does not have in full.
	Inputs []Input
}

// Convert returns the Thing Description of the API that doc describes, JSON or YAML of OpenAPI 3.0 or 3.1, at most 4 MiB. It has
// no id and no proof: td.Complete and td.Sign add them. The description is valid for [td.Parse], so it has at most [td.MaxTD] bytes: if that
// is not enough, descriptions and then the inner parts of schemas are omitted, with a warning. There are at most 100 warnings of one line
// about differences to the document. The error is a [*td.ValidationError]: not JSON or YAML, not OpenAPI, an invalid address, or too large; or an
// [*InputError].
func Convert(doc []byte, o Options) (thing []byte, warnings []string, err error) {
	d, err := load(doc)
	if err != nil {
		return nil, nil, err
	}
	api := d.whole()
	base, err := serverOf(api.list("servers", part), o.Server)
	switch {
	case api.err != nil:
		return nil, nil, api.err
	case err != nil:
		return nil, nil, err
	case countOperations(api) > maxOperations:
		return nil, nil, tooMany(api)
	}
	// The levels of detail, by decreasing size.
	for _, d := range []detail{{depth: 12, texts: true}, {depth: 12}, {depth: 6}, {depth: 3}, {depth: 1}, {depth: 0, bare: true}} {
		c := newConverter(api, o, base, d)
		thing := c.thing()
		if api.err != nil {
			return nil, nil, api.err
		}
		if len(thing["actions"].(map[string]any)) == 0 {
			return nil, nil, invalid("/paths", strings.Join(append([]string{"has no operation that can be an action"},
				c.warnings...), "; "))
		}
		if c.nodes < 0 { // the text could have any length
			continue
		}
		if c.inputErr != nil {
			return nil, nil, c.inputErr
		}
		out, err := jcs.Append(nil, thing)
		if err != nil {
			return nil, nil, invalid("", "cannot be written: "+err.Error())
		}
		if len(out) > td.MaxTD {
			continue
		}
		if _, err := td.Parse(out); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errInvalidResult, err)
		}
		return out, c.allWarnings(), nil
	}
	return nil, nil, tooMany(api)
}

func tooMany(api object) error {
	const reason = "has %d operations: too many for the %d bytes of a Thing Description; use a document with fewer operations"
	return &td.ValidationError{TooLarge: true, Issues: []td.Issue{{Reason: fmt.Sprintf(reason, countOperations(api), td.MaxTD)}}}
}

// errInvalidResult marks an invalid result: a bug of this package. The fuzz test checks for it.
var errInvalidResult = errors.New("the converted description is invalid")

func invalid(pointer, reason string) error {
	return &td.ValidationError{Issues: []td.Issue{{Pointer: pointer, Reason: reason}}}
}

// A detail is the part of the document that is kept.
type detail struct {
	depth int  // of schemas
	texts bool // titles and descriptions inside of schemas
	bare  bool // no descriptions at all
}

// A converter converts one document.
type converter struct {
	api  object
	o    Options
	base string
	detail
	prefixes map[string]any // of @context
	nodes    int            // remaining schemas, of 8 bytes each; negative if there were too many, or their texts too long
	security *security
	inputErr error // of o.Inputs
	warnings []string
	dropped  int // number of dropped warnings
}

func newConverter(api object, o Options, base string, d detail) *converter {
	const maxNodes = td.MaxTD / 8 // a schema has more bytes than that
	c := &converter{api: api, o: o, base: base, detail: d, nodes: maxNodes, prefixes: map[string]any{"lmos": td.ContextLMOS}}
	c.security = newSecurity(c)
	return c
}

// warn adds a warning about a position, unless it exists.
func (c *converter) warn(where, format string, args ...any) {
	text := clip(where+": "+fmt.Sprintf(format, args...), 300)
	switch {
	case slices.Contains(c.warnings, text):
	case len(c.warnings) == maxWarnings:
		c.dropped++
	default:
		c.warnings = append(c.warnings, text)
	}
}

// allWarnings returns the warnings, with the number of dropped ones.
func (c *converter) allWarnings() []string {
	if !c.texts {
		c.warnings = slices.Insert(c.warnings, 0, fmt.Sprintf("the API is too large for the %d bytes of a description: %s",
			td.MaxTD, c.reduction()))
	}
	if c.dropped > 0 {
		c.warnings = append(c.warnings, fmt.Sprintf("and %d more", c.dropped))
	}
	return c.warnings
}

func (c *converter) reduction() string {
	switch {
	case c.bare:
		return "descriptions and schemas are left out, except for their types"
	case c.depth < 12:
		return fmt.Sprintf("schemas end at level %d, and have no descriptions", c.depth)
	}
	return "schemas have no descriptions"
}

// thing returns the whole description.
func (c *converter) thing() map[string]any {
	info := c.api.object("info")
	title := cmp.Or(c.o.Name, info.text("title"), "API")
	description := strings.TrimSpace(info.text("description"))
	version := ""
	if number, ok := info.members["version"].(float64); ok { // 1.0 is a number in YAML
		version = strconv.FormatFloat(number, 'f', -1, 64)
	} else {
		version = info.text("version")
	}
	thing := map[string]any{
		"@context": []any{td.Context10, td.Context11, c.prefixes},
		"@type":    "lmos:Tool",
		"title":    clip(title, maxText),
		"actions":  c.actions(), // before the security, because they determine its use
	}
	if description != "" && !c.bare {
		thing["description"] = clip(description, maxText)
	}
	if version != "" {
		thing["version"] = map[string]any{"instance": clip(version, 100)}
	}
	thing["security"], thing["securityDefinitions"] = list(c.security.general), c.security.definitions()
	return thing
}

// clip truncates s to n characters. It does not read the rest, because s may have megabytes.
func clip(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// list returns texts as decoded JSON.
func list(texts []string) []any {
	out := make([]any, len(texts))
	for i, s := range texts {
		out[i] = s
	}
	return out
}
