package td

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
)

// The operations of affordances (TD 1.1 §5.3.4.2), the defaults of a form first.
var (
	propertyOps = []string{"readproperty", "writeproperty", "observeproperty", "unobserveproperty"}
	actionOps   = []string{"invokeaction", "queryaction", "cancelaction"}
	eventOps    = []string{"subscribeevent", "unsubscribeevent"}
)

// accessOps returns the operations that a property supports.
func accessOps(readOnly, writeOnly, observable bool) []string {
	var ops []string
	if !writeOnly {
		ops = append(ops, "readproperty")
	}
	if !readOnly {
		ops = append(ops, "writeproperty")
	}
	if observable {
		ops = append(ops, "observeproperty", "unobserveproperty")
	}
	return ops
}

// Scheme returns the scheme of the form's href in lower case, or "" if the href is relative.
func (f *Form) Scheme() string { return schemeOf(f.Href) }

// IsJSON reports whether a content type is JSON: application/json, a type with the suffix +json (RFC 6839 §3.1), or empty, because JSON is
// the default of TD 1.1 §5.4.
func IsJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "" || media == "application/json" || strings.HasSuffix(media, "+json")
}

// schemeOf returns the scheme of a URI in lower case, or "" if it has none (RFC 3986 §3.1).
func schemeOf(uri string) string {
	for i := 0; i < len(uri); i++ {
		switch c := uri[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
		case i > 0 && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'):
		case i > 0 && c == ':':
			return strings.ToLower(uri[:i])
		default:
			return ""
		}
	}
	return ""
}

func hasScheme(uri string) bool { return schemeOf(uri) != "" }

// A base resolves relative references. It is parsed once, because a TD may have thousands of references. A nil base leaves references
// unchanged.
type base struct {
	url     *url.URL
	restore *strings.Replacer // restores the URI template expressions of the base
}

// newBase returns the base s, or nil if it is empty or not a URI.
func newBase(s string) *base {
	hidden, replaced := hideTemplates(s, "base")
	u, err := url.Parse(hidden)
	if s == "" || err != nil {
		return nil
	}
	return &base{u, strings.NewReplacer(replaced...)}
}

// resolve returns href as an absolute reference (RFC 3986 §5.2). While it resolves, placeholders replace the expressions of a URI template.
// An href that is not a URI is returned unchanged.
func (b *base) resolve(href string) string {
	if b == nil || hasScheme(href) {
		return href
	}
	hidden, replaced := hideTemplates(href, "href")
	ref, err := url.Parse(hidden)
	if err != nil {
		return href
	}
	s := b.restore.Replace(b.url.ResolveReference(ref).String())
	if len(replaced) > 0 {
		s = strings.NewReplacer(replaced...).Replace(s)
	}
	return s
}

// hideTemplates replaces each {expression} of s by a placeholder that is valid in a URI, and returns pairs of placeholder and expression.
func hideTemplates(s, prefix string) (hidden string, replaced []string) {
	var b strings.Builder
	for {
		open := strings.IndexByte(s, '{')
		end := strings.IndexByte(s[max(open, 0):], '}') + open
		if open < 0 || end < open {
			b.WriteString(s)
			return b.String(), replaced
		}
		placeholder := prefix + "-" + strconv.Itoa(len(replaced)/2) + "-template"
		replaced = append(replaced, placeholder, s[open:end+1])
		b.WriteString(s[:open] + placeholder)
		s = s[end+1:]
	}
}

// templateVars returns the variable names of a URI template (RFC 6570 §2.3); ok is false if an expression has no end.
func templateVars(href string) (names []string, ok bool) {
	for {
		open := strings.IndexAny(href, "{}")
		if open < 0 {
			return names, true
		}
		end := strings.IndexAny(href[open+1:], "{}")
		if href[open] == '}' || end < 0 || href[open+1+end] == '{' {
			return names, false
		}
		expression := strings.TrimLeft(href[open+1:open+1+end], "+#./;?&")
		for _, name := range strings.Split(expression, ",") {
			name, _, _ = strings.Cut(strings.TrimSuffix(name, "*"), ":")
			names = append(names, name)
		}
		href = href[open+1+end+1:]
	}
}

// forms returns the forms of an affordance. ops are the default operations of a form.
func (b *builder) forms(v any, ops []string) []Form {
	list := array(v)
	forms := make([]Form, 0, len(list))
	for _, e := range list {
		if m := object(e); m != nil {
			forms = append(forms, b.form(m, ops))
		}
	}
	return forms
}

func (b *builder) form(m map[string]any, ops []string) Form {
	f := Form{
		Href:          b.base.resolve(text(m["href"])),
		ContentType:   text(m["contentType"]),
		ContentCoding: text(m["contentCoding"]),
		Subprotocol:   text(m["subprotocol"]),
		Ops:           texts(m["op"]),
		Security:      texts(m["security"]),
		Scopes:        texts(m["scopes"]),
		ResponseType:  text(object(m["response"])["contentType"]),
		Raw:           bytesOf(m),
	}
	if f.ContentType == "" { // TD 1.1 §5.4, "Default Value Definitions"
		f.ContentType = "application/json"
	}
	if len(f.Ops) == 0 {
		f.Ops = ops
	}
	if _, own := m["security"]; !own {
		f.Security = b.t.Security
	}
	f.ResponseType = cmp.Or(f.ResponseType, f.ContentType)
	for _, r := range array(m["additionalResponses"]) {
		if typ := text(object(r)["contentType"]); typ != "" {
			f.AdditionalTypes = append(f.AdditionalTypes, typ)
		} else {
			f.AdditionalTypes = append(f.AdditionalTypes, f.ContentType)
		}
	}
	f.HTTPMethod, f.HTTPHeaders = httpTerms(m)
	return f
}

// httpTerms returns the terms of the HTTP vocabulary (WoT HTTP Binding §Vocabulary), in the form or in the member "optionalProperties" of
// kotlin-wot.
func httpTerms(m map[string]any) (method string, headers []HTTPHeader) {
	get := func(name string) any {
		if v, ok := m["htv:"+name]; ok {
			return v
		}
		return object(m["optionalProperties"])["htv:"+name]
	}
	for _, h := range array(get("headers")) {
		name, value := httpTerm(h, "fieldName"), httpTerm(h, "fieldValue")
		if name != "" {
			headers = append(headers, HTTPHeader{name, value})
		}
	}
	return text(get("methodName")), headers
}

func httpTerm(v any, name string) string {
	m := object(v)
	if s, ok := m["htv:"+name].(string); ok {
		return s
	}
	return text(m[name])
}
