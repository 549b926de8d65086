package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/lmosd/lmosd/td"
)

// methods are the HTTP methods that become actions, in this order.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// An operation is an operation of the document, with the state of its conversion.
type operation struct {
	*converter
	*openapi3.Operation
	method, path string
	item         *openapi3.PathItem

	variables map[string]any // uriVariables
	headers   []any          // htv:headers
}

// where returns the name of the operation in warnings.
func (op *operation) where() string { return op.method + " " + clip(op.path, 100) }

// countOperations returns the number of operations in the document.
func countOperations(api *openapi3.T) int {
	n := 0
	for _, item := range api.Paths.Map() {
		if item != nil {
			n += len(item.Operations())
		}
	}
	return n
}

// actions returns the actions of all operations, by name.
func (c *converter) actions() map[string]any {
	all := map[string]any{}
	paths := c.api.Paths.Map()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := paths[path]
		if item == nil {
			continue
		}
		operations := item.Operations()
		for _, method := range methods {
			if o := operations[method]; o != nil && c.nodes >= 0 {
				op := &operation{converter: c, Operation: o, method: method, path: path, item: item, variables: map[string]any{}}
				if action := op.action(); action != nil {
					all[op.name(all)] = action
				}
			}
			delete(operations, method)
		}
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			c.warn(method+" "+clip(path, 100), "left out: the method is not used for actions")
		}
	}
	if len(c.api.Webhooks) > 0 {
		c.warn("webhooks", "left out: the thing has no events")
	}
	return all
}

// name returns an unused name.
func (op *operation) name(taken map[string]any) string {
	name := strings.TrimSpace(op.OperationID)
	if name == "" {
		name = camel(op.method + " " + clip(op.path, 200))
	}
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '_'
		}
		return r
	}, clip(name, 200))
	free := name
	for n := 2; taken[free] != nil; n++ {
		free = name + strconv.Itoa(n)
	}
	if free != name {
		op.warn(op.where(), "is named %s: another operation has the same operationId", free)
	}
	return free
}

// camel joins words to a name: "GET /pets/{petId}" becomes "getPetsPetId".
func camel(words string) string {
	var b strings.Builder
	for i, word := range strings.FieldsFunc(words, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		r := []rune(word)
		if i == 0 {
			r = []rune(strings.ToLower(word))
		} else {
			r[0] = unicode.ToUpper(r[0])
		}
		b.WriteString(string(r))
	}
	return b.String()
}

// action returns the action, or nil if the operation cannot be converted.
func (op *operation) action() map[string]any {
	base := op.server()
	params := op.parameters()
	href, ok := op.address(params)
	if base == "" || !ok {
		return nil
	}
	form := map[string]any{"href": base + href + op.query(params, strings.Contains(href, "?")), "op": []any{"invokeaction"},
		"htv:methodName": op.method}
	if len(form["href"].(string)) > 8192 {
		op.warn(op.where(), "left out: its address is too long")
		return nil
	}
	safe := op.method == http.MethodGet || op.method == http.MethodHead
	action := map[string]any{"forms": []any{form}, "safe": safe, "synchronous": true,
		"idempotent": safe || op.method == http.MethodPut || op.method == http.MethodDelete}
	if !op.input(action, form) {
		return nil
	}
	op.output(action, form)
	op.describe(action)
	op.addHeaders(params)
	if len(op.variables) > 0 {
		action["uriVariables"] = op.variables
	}
	if len(op.headers) > 0 {
		form["htv:headers"] = op.headers
	}
	if names := op.security.of(op); !slices.Equal(names, op.security.general) {
		form["security"] = list(names)
	}
	if len(op.Callbacks) > 0 {
		op.warn(op.where(), "its callbacks are left out")
	}
	return action
}

// server returns the address of the innermost server of the operation.
func (op *operation) server() string {
	servers := op.item.Servers
	if op.Servers != nil && len(*op.Servers) > 0 {
		servers = *op.Servers
	}
	if len(servers) == 0 || op.o.Server != "" {
		return op.base
	}
	base, err := serverOf(servers, "")
	if err != nil {
		op.warn(op.where(), "left out: the address of its own server is invalid")
	}
	return base
}

// serverOf returns the address of an API without a slash at its end.
func serverOf(servers openapi3.Servers, explicit string) (string, error) {
	const hint = "; set the address of the server"
	text := explicit
	if text == "" {
		if len(servers) == 0 || servers[0] == nil {
			return "", invalid("/servers", "is missing"+hint)
		}
		text = expandServer(servers[0])
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.ContainsAny(text, "{}") ||
		len(text) > maxAddress:
		return "", invalid("/servers/0/url", "is not an absolute http or https URL"+hint)
	case u.User != nil:
		return "", invalid("/servers/0/url", "contains a user or a password, but a Thing Description is public")
	case u.RawQuery != "" || u.Fragment != "":
		return "", invalid("/servers/0/url", "has a query or a fragment")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// expandServer returns the address of a server with the defaults of its variables, or a text that exceeds the limit of addresses.
func expandServer(s *openapi3.Server) string {
	text := s.URL
	for _, name := range slices.Sorted(maps.Keys(s.Variables)) {
		v := s.Variables[name]
		if len(text) > maxAddress || v == nil || len(v.Default) > maxAddress {
			break
		}
		text = strings.ReplaceAll(text, "{"+name+"}", v.Default)
	}
	return text
}

// parameters returns the parameters of the operation and of its path; those of the operation override the others.
func (op *operation) parameters() []*openapi3.Parameter {
	var all []*openapi3.Parameter
	for _, refs := range []openapi3.Parameters{op.Operation.Parameters, op.item.Parameters} {
		for _, ref := range refs {
			if ref == nil || ref.Value == nil || ref.Value.Name == "" {
				continue
			}
			if len(all) == maxParameters || len(ref.Value.Name) > maxName {
				op.warn(op.where(), "a parameter is left out: there are more than %d, or its name is too long", maxParameters)
				continue
			}
			if !slices.ContainsFunc(all, func(p *openapi3.Parameter) bool { return p.Name == ref.Value.Name && p.In == ref.Value.In }) {
				all = append(all, ref.Value)
			}
		}
	}
	return all
}

// address returns the path as a URI template. ok is false if it cannot be converted.
func (op *operation) address(params []*openapi3.Parameter) (href string, ok bool) {
	var b strings.Builder
	rest := op.path
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	for {
		text, expression, found := strings.Cut(rest, "{")
		if strings.Contains(text, "}") {
			break
		}
		b.WriteString(literal(text))
		if !found {
			return b.String(), true
		}
		name, after, closed := strings.Cut(expression, "}")
		if !closed || strings.Contains(name, "{") {
			break
		}
		i := slices.IndexFunc(params, func(p *openapi3.Parameter) bool { return p.In == openapi3.ParameterInPath && p.Name == name })
		p := &openapi3.Parameter{Name: name, In: openapi3.ParameterInPath}
		if i >= 0 {
			p = params[i]
		} else {
			op.warn(op.where(), "the variable %s of its path is not declared: it becomes a string", name)
		}
		variable := op.pathVariable(p)
		if variable == "" {
			return "", false
		}
		b.WriteString(variable)
		rest = after
	}
	op.warn(op.where(), "left out: the braces of its path are unbalanced")
	return "", false
}

// pathVariable declares a variable of the path, and returns its expression; empty if it cannot be converted.
func (op *operation) pathVariable(p *openapi3.Parameter) string {
	name := variableName(p.Name, func(byte) string { return "_" })
	if name == "" || len(op.variables) >= maxVariables {
		op.warn(op.where(), "left out: its path has a variable without a name, or too many")
		return ""
	}
	schema, as := op.variable(p)
	if schema == nil {
		op.warn(op.where(), "the variable %s of its path is not a single value: it becomes a string, "+
			"which is inserted into the address as it is", p.Name)
		schema = map[string]any{"type": "string"}
	}
	if op.variables[name] = schema; as == exploded {
		return op.styled(p, name+"*")
	}
	return op.styled(p, name)
}

// styled returns the expression of a variable of the path (RFC 6570 §3.2.2, §3.2.5, §3.2.7).
func (op *operation) styled(p *openapi3.Parameter, name string) string {
	switch p.Style {
	case openapi3.SerializationLabel:
		return "{." + name + "}"
	case openapi3.SerializationMatrix:
		return "{;" + name + "}"
	}
	return "{" + name + "}"
}

// maxVariables is the limit of variables in the schema of a TD.
const maxVariables = 64

// query declares the variables of the query, and returns their expression.
func (op *operation) query(params []*openapi3.Parameter, started bool) string {
	var names []string
	for _, p := range params {
		if p.In != openapi3.ParameterInQuery {
			continue
		}
		// The name is sent as written in the template, so characters that a template does not allow are escaped (RFC 6570 §2.3).
		name := variableName(p.Name, func(c byte) string { return fmt.Sprintf("%%%02X", c) })
		schema, as := op.variable(p)
		switch {
		case schema == nil && p.Required:
			op.warn(op.where(), "the required query parameter %s is omitted: it is neither a single value nor a list of single values", p.Name)
			continue
		case schema == nil:
			op.warn(op.where(), "the query parameter %s is omitted: it is neither a single value nor a list of single values", p.Name)
			continue
		case op.variables[name] != nil, len(op.variables) >= maxVariables:
			op.warn(op.where(), "the query parameter %s is omitted: a variable has the same name, or there are too many", p.Name)
			continue
		case as == oneOf:
			op.warn(op.where(), "the query parameter %s accepts only one value", p.Name)
		}
		if name != p.Name {
			schema["title"] = clip(p.Name, 100)
		}
		if op.variables[name] = schema; as == exploded {
			name += "*"
		}
		names = append(names, name)
	}
	switch {
	case len(names) == 0:
		return ""
	case started:
		return "{&" + strings.Join(names, ",") + "}"
	}
	return "{?" + strings.Join(names, ",") + "}"
}

// addHeaders adds the headers with a single possible value to the form, and a warning for each other header.
func (op *operation) addHeaders(params []*openapi3.Parameter) {
	for _, p := range params {
		switch {
		case p.In == openapi3.ParameterInHeader && slices.Contains([]string{"accept", "content-type", "authorization"},
			strings.ToLower(p.Name)):
			// OpenAPI 3.0.4 §4.7.12.2: other parts of the document define these.
		case p.In == openapi3.ParameterInHeader && p.Required && onlyValue(p) != "":
			op.headers = append(op.headers, map[string]any{"htv:fieldName": p.Name, "htv:fieldValue": onlyValue(p)})
		case p.In == openapi3.ParameterInHeader || p.In == openapi3.ParameterInCookie:
			addition := ""
			if p.Required {
				addition = ", though it is required"
			}
			op.warn(op.where(), "the %s %s is not sent%s", p.In, p.Name, addition)
		}
	}
}

// onlyValue returns the only possible value of a header, or its default; empty if there is none.
func onlyValue(p *openapi3.Parameter) string {
	if p.Schema == nil || p.Schema.Value == nil {
		return ""
	}
	value := p.Schema.Value.Default
	if list := p.Schema.Value.Enum; len(list) == 1 {
		value = list[0]
	}
	text, _ := value.(string) // an unprintable header is not sent
	if strings.ContainsFunc(text+p.Name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return text
}

// describe adds title and description.
func (op *operation) describe(action map[string]any) {
	title := strings.TrimSpace(cmp.Or(op.Summary, op.item.Summary))
	text := strings.TrimSpace(cmp.Or(op.Description, op.item.Description))
	if title != "" && !op.bare {
		action["title"] = clip(title, 100)
	}
	if text != "" && text != title && !op.bare {
		action["description"] = clip(text, maxText)
	}
}

// variableName returns name as a variable name of RFC 6570 §2.3; escape encodes the characters that are not allowed.
func variableName(name string, escape func(byte) string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.':
			b.WriteByte(c)
		default:
			b.WriteString(escape(c))
		}
	}
	return b.String()
}

// literal encodes a part of a path for a URI; escape sequences are kept (RFC 3986 §2.1).
func literal(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c == '%' && i+2 < len(text) && isHex(text[i+1]) && isHex(text[i+2]),
			c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~/?:@!$&'()*+,;=", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

// A body is the media type and schema of a request or a response.
type body struct {
	media  string
	schema *openapi3.SchemaRef
}

// chooseBody returns the best media type: JSON, then text, then others without conversion. ok is false if there is none.
func chooseBody(content openapi3.Content) (b body, ok bool) {
	rank := func(media string) int {
		switch name, _, _ := strings.Cut(strings.ToLower(media), ";"); {
		case name == "application/json":
			return 1
		case name == "*/*", name == "application/*":
			return 2
		case td.IsJSON(name):
			return 3
		case name == "text/plain":
			return 4
		case strings.Contains(name, "*"), strings.HasPrefix(name, "multipart/"), name == "application/x-www-form-urlencoded",
			!strings.Contains(name, "/"):
			return 9
		case strings.HasPrefix(name, "text/"):
			return 5
		}
		return 6
	}
	best := 9
	for _, media := range slices.Sorted(maps.Keys(content)) {
		if r := rank(media); r < best && content[media] != nil {
			best, b = r, body{media: clip(media, 200), schema: content[media].Schema}
		}
	}
	if best == 2 {
		b.media = "application/json"
	}
	return b, best < 9
}

// input adds the input and its type. It returns false if the operation cannot be invoked.
func (op *operation) input(action, form map[string]any) bool {
	form["contentType"] = "application/json"
	if op.RequestBody == nil || op.RequestBody.Value == nil || len(op.RequestBody.Value.Content) == 0 {
		return true
	}
	r := op.RequestBody.Value
	b, ok := chooseBody(r.Content)
	switch bodyless := op.method == http.MethodGet || op.method == http.MethodHead; {
	case bodyless:
		op.warn(op.where(), "its body is left out: %s requests have none", op.method)
		return true
	case !ok && r.Required:
		op.warn(op.where(), "left out: the media type of its body is not supported")
		return false
	case !ok:
		op.warn(op.where(), "its body is left out: its media type is not supported")
		return true
	}
	form["contentType"] = b.media
	switch isText := strings.HasPrefix(strings.ToLower(b.media), "text/"); {
	case td.IsJSON(b.media):
		action["input"] = op.schema(b.schema, walk{op: op, input: true})
	case isText:
		action["input"] = map[string]any{"type": "string"}
	case len(op.variables) > 0:
		op.warn(op.where(), "its body is %s: the variables of its address cannot be set in addition", b.media)
	}
	if s, ok := action["input"].(map[string]any); ok && s["type"] != nil && s["type"] != "object" && op.variables["value"] != nil {
		op.warn(op.where(), "its body and a variable of its address are both named value")
	}
	return true
}

// output adds the output and its type: those of the first successful response with a body.
func (op *operation) output(action, form map[string]any) {
	if op.Responses == nil {
		return
	}
	all := op.Responses.Map()
	for _, code := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(code, "2") || all[code] == nil || all[code].Value == nil || op.method == http.MethodHead {
			continue
		}
		b, ok := chooseBody(all[code].Value.Content)
		if !ok {
			continue
		}
		if b.media != form["contentType"] {
			form["response"] = map[string]any{"contentType": b.media}
		}
		switch {
		case td.IsJSON(b.media) && b.schema != nil:
			action["output"] = op.schema(b.schema, walk{op: op})
		case strings.HasPrefix(b.media, "text/"):
			action["output"] = map[string]any{"type": "string"}
		}
		return
	}
}
