package openapi

import (
	"cmp"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/lmosd/lmosd/td"
)

// methods are the HTTP methods that become actions, in this order.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// otherMethods are the methods that a path item may have and that are left out.
var otherMethods = []string{http.MethodConnect, http.MethodOptions, http.MethodTrace}

// An operation is an operation of the document, with the state of its conversion.
type operation struct {
	*converter
	method, path string
	spec, item   object // the operation in the document, and its path item

	variables map[string]any  // uriVariables
	inPath    map[string]bool // the variables of the path
	guessed   map[string]bool // the variables whose types are not in the document
	headers   []any           // htv:headers

	name   string         // of the action
	result map[string]any // the action
}

// where returns the name of the operation in warnings.
func (op *operation) where() string { return op.method + " " + clip(op.path, 100) }

// paths returns the path items of a document. Other members of the object paths are extensions.
func paths(api object) iter.Seq2[string, object] {
	return func(yield func(string, object) bool) {
		for path, item := range api.each("paths", pathItem) {
			if !strings.HasPrefix(path, "x-") && !yield(path, item) {
				return
			}
		}
	}
}

// countOperations returns the number of operations in the document.
func countOperations(api object) int {
	n := 0
	for _, item := range paths(api) {
		for _, method := range slices.Concat(methods, otherMethods) {
			if item.has(strings.ToLower(method)) {
				n++
			}
		}
	}
	return n
}

// actions returns the actions of all operations, by name.
func (c *converter) actions() map[string]any {
	all, ops := map[string]any{}, []*operation(nil)
	for path, item := range paths(c.api) {
		for _, method := range methods {
			if spec := item.object(strings.ToLower(method)); spec.exists() && c.nodes >= 0 {
				op := &operation{converter: c, spec: spec, method: method, path: path, item: item,
					variables: map[string]any{}, inPath: map[string]bool{}, guessed: map[string]bool{}}
				if op.result = op.action(); op.result != nil {
					op.name = op.nameIn(all)
					all[op.name] = op.result
					ops = append(ops, op)
				}
			}
		}
		for _, method := range otherMethods {
			if item.has(strings.ToLower(method)) {
				c.warn(method+" "+clip(path, 100), "left out: the method is not used for actions")
			}
		}
	}
	if len(c.api.object("webhooks").members) > 0 {
		c.warn("webhooks", "left out: the thing has no events")
	}
	c.inputErr = c.declare(ops)
	return all
}

// nameIn returns a name that is not taken.
func (op *operation) nameIn(taken map[string]any) string {
	name := strings.TrimSpace(op.spec.text("operationId"))
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
	if len(op.spec.object("callbacks").members) > 0 {
		op.warn(op.where(), "its callbacks are left out")
	}
	return action
}

// server returns the address of the innermost server of the operation.
func (op *operation) server() string {
	servers := op.spec.list("servers", part)
	if len(servers) == 0 {
		servers = op.item.list("servers", part)
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
func serverOf(servers []object, explicit string) (string, error) {
	const hint = "; set the address of the server"
	text := explicit
	if text == "" {
		if len(servers) == 0 {
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
func expandServer(s object) string {
	text := s.text("url")
	for name, variable := range s.each("variables", part) {
		value := variable.text("default")
		if len(text) > maxAddress || len(value) > maxAddress {
			break
		}
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// parameters returns the parameters of the operation and of its path; those of the operation override the others.
func (op *operation) parameters() []parameter {
	var all []parameter
	for _, owner := range []object{op.spec, op.item} {
		for _, spec := range owner.list("parameters", part) {
			p := parameterOf(spec)
			if p.name == "" {
				continue
			}
			if len(all) == maxParameters || len(p.name) > maxName {
				op.warn(op.where(), "a parameter is left out: there are more than %d, or its name is too long", maxParameters)
				continue
			}
			if !slices.ContainsFunc(all, func(other parameter) bool { return other.name == p.name && other.in == p.in }) {
				all = append(all, p)
			}
		}
	}
	return all
}

// A parameter is a parameter of the document: in is "path", "query", "header" or "cookie".
type parameter struct {
	name, in, style   string
	required, explode bool
	spec              object
}

func parameterOf(spec object) parameter {
	p := parameter{name: spec.text("name"), in: spec.text("in"), style: spec.text("style"), required: spec.flag("required"), spec: spec}
	// The defaults of lists: form exploded, simple not (OpenAPI 3.0.4 §4.7.12.2, style and explode).
	p.explode = spec.flag("explode") || p.in == "query" && !spec.has("explode")
	return p
}

// address returns the path as a URI template. ok is false if it cannot be converted.
func (op *operation) address(params []parameter) (href string, ok bool) {
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
		i := slices.IndexFunc(params, func(p parameter) bool { return p.in == "path" && p.name == name })
		p := parameter{name: name, in: "path"}
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
func (op *operation) pathVariable(p parameter) string {
	name := variableName(p.name, func(byte) string { return "_" })
	if name == "" || len(op.variables) >= maxVariables {
		op.warn(op.where(), "left out: its path has a variable without a name, or too many")
		return ""
	}
	schema, as := op.variable(p)
	op.inPath[name], op.guessed[name] = true, isUntyped(p)
	if schema == nil {
		op.warn(op.where(), "the variable %s of its path is not a single value: it becomes a string, "+
			"which is inserted into the address as it is", p.name)
		schema = map[string]any{"type": "string"}
	}
	if op.variables[name] = schema; as == exploded {
		return op.styled(p, name+"*")
	}
	return op.styled(p, name)
}

// styled returns the expression of a variable of the path (RFC 6570 §3.2.2, §3.2.5, §3.2.7).
func (op *operation) styled(p parameter, name string) string {
	switch p.style {
	case "label":
		return "{." + name + "}"
	case "matrix":
		return "{;" + name + "}"
	}
	return "{" + name + "}"
}

// maxVariables is the limit of variables in the schema of a TD.
const maxVariables = 64

// query declares the variables of the query, and returns their expression.
func (op *operation) query(params []parameter, started bool) string {
	var names []string
	for _, p := range params {
		if p.in != "query" {
			continue
		}
		// The name is sent as written in the template, so characters that a template does not allow are escaped (RFC 6570 §2.3).
		name := variableName(p.name, percent)
		schema, as := op.variable(p)
		switch {
		case schema == nil && p.required:
			op.warn(op.where(), "the required query parameter %s is omitted: it is neither a single value nor a list of single values", p.name)
			continue
		case schema == nil:
			op.warn(op.where(), "the query parameter %s is omitted: it is neither a single value nor a list of single values", p.name)
			continue
		case op.variables[name] != nil, len(op.variables) >= maxVariables:
			op.warn(op.where(), "the query parameter %s is omitted: a variable has the same name, or there are too many", p.name)
			continue
		case as == oneOf:
			op.warn(op.where(), "the query parameter %s accepts only one value", p.name)
		}
		if name != p.name {
			schema["title"] = clip(p.name, 100)
		}
		op.guessed[name] = isUntyped(p)
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
func (op *operation) addHeaders(params []parameter) {
	for _, p := range params {
		switch {
		case p.in == "header" && slices.Contains([]string{"accept", "content-type", "authorization"}, strings.ToLower(p.name)):
			// OpenAPI 3.0.4 §4.7.12.2: other parts of the document define these.
		case p.in == "header" && p.required && onlyValue(p) != "":
			op.headers = append(op.headers, map[string]any{"htv:fieldName": p.name, "htv:fieldValue": onlyValue(p)})
		case p.in == "header" || p.in == "cookie":
			addition := ""
			if p.required {
				addition = ", though it is required"
			}
			op.warn(op.where(), "the %s %s is not sent%s", p.in, p.name, addition)
		}
	}
}

// onlyValue returns the only possible value of a header, or its default; empty if there is none.
func onlyValue(p parameter) string {
	schema := p.spec.schema("schema")
	value := schema.members["default"]
	if list := schema.elements("enum"); len(list) == 1 {
		value = list[0]
	}
	text, _ := value.(string) // an unprintable header is not sent
	if strings.ContainsFunc(text+p.name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return text
}

// describe adds title and description.
func (op *operation) describe(action map[string]any) {
	title := strings.TrimSpace(cmp.Or(op.spec.text("summary"), op.item.text("summary")))
	text := strings.TrimSpace(cmp.Or(op.spec.text("description"), op.item.text("description")))
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

// percent encodes a character of a variable name (RFC 6570 §2.3).
func percent(c byte) string { return fmt.Sprintf("%%%02X", c) }

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
	schema object
}

// chooseBody returns the best media type of a request body or a response: JSON, then text, then others without conversion. ok is false if there is none.
func chooseBody(owner object) (b body, ok bool) {
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
	for media, spec := range owner.each("content", part) {
		if r := rank(media); r < best {
			best, b = r, body{media: clip(media, 200), schema: spec.schema("schema")}
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
	r := op.spec.object("requestBody")
	if len(r.object("content").members) == 0 {
		return true
	}
	b, ok := chooseBody(r)
	switch bodyless := op.method == http.MethodGet || op.method == http.MethodHead; {
	case bodyless:
		op.warn(op.where(), "its body is left out: %s requests have none", op.method)
		return true
	case !ok && r.flag("required"):
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
	for code, response := range op.spec.each("responses", part) {
		if !strings.HasPrefix(code, "2") || op.method == http.MethodHead {
			continue
		}
		b, ok := chooseBody(response)
		if !ok {
			continue
		}
		if b.media != form["contentType"] {
			form["response"] = map[string]any{"contentType": b.media}
		}
		switch {
		case td.IsJSON(b.media) && b.schema.exists():
			action["output"] = op.schema(b.schema, walk{op: op})
		case strings.HasPrefix(b.media, "text/"):
			action["output"] = map[string]any{"type": "string"}
		}
		return
	}
}
