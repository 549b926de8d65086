package rest

import (
	"net/http"
	"net/url"
	"strings"
)

// resources says how many names may follow the word in a path: /actions/{name}/{task}, /properties/{name}, /events/{name}.
var resources = map[string]int{"actions": 2, "properties": 1, "events": 1}

// ThingID splits the path of r behind prefix ("/things/") into a thing's id and the rest: "", or what begins with actions,
// properties or events. The id is unescaped once; the rest is still escaped, so that a name may hold an escaped slash. The
// id may be any URI, raw or percent-encoded, also one with slashes and double slashes: clients send both.
//
// A raw id that itself ends like such a rest, "urn:x/actions/y", is taken apart at the first place that fits: escape its
// slashes to name it. Both results are empty if the path does not begin with prefix.
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

// isRest tells whether a path is a resource word and no more names than may follow it, none of them empty.
func isRest(path string) bool {
	word, names, more := strings.Cut(path, "/")
	room, ok := resources[word]
	if !ok || !more {
		return ok
	}
	return strings.Count(names, "/") < room && !strings.Contains("/"+names+"/", "//")
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
