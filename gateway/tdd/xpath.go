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

// xpath answers a query in XPath over the array of Enriched TDs (WoT Discovery §7.3.3.3). A member of an object is an element
// with its name, an element of an array one without, text is the text of a value: /*[title='Lamp'] finds what //*[@type] does
// not, for JSON has no attributes. The answer is an array of the values found, or of the one that an expression has.
func (s *Server) xpath(w http.ResponseWriter, r *http.Request) error {
	query, err := queryOf(r)
	if err != nil {
		return err
	}
	return s.search(w, r, inXPath, query, s.byXPath)
}

func (s *Server) byXPath(b *budget, query string) (found, error) {
	price, program, err := weighXPath(query)
	if err != nil {
		return found{}, err
	}
	boundRegexps()
	expr, err := xpath.Compile(query)
	if err != nil {
		return found{}, interact.Errorf(interact.Usage, "/*[title='Lamp'] is one", "the query is no XPath: %s", clip(err.Error()))
	}
	all := s.everything()
	release, err := s.whole(b, all) // what the library keeps for itself it does not tell
	if err != nil {
		return found{}, err
	}
	defer release()
	return evaluate(expr, &navigator{budget: b, forest: &forest{things: all, value: s.value, price: price, program: program}})
}

// boundRegexps has the library compile bounded regular expressions only, and keep few: this is the way it offers.
var boundRegexps = sync.OnceFunc(func() { xpath.RegexpCache = xpath.NewLoadingCache(boundedRegexp, 256) })

// evaluate returns what expr has over all things.
func evaluate(expr *xpath.Expr, root *navigator) (found, error) {
	out := &answer{budget: root.budget}
	result := expr.Evaluate(root)
	nodes, ok := result.(*xpath.NodeIterator)
	if !ok {
		err := out.add([]any{result})
		return out.end(), err
	}
	for nodes.MoveNext() {
		n, ok := nodes.Current().(*navigator)
		if !ok {
			return found{}, fmt.Errorf("xpath: a %T for a node", nodes.Current())
		}
		if n.top() {
			return found{}, interact.Errorf(interact.Usage, "GET /things lists them", "the query finds all things at once")
		}
		if err := out.add([]any{n.current()}); err != nil {
			return found{}, err
		}
	}
	return out.end(), nil
}

// weighXPath returns what each step of a query may cost beyond the step, and how many instructions of a regular expression the
// text of a value may be tried on. The library walks as it is told to (see navigator), but makes texts and matches them without
// being asked to stop: what it can do so with the literals of the query is paid for at each step, and what with the text of a
// value when that is taken. Where texts grow, neither is enough: such functions are refused.
func weighXPath(query string) (price, program int, err error) {
	uses, grows := matchesOf(query)
	if grows != "" {
		return 0, 0, interact.Errorf(interact.Usage, "leave it out", "%s() is not offered here: what it makes has no bounds", grows)
	}
	price = len(query) / 64
	for _, m := range uses {
		instructions, err := checkPattern(m.pattern)
		if err != nil {
			return 0, 0, err
		}
		if m.dynamic {
			instructions = maxProgram
		}
		price += m.subject * instructions / 64
		program = max(program, instructions)
	}
	return price, program, nil
}

// A matching is one use of matches in a query.
type matching struct {
	subject int    // bytes of literals in what is matched
	pattern string // the literal that is the regular expression
	dynamic bool   // the regular expression is something else
}

// matchesOf returns the uses of matches in a query, and which function stands there that must not: those beyond XPath 1.0 whose
// results can be made to grow without an end, and concat in what is matched.
func matchesOf(query string) (all []*matching, grows string) {
	type bracket struct {
		use *matching // the bracket is that of matches
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
	for part, quoted := range inXPath.pieces(query) {
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
					b.use = new(matching)
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

// A forest is all things, each read when it is looked at.
type forest struct {
	things  []Item
	value   func(Item) any
	price   int // of a step, beyond 1
	program int // instructions of a regular expression that a text may be tried on
}

// A place is where a navigator is: an element of a container of which those before and after are known. It is never changed once
// another place is below it.
type place struct {
	up    *place         // nil: an element of the array of all things
	list  []any          // the container, if it is an array
	names []string       // of the members of the container, if it is an object
	in    map[string]any // that object
	at    int            // the element, member or thing
	value any            // that is there; of a thing nil until somebody looks: see navigator.current
	text  bool           // it is the text of the value above
}

// A navigator walks through everything as xpath asks, and pays for each step and for what it makes. Its root is the array of all
// things. A copy is independent: the place is its own, and those above are never changed.
type navigator struct {
	*budget
	forest *forest
	inside bool // of the array of all things: here says where
	here   place
}

// What the library may keep of a navigator: itself, its slot in a list that has grown, and in a table of those that were seen.
const navigatorBytes = int(unsafe.Sizeof(navigator{})) + 64

// What a place above takes.
const placeBytes = int(unsafe.Sizeof(place{}))

func (n *navigator) top() bool { return !n.inside }

// move pays for a step.
func (n *navigator) move() { n.step(1 + n.forest.price) }

// text pays for a text that is taken, and for the regular expression that it may be tried on.
func (n *navigator) text(s string) string {
	n.step(1 + len(s)/16)
	n.hold(len(s))
	n.match(n.forest.program, len(s))
	return s
}

// current returns the value of the node, which is inside.
func (n *navigator) current() any {
	if n.here.up == nil && n.here.value == nil {
		thing := n.forest.things[n.here.at]
		n.step(1 + len(thing.TD)/64)
		n.here.value = n.forest.value(thing)
	}
	return n.here.value
}

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
		return n.text(n.here.names[n.here.at])
	}
	return ""
}

// Prefix is empty: names of JSON have none.
func (n *navigator) Prefix() string { return "" }

// Value is the text of a value; what has parts is JSON.
func (n *navigator) Value() string {
	if n.top() {
		n.fail(interact.Usage, "the query takes the text of all things at once")
	}
	return n.text(scalarText(n.current())) // it was read from JSON
}

// Copy returns a navigator at the same node.
func (n *navigator) Copy() xpath.NodeNavigator {
	n.move()
	n.hold(navigatorBytes)
	other := *n
	return &other
}

// MoveToRoot goes to the array of all things.
func (n *navigator) MoveToRoot() { n.inside, n.here = false, place{} }

// MoveToParent goes up.
func (n *navigator) MoveToParent() bool {
	n.move()
	if n.top() {
		return false
	}
	if n.here.up == nil {
		n.MoveToRoot()
	} else {
		n.here = *n.here.up
	}
	return true
}

// MoveToNextAttribute finds none: JSON has no attributes.
func (n *navigator) MoveToNextAttribute() bool { return false }

// MoveToChild goes to the first member or element, or to the text.
func (n *navigator) MoveToChild() bool {
	n.move()
	if n.top() {
		if len(n.forest.things) == 0 {
			return false
		}
		n.inside, n.here = true, place{}
		return true
	}
	if n.here.text {
		return false
	}
	var next place
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
		n.step(len(v))
		n.hold(len(v) * int(unsafe.Sizeof("")))
	default:
		next.text, next.value = true, scalarText(v)
	}
	n.hold(placeBytes)
	above := n.here
	next.up = &above
	n.here = next
	return true
}

// scalarText is the text of a value; what has parts is JSON.
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
	n.move()
	if n.top() || n.here.text {
		return at == 0
	}
	switch p := &n.here; {
	case at < 0:
		return false
	case p.in != nil && at < len(p.names):
		p.value = p.in[p.names[at]]
	case p.list != nil && at < len(p.list):
		p.value = p.list[at]
	case p.up == nil && at < len(n.forest.things):
		p.value = nil
	default:
		return false
	}
	n.here.at = at
	return true
}

// MoveTo goes where another navigator is.
func (n *navigator) MoveTo(to xpath.NodeNavigator) bool {
	other, ok := to.(*navigator)
	if !ok || other.forest != n.forest {
		return false
	}
	n.inside, n.here = other.inside, other.here
	return true
}
