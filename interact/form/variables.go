package form

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/schema"
)

// split removes the variables of the address from data, which is JSON, and returns them and the rest, the body for input. The bytes of
// the rest are unchanged: the digits of numbers and the order of members stay.
func split(data []byte, schemas map[string]*td.Schema, input *td.Schema) (vars map[string][]string, rest []byte, issues []td.Issue) {
	if len(schemas) == 0 {
		return nil, data, nil
	}
	fields, err := jcs.Members(data)
	if err != nil {
		return nil, data, nil // the decoder reports the error
	}
	vars = make(map[string][]string, len(schemas))
	var left []jcs.Member
	for _, f := range fields {
		schema, ok := schemas[f.Name]
		if ok {
			texts, bad := variableOf(f, schema)
			if issues = append(issues, bad...); texts != nil {
				vars[f.Name] = texts
			}
		}
		if !ok || input.Property(f.Name) != nil {
			left = append(left, f)
		}
	}
	switch {
	case isScalar(input):
		return vars, valueOf(left), issues
	case len(left) == len(fields):
		return vars, data, issues
	case len(left) == 0 && input.Type() == "":
		return vars, nil, issues // all members were variables
	}
	return vars, jcs.Join(left), issues
}

// scalarMember is the member with an input that is not an object, next to the variables of its address.
const scalarMember = "value"

// isScalar reports whether the schema input excludes objects.
func isScalar(input *td.Schema) bool {
	t := input.Type()
	return t != "" && t != "object"
}

func valueOf(fields []jcs.Member) []byte {
	for _, f := range fields {
		if f.Name == scalarMember {
			return f.Raw
		}
	}
	return nil
}

// variableOf checks the value of a variable and returns it as text. Objects are invalid, and arrays are valid only if the schema accepts
// a list ([td.Schema.Elements]). Null is an absent variable.
func variableOf(f jcs.Member, s *td.Schema) ([]string, []td.Issue) {
	pointer := schema.Pointer(f.Name)
	value, err := decode(f.Raw)
	if err != nil || value == nil {
		return nil, nil
	}
	var texts []string
	var ok bool
	if list, is := value.([]any); is && s.Elements() != nil {
		texts, ok = spellings(f.Raw, len(list))
	} else {
		texts, ok = spellings(append(append([]byte{'['}, f.Raw...), ']'), 1)
	}
	if !ok {
		return nil, []td.Issue{{Pointer: pointer, Reason: "expected a string, a number or a boolean, for a variable of the address"}}
	}
	return texts, below(pointer, s.Check(value))
}

// spellings returns the n elements of the JSON array raw as texts for an address: strings without quotes, other values unchanged. ok is
// false if an element is an object or array.
func spellings(raw []byte, n int) (texts []string, ok bool) {
	elements := make([]json.RawMessage, 0, n)
	if json.Unmarshal(raw, &elements) != nil {
		return nil, false
	}
	for _, e := range elements {
		text := string(e)
		switch e[0] {
		case '{', '[':
			return nil, false
		case '"':
			if json.Unmarshal(e, &text) != nil {
				return nil, false
			}
		}
		texts = append(texts, text)
	}
	return texts, true
}

// missing returns an issue for each variable that all addresses of a require and vars does not have.
func missing(a *td.Affordance, vars map[string][]string) (issues []td.Issue) {
	for _, name := range a.RequiredVariables() {
		if len(vars[name]) == 0 {
			issues = append(issues, missingVariable(name))
		}
	}
	return issues
}

func missingVariable(name string) td.Issue {
	return td.Issue{Pointer: schema.Pointer(name), Reason: "is required"}
}

// AddVariables adds the variables of an address in the query of a consumer to the input in JSON: the inverse of [split]. The members of
// the input have precedence. An input that is not an object becomes the member "value" of one (see the package comment). An invalid
// input is unchanged.
func AddVariables(data []byte, query url.Values, schemas map[string]*td.Schema, input *td.Schema) []byte {
	fields, err := jcs.Members(data)
	if err != nil && len(data) > 0 {
		if _, err := decode(data); err != nil || !isScalar(input) {
			return data // the check reports the error
		}
		fields = []jcs.Member{{Name: scalarMember, Raw: data}}
	}
	before := len(fields)
	for name, schema := range schemas {
		if !query.Has(name) || slices.ContainsFunc(fields, func(f jcs.Member) bool { return f.Name == name }) {
			continue
		}
		fields = append(fields, jcs.Member{Name: name, Raw: encodeValues(query[name], schema)})
	}
	if len(fields) == before {
		return data
	}
	return jcs.Join(fields)
}

// encodeValues returns the values of a variable as JSON of its schema: a list for several values, if the schema accepts one; else the
// first value.
func encodeValues(values []string, schema *td.Schema) []byte {
	elements := schema.Elements()
	if len(values) == 1 || elements == nil {
		return schema.FromText(values[0])
	}
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, elements.FromText(v)...)
	}
	return append(b, ']')
}

// CheckVariables checks the values of the variables of an address in the data of m, a request for t. The node of the agent splits the
// input and checks the rest. The error is an [*interact.Error] of code Invalid with issues.
func CheckVariables(t *td.Thing, m *interact.Message) error {
	a := interact.Affordance(t, m)
	if a == nil || len(a.URIVariables) == 0 || !td.IsJSON(m.ContentType) {
		return nil
	}
	fields, err := jcs.Members(m.Data)
	if err != nil {
		return nil // an input that is not an object has no variables
	}
	var issues []td.Issue
	for _, f := range fields {
		variable := a.URIVariables[f.Name]
		value, err := decode(f.Raw)
		if variable == nil || err != nil || value == nil {
			continue
		}
		issues = append(issues, below(schema.Pointer(f.Name), variable.Check(value))...)
	}
	if len(issues) > 0 {
		return &interact.Error{Code: interact.Invalid, Title: "the variables do not fit the address of " + m.Name,
			Hint: "see the schema of its input", Next: interact.Next(interact.StepShow, m.Thing), Issues: issues}
	}
	return nil
}

// Expand expands href with the variables and parses the address. A value cannot change the recipient of the request: the origin is that
// of the template, and variables do not add dot segments. The error is an [*interact.Error].
func Expand(href string, vars map[string][]string) (*url.URL, error) {
	if !strings.ContainsAny(href, "{}") {
		return parseAddress(href, href)
	}
	t, err := parseTemplate(href)
	if err != nil {
		return nil, Bad(href, err.Error())
	}
	for _, name := range t.required() {
		if strings.Join(vars[name], "") == "" {
			return nil, &interact.Error{Code: interact.Invalid, Title: "the address requires the variable " + name,
				Hint: "send it as a member of the input", Issues: []td.Issue{missingVariable(name)}}
		}
	}
	return within(href, t.expand(nil), t.expand(vars))
}

// within parses full and compares it with bare, the expansion of href without values.
func within(href, bare, full string) (*url.URL, error) {
	home, err := parseAddress(href, bare)
	if err != nil {
		return nil, err
	}
	_, behind, _ := strings.Cut(href, "://")
	authority, expression, _ := strings.Cut(behind, "{")
	inHost := !strings.ContainsAny(authority, "/?") && !strings.HasPrefix(expression, "/") && !strings.HasPrefix(expression, "?")
	if inHost || credentials.Origin(home) != credentials.OriginOf(href) {
		return nil, Bad(href, "has a variable in its host")
	}
	u, err := url.Parse(full)
	if err != nil || credentials.Origin(u) != credentials.Origin(home) || u.User.String() != home.User.String() || dots(u.Path) > dots(home.Path) {
		return nil, interact.Errorf(interact.Invalid, "remove dot segments and hosts from the variables",
			"the variables lead out of %s", Plain(href))
	}
	return u, nil
}

// parseAddress parses text, an expansion of href.
func parseAddress(href, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return nil, Bad(href, "is not an absolute address")
	}
	return u, nil
}

// dots counts the segments of a path that a server may resolve.
func dots(path string) int {
	n := 0
	for s := range strings.SplitSeq(path, "/") {
		if s == "." || s == ".." {
			n++
		}
	}
	return n
}
