package server

import (
	"net/http"
	"net/url"
	"strings"
)

// resources has the minimum and maximum number of names after the kind of resource in a path: /actions/{name}/{run},
// /properties/{name}/observable, /events/{name}, /subscriptions/{id}, /td.
var resources = map[string]struct{ least, most int }{
	"properties": {0, 2}, "actions": {0, 2}, "events": {0, 1}, "subscriptions": {1, 1}, "td": {0, 0},
}

// observable is the only name that may follow that of a property.
const observable = "observable"

// ThingID splits the path of r after prefix ("/things/") into the id of a Thing and the rest, which is empty or begins with properties,
// actions, events, subscriptions or td. The id is unescaped once; the rest stays escaped, so that a name may contain an escaped slash.
// The id may be any URI, raw or percent-encoded, also with slashes and double slashes: clients send both.
//
// A raw id that ends like such a rest, "urn:x/actions/y" or "https://x.example/td", is split at the first match: its slashes must be
// escaped. Both results are empty if the path does not begin with prefix.
func ThingID(r *http.Request, prefix string) (id, rest string) {
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), prefix)
	if !ok {
		return "", ""
	}
	for at := strings.IndexByte(path, '/'); at >= 0; {
		if isRest(path[at+1:]) {
			path, rest = path[:at], path[at+1:]
			break
		}
		next := strings.IndexByte(path[at+1:], '/')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return unescape(path), rest
}

// isRest reports whether a path is a kind of resource with a valid number of names, all not empty.
func isRest(path string) bool {
	kind, names, more := strings.Cut(path, "/")
	limits, ok := resources[kind]
	if !ok || !more {
		return ok && limits.least == 0
	}
	n := strings.Count(names, "/") + 1
	if n < limits.least || n > limits.most || strings.Contains("/"+names+"/", "//") {
		return false
	}
	return kind != "properties" || n < 2 || names[strings.IndexByte(names, '/')+1:] == observable
}

// unescape undoes percent-encoding once. An escaped path is always valid.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}
