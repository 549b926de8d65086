package rest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A request is a message that fits the description of its thing, ready to be sent by one of the forms.
type request struct {
	thing   *td.Thing
	message *interact.Message
	op      string
	forms   []td.Form
	vars    map[string]string // variables of the address
	body    []byte            // what is left of the input
	// promised tells that the description promises a value in the answer.
	promised bool
	// repeatable tells that a request may be sent again if the connection broke before an answer (safe or idempotent).
	repeatable bool
	// synchronous is what the action says of itself; nil if it says nothing.
	synchronous *bool

	// Chosen by [Client.choose].
	form    *td.Form
	secrets secrets
}

// check finds the affordance that m asks for, and tells whether the operation is offered and the input fits. Nothing is
// sent before it agrees.
func check(t *td.Thing, m *interact.Message) (*request, error) {
	if m.Chunks != nil {
		return nil, interact.Errorf(interact.NotAllowed, "send the input in one message",
			"%s takes no stream of chunks over HTTP", label(t))
	}
	if m.Type == interact.InvokeAction {
		return checkAction(t, m)
	}
	return checkProperty(t, m)
}

func checkAction(t *td.Thing, m *interact.Message) (*request, error) {
	a := t.Actions[m.Name]
	if a == nil {
		return nil, noAffordance(t, "action", m.Name, slices.Sorted(maps.Keys(t.Actions)))
	}
	r := &request{thing: t, message: m, op: "invokeaction", forms: a.Forms, promised: a.Output != nil,
		repeatable: a.Safe || a.Idempotent, synchronous: a.Synchronous}
	return r, r.take(a.URIVariables, a.Input)
}

func checkProperty(t *td.Thing, m *interact.Message) (*request, error) {
	p := t.Properties[m.Name]
	if p == nil {
		return nil, noAffordance(t, "property", m.Name, slices.Sorted(maps.Keys(t.Properties)))
	}
	r := &request{thing: t, message: m, op: "readproperty", forms: p.Forms, promised: true}
	if m.Type == interact.WriteProperty {
		r.op, r.promised = "writeproperty", false
	}
	switch {
	case r.promised && p.WriteOnly:
		return nil, interact.Errorf(interact.NotAllowed, "it can be written only",
			"property %q of %s cannot be read", m.Name, label(t))
	case !r.promised && p.ReadOnly:
		return nil, interact.Errorf(interact.NotAllowed, "it can be read only",
			"property %q of %s cannot be written", m.Name, label(t))
	case r.promised:
		return r, r.takeVariables(p.URIVariables)
	}
	return r, r.take(p.URIVariables, p.Schema)
}

// take splits the message's data into variables and body, and checks both.
func (r *request) take(vars map[string]*td.Schema, input *td.Schema) error {
	m := r.message
	if len(m.Data) > 0 && !td.IsJSON(m.Media()) {
		r.body = m.Data // no schema speaks about it; choose looks at its media type
		return nil
	}
	rest, issues := r.split(vars, input)
	value, err := decode(rest)
	switch {
	case err != nil:
		issues = append(issues, td.Issue{Reason: err.Error()})
	case len(rest) > 0:
		r.body = rest
		issues = append(issues, r.withhold(value, input)...)
	case r.op == "writeproperty":
		issues = append(issues, td.Issue{Reason: "a value is needed"})
	default:
		r.body, issues = r.absent(input, issues)
	}
	if len(issues) > 0 {
		return invalid(m, issues)
	}
	return nil
}

// takeVariables is take for an operation without a body.
func (r *request) takeVariables(vars map[string]*td.Schema) error {
	if _, issues := r.split(vars, nil); len(issues) > 0 {
		return invalid(r.message, issues)
	}
	return nil
}

// decode reads JSON strictly: a name that stands twice could mean one thing here and another to the agent.
func decode(data []byte) (any, error) {
	if len(data) == 0 {
		return nil, nil
	}
	return jcs.Decode(data, len(data))
}

// absent is the body of an action that was given no input: nothing if nothing is asked for, and an empty object where all
// members are optional. Else it says what is missing.
func (r *request) absent(input *td.Schema, issues []td.Issue) (body []byte, all []td.Issue) {
	switch input.Type() {
	case "":
		return nil, issues
	case "object":
		return []byte("{}"), append(issues, r.withhold(map[string]any{}, input)...)
	}
	return nil, append(issues, td.Issue{Reason: "an input is needed: " + input.Type()})
}

// withhold checks value as the agent will see it: members that this node's credentials fill (in: body, TD 1.1 §5.3.3)
// are not the consumer's to give.
func (r *request) withhold(value any, input *td.Schema) []td.Issue {
	pointers := r.bodyPointers()
	for _, p := range pointers {
		place(value, p, "")
	}
	return slices.DeleteFunc(input.Check(value), func(i td.Issue) bool { return slices.Contains(pointers, i.Pointer) })
}

func (r *request) bodyPointers() []string {
	var pointers []string
	for _, f := range r.forms {
		for _, name := range f.Security {
			if s := r.thing.SecurityDefs[name]; s != nil && s.In == "body" {
				pointers = append(pointers, bodyPointer(s.Name))
			}
		}
	}
	return pointers
}

// place sets the member at a JSON pointer and makes the objects on the way. It reports whether value had room for it.
func place(value any, pointer, member string) bool {
	o, ok := value.(map[string]any)
	steps := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, step := range steps {
		if !ok {
			return false
		}
		step = unescapePointer.Replace(step)
		if i == len(steps)-1 {
			o[step] = member
			break
		}
		if o[step] == nil {
			o[step] = map[string]any{}
		}
		o, ok = o[step].(map[string]any)
	}
	return ok
}

// RFC 6901 §3.
var (
	escapePointer   = strings.NewReplacer("~", "~0", "/", "~1")
	unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")
)

// below moves issues under a pointer.
func below(pointer string, issues []td.Issue) []td.Issue {
	moved := slices.Clone(issues)
	for i := range moved {
		moved[i].Pointer = pointer + moved[i].Pointer
	}
	return moved
}

func invalid(m *interact.Message, issues []td.Issue) error {
	what := m.Name
	if what == "" {
		what = "the input"
	}
	first := issues[0].Reason
	if p := issues[0].Pointer; p != "" {
		first = p + ": " + first
	}
	if n := len(issues) - 1; n > 0 {
		first += fmt.Sprintf(" (and %d more)", n)
	}
	return &interact.Error{Code: interact.Invalid, Title: what + " does not take this: " + first, Issues: issues,
		Hint: "lmosd show " + interact.Quote(m.Thing) + " prints what it takes"}
}

// label is how a thing is called in errors.
func label(t *td.Thing) string {
	if t.Title != "" {
		return t.Title
	}
	return t.ID
}

// noAffordance says that the thing has no such property or action, and what it has instead.
func noAffordance(t *td.Thing, kind, name string, have []string) error {
	e := interact.Errorf(interact.NoAffordance, "", "%s has no %s %q", label(t), kind, clip(name, 100))
	switch close := near(name, have); {
	case t.Actions[name] != nil:
		e.Hint = fmt.Sprintf("%q is an action: it can be called", name)
	case t.Properties[name] != nil:
		e.Hint = fmt.Sprintf("%q is a property: it can be read or written", name)
	case t.Events[name] != nil:
		e.Hint = fmt.Sprintf("%q is an event: it can be subscribed to", name)
	case len(close) > 0:
		e.Hint = "did you mean " + strings.Join(close, " or ") + "?"
	case len(have) == 0:
		e.Hint = "it has none of this kind"
	default:
		e.Hint = "it has " + strings.Join(have[:min(len(have), 10)], ", ")
	}
	return e
}

// near returns the names that are alike: equal but for case, one in the other, or at most a third of the letters apart.
func near(name string, have []string) []string {
	if len(name) > 256 {
		return nil
	}
	var found []string
	low := strings.ToLower(name)
	for _, h := range have {
		other := strings.ToLower(h)
		within := min(len(low), len(other)) > 2 && (strings.Contains(other, low) || strings.Contains(low, other))
		if len(found) < 3 && (within || distance(low, other) <= max(len(low), len(other))/3) {
			found = append(found, h)
		}
	}
	return found
}

// distance is the number of single-byte edits between a and b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// members splits the object of data.
func members(data []byte) ([]jcs.Member, error) { return jcs.Members(trimJSON(data)) }

// trimJSON cuts the space that JSON allows around a value (RFC 8259 §2), and no other.
func trimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }
