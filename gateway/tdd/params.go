package tdd

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// repeated are the parameters that may be repeated.
var repeated = []string{"capability", "for", "rule"}

// Params reads the query of r. An unknown parameter is an error (tdd-http-unsupported-feature), because without it the query is a different
// one. Only capability may repeat.
func Params(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, interact.Errorf(interact.Usage, "percent-encode its values", "invalid query: %v", err)
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, interact.Errorf(interact.Usage, "known parameters: "+strings.Join(known, ", "), "unknown parameter %q",
				Clip(name))
		}
		if len(values) > 1 && !slices.Contains(repeated, name) {
			return nil, interact.Errorf(interact.Usage, "send it once", "the parameter %q is repeated %d times", Clip(name), len(values))
		}
	}
	return q, nil
}

// Integer reads an integer from low to high; fallback if it is absent.
func Integer(q url.Values, name string, low, high, fallback int) (int, error) {
	if !q.Has(name) {
		return fallback, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < low || n > high {
		return 0, interact.Errorf(interact.Usage, name+"="+strconv.Itoa(max(low, 10)), "%s is %q; expected a number from %d to %d",
			name, Clip(q.Get(name)), low, high)
	}
	return n, nil
}

// Flag reads a boolean: true, false, 1 or 0. An absent one is otherwise.
func Flag(q url.Values, name string, fallback bool) (bool, error) {
	switch s := q.Get(name); {
	case !q.Has(name):
		return fallback, nil
	case s == "true" || s == "1":
		return true, nil
	case s == "false" || s == "0":
		return false, nil
	default:
		return false, interact.Errorf(interact.Usage, name+"=true", "%s is %q; expected true or false", name, Clip(s))
	}
}

// oneOf reads one of some values; "" if it is absent.
func oneOf(q url.Values, name string, values ...string) (string, error) {
	value := q.Get(name)
	if value != "" && !slices.Contains(values, value) {
		return "", interact.Errorf(interact.Usage, name+"="+strings.Join(values, " or ")+", or leave it out", "unknown %s %q",
			name, Clip(value))
	}
	return value, nil
}

// NotAllowed sets the header Allow and returns the error of a method that a path does not support.
func NotAllowed(w http.ResponseWriter, r *http.Request, allow string) error {
	w.Header().Set("Allow", allow)
	return interact.Errorf(interact.NotAllowed, "use "+allow, "method %s is not supported at %s", Clip(r.Method), Clip(r.URL.Path))
}

// Clip shortens text of a caller for an error, and removes control characters, which a terminal would execute.
func Clip(s string) string { return interact.Excerpt(s, 200) }
