package tdd

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unsafe"

	"github.com/antchfx/xpath"

	"github.com/lmosd/lmosd/interact"
)

// xpath serves an XPath query over the array of Enriched TDs (WoT Discovery §7.3.3.3). A member of an object is an element with its name,
// an element of an array is one without a name, and the text of an element is its value; JSON has no attributes. The response is the array
// of the values found, or of the one value of an expression.
func (s *Server) xpath(w http.ResponseWriter, r *http.Request) error {
	query, err := queryOf(r)
	if err != nil {
		return err
	}
	return s.search(w, r, inXPath, query, s.evalXPath)
}

func (s *Server) evalXPath(b *budget, query string) (queryResult, error) {
	extraSteps, program, err := weighXPath(query)
	if err != nil {
		return queryResult{}, err
	}
	boundRegexps()
	expr, err := xpath.Compile(query)
	if err != nil {
		return queryResult{}, interact.Errorf(interact.Usage, "for example /*[title='Lamp']", "the query is not XPath: %s", Clip(err.Error()))
	}
	all := s.allThings(b.ctx)
	release, err := s.admitWhole(b, all) // the library does not report its memory
	if err != nil {
		return queryResult{}, err
	}
	defer release()
	return evaluate(expr, &navigator{budget: b, forest: &forest{things: all, value: s.value, extraSteps: extraSteps, program: program}})
}

// boundRegexps limits the regular expressions that the library compiles and caches.
var boundRegexps = sync.OnceFunc(func() { xpath.RegexpCache = xpath.NewLoadingCache(boundedRegexp, 256) })

// evaluate returns the results of expr over all Things.
func evaluate(expr *xpath.Expr, root *navigator) (queryResult, error) {
	out := &resultArray{budget: root.budget}
	result := expr.Evaluate(root)
	nodes, ok := result.(*xpath.NodeIterator)
	if !ok {
		err := out.add([]any{result})
		return out.end(), err
	}
	for nodes.MoveNext() {
		n, ok := nodes.Current().(*navigator)
		if !ok {
			return queryResult{}, fmt.Errorf("xpath: a %T for a node", nodes.Current())
		}
		if n.isRoot() {
			return queryResult{}, interact.Errorf(interact.Usage, "use GET /things", "the query selects the array of all Things")
		}
		if err := out.add([]any{n.current()}); err != nil {
			return queryResult{}, err
		}
	}
	return out.end(), nil
}

// weighXPath returns the additional steps of each step of a query, and the number of instructions that the text of a value may be matched
// against. The library walks through a navigator, which counts steps, but builds and matches texts without the navigator. Matches of
// literals are counted at each step, matches of values when the navigator returns their text. Functions whose results grow are rejected.
func weighXPath(query string) (extraSteps, program int, err error) {
	uses, grows := matchesOf(query)
	if grows != "" {
		return 0, 0, interact.Errorf(interact.Usage, "leave it out", "%s() is not supported: its results are not limited", grows)
	}
	extraSteps = len(query) / 64
	for _, m := range uses {
		instructions, err := checkPattern(m.pattern)
		if err != nil {
			return 0, 0, err
		}
		if m.dynamic {
			instructions = maxProgram
		}
		extraSteps += m.subject * instructions / 64
		program = max(program, instructions)
	}
	return extraSteps, program, nil
}

// A matchCall is one use of matches in a query.
type matchCall struct {
	subject int    // bytes of literals in the first argument
	pattern string // the regular expression, if it is a literal
	dynamic bool   // the regular expression is not a literal
}

// matchesOf returns the uses of matches in a query, and a function that is not permitted: those beyond XPath 1.0 with results that can grow
// without limit, and concat in the first argument of matches.
func matchesOf(query string) (all []*matchCall, grows string) {
	type bracket struct {
		use *matchCall // the bracket is that of matches
		arg int
	}
	var open []bracket
	innermost := func() bracket {
		if len(open) == 0 {
			return bracket{}
		}
		return open[len(open)-1]
	}
	inSubject := func(b bracket) bool { return b.use != nil && b.arg == 0 }
	for part, quoted := range inXPath.parts(query) {
		if quoted {
			for _, b := range open {
				if inSubject(b) {
					b.use.subject += len(part)
				}
			}
			if b := innermost(); b.use != nil && b.arg == 1 {
				b.use.pattern = strings.Trim(part, part[:1])
			}
			continue
		}
		for i, c := range part {
			if b := innermost(); b.use != nil && b.arg == 1 && c != ')' && !unicode.IsSpace(c) {
				b.use.dynamic = true
			}
			switch c {
			case '(', '[':
				name := strings.TrimRightFunc(part[:i], unicode.IsSpace)
				var b bracket
				switch {
				case c == '[':
				case strings.HasSuffix(name, "matches"):
					b.use = new(matchCall)
					all = append(all, b.use)
				case strings.HasSuffix(name, "replace"), strings.HasSuffix(name, "string-join"),
					strings.HasSuffix(name, "concat") && slices.ContainsFunc(open, inSubject):
					grows = name[strings.LastIndexFunc(name, notInName)+1:]
				}
				open = append(open, b)
			case ')', ']':
				open = open[:max(len(open)-1, 0)]
			case ',':
				if len(open) > 0 {
					open[len(open)-1].arg++
				}
			}
		}
	}
	return all, grows
}

func notInName(r rune) bool { return r != '-' && !unicode.IsLetter(r) }

// A forest is all Things, each decoded on first use.
type forest struct {
	things     []Item
	value      func(Item) any
	extraSteps int // additional steps of a step
	program    int // instructions that a text may be matched against
}

// A position is a node of a navigator: an element or member with its container. It is read-only once another position is below it.
type position struct {
	parent *position      // nil: an element of the array of all Things
	list   []any          // the container, if it is an array
	names  []string       // member names of the container, if it is an object
	in     map[string]any // that object
	at     int            // index of the element, member or Thing
	value  any            // nil for a Thing until it is used: see navigator.current
	text   bool           // a text node: the text of the value of parent
}

// A navigator walks through all Things for the library and counts steps and memory. Its root is the array of all Things. Copies are
// independent.
type navigator struct {
	*budget
	forest    *forest
	belowRoot bool // in the array of all Things, at here
	here      position
}

// navigatorBytes is the memory that the library may keep for a navigator: itself, its slot in a grown list, and in a set of visited ones.
const navigatorBytes = int(unsafe.Sizeof(navigator{})) + 64

// positionBytes is the memory of a position above.
const positionBytes = int(unsafe.Sizeof(position{}))

func (n *navigator) isRoot() bool { return !n.belowRoot }

// countMove counts a step.
func (n *navigator) countMove() { n.addSteps(1 + n.forest.extraSteps) }

// countText counts the use of a text and its possible match.
func (n *navigator) countText(s string) string {
	n.addSteps(1 + len(s)/16)
	n.addBytes(len(s))
	n.addMatch(n.forest.program, len(s))
	return s
}

// current returns the value of a node below the root.
func (n *navigator) current() any {
	if n.here.parent == nil && n.here.value == nil {
		thing := n.forest.things[n.here.at]
		n.addSteps(1 + len(thing.TD)/64)
		n.here.value = n.forest.value(thing)
	}
	return n.here.value
}

func (n *navigator) NodeType() xpath.NodeType {
	switch {
	case n.isRoot():
		return xpath.RootNode
	case n.here.text:
		return xpath.TextNode
	}
	return xpath.ElementNode
}

// LocalName returns the name of a member, "" for an element of an array, and the text of a text node.
func (n *navigator) LocalName() string {
	switch {
	case n.isRoot():
		return ""
	case n.here.text:
		return n.Value()
	case n.here.in != nil:
		return n.countText(n.here.names[n.here.at])
	}
	return ""
}

// Prefix returns "": names of JSON have none.
func (n *navigator) Prefix() string { return "" }

// Value returns the text of a value; objects and arrays are JSON.
func (n *navigator) Value() string {
	if n.isRoot() {
		n.fail(interact.Usage, "the query uses the text of all Things at once")
	}
	return n.countText(scalarText(n.current()))
}

// Copy returns a navigator at the same node.
func (n *navigator) Copy() xpath.NodeNavigator {
	n.countMove()
	n.addBytes(navigatorBytes)
	other := *n
	return &other
}

// MoveToRoot moves to the array of all Things.
func (n *navigator) MoveToRoot() { n.belowRoot, n.here = false, position{} }

// MoveToParent moves up.
func (n *navigator) MoveToParent() bool {
	n.countMove()
	if n.isRoot() {
		return false
	}
	if n.here.parent == nil {
		n.MoveToRoot()
	} else {
		n.here = *n.here.parent
	}
	return true
}

// MoveToNextAttribute returns false: JSON has no attributes.
func (n *navigator) MoveToNextAttribute() bool { return false }

// MoveToChild moves to the first member or element, or to the text.
func (n *navigator) MoveToChild() bool {
	n.countMove()
	if n.isRoot() {
		if len(n.forest.things) == 0 {
			return false
		}
		n.belowRoot, n.here = true, position{}
		return true
	}
	if n.here.text {
		return false
	}
	var next position
	switch v := n.current().(type) {
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
		n.addSteps(len(v))
		n.addBytes(len(v) * int(unsafe.Sizeof("")))
	default:
		next.text, next.value = true, scalarText(v)
	}
	n.addBytes(positionBytes)
	above := n.here
	next.parent = &above
	n.here = next
	return true
}

// scalarText returns the text of a value; objects and arrays are JSON.
func scalarText(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	text, _ := json.Marshal(v) // decoded JSON always encodes
	return string(text)
}

// MoveToFirst moves to the first sibling.
func (n *navigator) MoveToFirst() bool { return n.moveToSibling(0) }

// MoveToNext moves to the next sibling.
func (n *navigator) MoveToNext() bool { return !n.isRoot() && n.moveToSibling(n.here.at+1) }

// MoveToPrevious moves to the previous sibling.
func (n *navigator) MoveToPrevious() bool { return !n.isRoot() && n.moveToSibling(n.here.at-1) }

// moveToSibling moves to the sibling at an index, if it exists.
func (n *navigator) moveToSibling(at int) bool {
	n.countMove()
	if n.isRoot() || n.here.text {
		return at == 0
	}
	switch p := &n.here; {
	case at < 0:
		return false
	case p.in != nil && at < len(p.names):
		p.value = p.in[p.names[at]]
	case p.list != nil && at < len(p.list):
		p.value = p.list[at]
	case p.parent == nil && at < len(n.forest.things):
		p.value = nil
	default:
		return false
	}
	n.here.at = at
	return true
}

// MoveTo moves to the node of another navigator.
func (n *navigator) MoveTo(to xpath.NodeNavigator) bool {
	other, ok := to.(*navigator)
	if !ok || other.forest != n.forest {
		return false
	}
	n.belowRoot, n.here = other.belowRoot, other.here
	return true
}
