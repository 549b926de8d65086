package server

import (
	"net/http"
	"net/url"
	"strings"
)

// resources has the minimum and maximum number of names after the word in a path: /actions/{name}/{run},
// /properties/{name}/observable, /events/{name}, /subscriptions/{id}, /td.
var resources = map[string]struct{ least, most int }{
	"properties": {0, 2}, "actions": {0, 2}, "events": {0, 1}, "subscriptions": {1, 1}, "td": {0, 0},
}

// observable is the only name that may follow that of a property.
const observable = "observable"

// ThingID splits the path of r behind prefix ("/things/") into a thing's id and the rest: "", or what begins with properties,
// actions, events, subscriptions or td. The id is unescaped once; the rest is still escaped, so that a name may hold an escaped
// slash. The id may be any URI, raw or percent-encoded, also one with slashes and double slashes: clients send both.
//
// A raw id that itself ends like such a rest, "urn:x/actions/y" or "https://x.example/td", is taken apart at the first place
// that fits: escape its slashes to name it. Both results are empty if the path does not begin with prefix.
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

// isRest reports whether a path is a word of resources with a valid number of names, none of them empty.
func isRest(path string) bool {
	word, names, more := strings.Cut(path, "/")
	room, ok := resources[word]
	if !ok || !more {
		return ok && room.least == 0
	}
	n := strings.Count(names, "/") + 1
	if n < room.least || n > room.most || strings.Contains("/"+names+"/", "//") {
		return false
	}
	return word != "properties" || n < 2 || names[strings.IndexByte(names, '/')+1:] == observable
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
