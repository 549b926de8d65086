package tdd

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"sync"

	"github.com/antchfx/xpath"

	"github.com/lmosd/lmosd/interact"
)

// xpath answers a query in XPath over the array of Enriched TDs (WoT Discovery §7.3.3.3). A member of an object is an element
// with its name, an element of an array one without, text is the text of a value: /*[title='Lamp'] finds what //*[@type] does
// not, for JSON has no attributes. The answer is an array of the values found, or of the one that an expression has.
func (s *Server) xpath(w http.ResponseWriter, r *http.Request) error {
	query, err := queryOf(r)
	if err != nil {
		return err
	}
	return s.search(w, r, query, func(b *budget, query string) (found, error) {
		if f := growing.FindString(outside(query)); f != "" {
			return found{}, interact.Errorf(interact.Usage, "leave it out", "%s) is not offered: what it makes has no bounds", f)
		}
		boundRegexps()
		expr, err := xpath.Compile(query)
		if err != nil {
			return found{}, interact.Errorf(interact.Usage, "/*[title='Lamp'] is one", "the query is no XPath: %s", clip(err.Error()))
		}
		values, err := evaluate(b, expr, &forest{things: s.everything(), value: s.value})
		if err != nil {
			return found{}, err
		}
		body, err := appendValues(b, values)
		return found{typeJSON, body}, err
	})
}

// growing are functions beyond XPath 1.0 whose results can be made to grow without an end.
var growing = regexp.MustCompile(`\b(replace|string-join)\s*\(`)

// boundRegexps has the library compile bounded regular expressions only, and keep few: this is the way it offers.
var boundRegexps = sync.OnceFunc(func() { xpath.RegexpCache = xpath.NewLoadingCache(boundedRegexp, 256) })

// evaluate returns what expr has over all things.
func evaluate(b *budget, expr *xpath.Expr, f *forest) ([]any, error) {
	result := expr.Evaluate(&navigator{budget: b, forest: f})
	nodes, ok := result.(*xpath.NodeIterator)
	if !ok {
		return []any{result}, nil
	}
	var values []any
	for nodes.MoveNext() {
		n, ok := nodes.Current().(*navigator)
		if !ok {
			return nil, fmt.Errorf("xpath: a %T for a node", nodes.Current())
		}
		if n.top() {
			return nil, interact.Errorf(interact.Usage, "GET /things lists them", "the query finds all things at once")
		}
		if values = append(values, n.current()); len(values) > maxFound {
			b.fail(interact.Overloaded, "the query finds more than %d values", maxFound)
		}
	}
	return values, nil
}

// A forest is all things, each read when it is looked at.
type forest struct {
	things []Item
	value  func(Item) any
}

// A place is where a navigator is: an element of a container of which those before and after are known. It is never changed once
// another place is below it.
type place struct {
	up    *place
	list  []any          // the container, if it is an array
	names []string       // of the members of the container, if it is an object
	in    map[string]any // that object
	at    int            // the element, member or thing
	value any            // that is there
	text  bool           // it is the text of the value above
}

// A navigator walks through everything as xpath asks, and pays for each step. Its root is the array of all things. A copy is
// independent: places are shared, and replaced rather than changed.
type navigator struct {
	*budget
	forest *forest
	here   *place // nil: at the root
}

func (n *navigator) top() bool { return n.here == nil }

// current returns the value of the node.
func (n *navigator) current() any { return n.here.value }

// NodeType implements [xpath.NodeNavigator], as do those below.
func (n *navigator) NodeType() xpath.NodeType {
	switch {
	case n.top():
		return xpath.RootNode
	case n.here.text:
		return xpath.TextNode
	}
	return xpath.ElementNode
}

// LocalName is the name of a member; an element of an array has none, and a text is its own.
func (n *navigator) LocalName() string {
	switch {
	case n.top():
		return ""
	case n.here.text:
		return n.Value()
	case n.here.in != nil:
		return n.here.names[n.here.at]
	}
	return ""
}

// Prefix is empty: names of JSON have none.
func (n *navigator) Prefix() string { return "" }

// Value is the text of a value; what has parts is JSON.
func (n *navigator) Value() string {
	n.step(1)
	if n.top() {
		n.fail(interact.Usage, "the query takes the text of all things at once")
	}
	if text, ok := n.here.value.(string); ok {
		n.step(len(text) / 16)
		return text
	}
	text, _ := json.Marshal(n.here.value) // it was read from JSON
	n.step(len(text) / 16)
	return string(text)
}

// Copy returns a navigator at the same node.
func (n *navigator) Copy() xpath.NodeNavigator {
	other := *n
	return &other
}

// MoveToRoot goes to the array of all things.
func (n *navigator) MoveToRoot() { n.here = nil }

// MoveToParent goes up.
func (n *navigator) MoveToParent() bool {
	n.step(1)
	if n.top() {
		return false
	}
	n.here = n.here.up
	return true
}

// MoveToNextAttribute finds none: JSON has no attributes.
func (n *navigator) MoveToNextAttribute() bool { return false }

// MoveToChild goes to the first member or element, or to the text.
func (n *navigator) MoveToChild() bool {
	n.step(1)
	next := &place{up: n.here}
	if n.top() {
		if len(n.forest.things) == 0 {
			return false
		}
		next.value = n.forest.value(n.forest.things[0])
		n.here = next
		return true
	}
	if n.here.text {
		return false
	}
	switch v := n.here.value.(type) {
	case []any:
		if len(v) == 0 {
			return false
		}
		next.list, next.value = v, v[0]
	case map[string]any:
		if len(v) == 0 {
			return false
		}
		next.in, next.names = v, slices.Sorted(maps.Keys(v))
		next.value = v[next.names[0]]
		n.step(len(v))
	default:
		next.text, next.value = true, scalarText(v)
	}
	n.here = next
	return true
}

// scalarText is the text of a value without parts.
func scalarText(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	text, _ := json.Marshal(v) // it was read from JSON
	return string(text)
}

// MoveToFirst goes to the first of what is beside.
func (n *navigator) MoveToFirst() bool { return n.beside(0) }

// MoveToNext goes to what comes after.
func (n *navigator) MoveToNext() bool { return !n.top() && n.beside(n.here.at+1) }

// MoveToPrevious goes to what comes before.
func (n *navigator) MoveToPrevious() bool { return !n.top() && n.beside(n.here.at-1) }

// beside goes to another part of the same container, if there is one.
func (n *navigator) beside(at int) bool {
	n.step(1)
	if n.top() || n.here.text {
		return at == 0
	}
	next := *n.here
	next.at = at
	switch p := n.here; {
	case at < 0:
		return false
	case p.in != nil && at < len(p.names):
		next.value = p.in[p.names[at]]
	case p.list != nil && at < len(p.list):
		next.value = p.list[at]
	case p.up == nil && at < len(n.forest.things):
		next.value = n.forest.value(n.forest.things[at])
	default:
		return false
	}
	n.here = &next
	return true
}

// MoveTo goes where another navigator is.
func (n *navigator) MoveTo(to xpath.NodeNavigator) bool {
	other, ok := to.(*navigator)
	if !ok || other.forest != n.forest {
		return false
	}
	n.here = other.here
	return true
}
