package interact

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/schema"
)

// Checked passes only messages that fit the description d: a known affordance, a supported operation, and input within its schema
// (TD 1.1 §5.3.1: consumers must not send data outside the schema).
func Checked(d *td.Thing) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			if err := Check(d, m); err != nil {
				return Fail(err)
			}
			return t.Do(ctx, m)
		})
	}
}

// CheckedReplies replaces a reply that violates the description d by the error AgentFailed, which ends the interaction: an output,
// value or event outside its schema. The issues of the error have the JSON pointers.
func CheckedReplies(d *td.Thing) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			return func(yield func(*Message, error) bool) {
				t.Do(ctx, m)(func(r *Message, err error) bool {
					if err == nil {
						err = CheckReply(d, r)
					}
					if err != nil {
						yield(nil, err)
						return false
					}
					return yield(r, nil)
				})
			}
		})
	}
}

// Check returns the first violation of the description d in m. The error is an [*Error] of code [NoAffordance], [NotAllowed] or
// [Invalid].
func Check(d *td.Thing, m *Message) error {
	switch m.Type {
	case ReadProperty, ObserveProperty, WriteProperty:
		return checkProperty(d, m)
	case ReadMultipleProperties:
		_, err := Names(d, m)
		return err
	case WriteMultipleProperties, WriteAllProperties:
		return checkValues(d, m)
	case InvokeAction:
		a := d.Actions[m.Name]
		if a == nil {
			return noAction(d, m.Name)
		}
		return checkInput(d, &a.Affordance, a.Input, m)
	case QueryAction, CancelAction, ContinueAction:
		if m.Name != "" && d.Actions[m.Name] == nil {
			return noAction(d, m.Name)
		}
	case SubscribeEvent:
		e := d.Events[m.Name]
		if e == nil {
			return noAffordance(d, "event", m.Name, slices.Collect(maps.Keys(d.Events)))
		}
		switch {
		case len(m.Data) > 0 && e.Subscription == nil && len(e.URIVariables) == 0:
			return noData(m)
		case len(m.Data) > 0:
			return checkInput(d, &e.Affordance, e.Subscription, m)
		}
	case SubscribeAllEvents:
		if len(d.Events) == 0 {
			return Errorf(NotAllowed, "", "%s has no events", d.Name()).Then(StepShow, d.Name())
		}
		if len(m.Data) > 0 {
			return noData(m)
		}
	case ObserveAllProperties:
		if len(m.Data) > 0 {
			return noData(m)
		}
		for _, p := range d.Properties {
			if p.Observable && !p.WriteOnly {
				return nil
			}
		}
		return Errorf(NotAllowed, "", "%s has no observable properties", d.Name()).Then(StepShow, d.Name())
	case ReadAllProperties, QueryAllActions:
	default:
		return NoOperation(d.Name(), m.Type)
	}
	return nil
}

// noData rejects data in an observation: subscriptions with different data are different observations of the agent.
func noData(m *Message) error {
	return Errorf(Invalid, "remove the data", "%s %s takes no data", m.Type.Op(), m.Name)
}

// NoOperation returns the error for a message whose type is not an operation of a Thing. The name of the Thing is for the text.
func NoOperation(name string, t Type) *Error {
	return Errorf(NotAllowed, "use an operation of TD 1.1 §5.3.4.2; to end a subscription, leave the loop",
		"%s does not support messages of type %d", name, t)
}

func checkProperty(d *td.Thing, m *Message) error {
	p := d.Properties[m.Name]
	switch {
	case p == nil:
		return noAffordance(d, "property", m.Name, slices.Collect(maps.Keys(d.Properties)))
	case m.Type == WriteProperty && p.ReadOnly:
		return Errorf(NotAllowed, "read it", "property %s of %s is read-only", m.Name, d.Name()).Then(StepRead, d.Name(), m.Name)
	case m.Type == WriteProperty:
		return checkInput(d, &p.Affordance, p.Schema, m)
	case p.WriteOnly:
		return Errorf(NotAllowed, "write it", "property %s of %s is write-only", m.Name, d.Name()).Then(StepWrite, d.Name(), m.Name)
	case m.Type == ObserveProperty && !p.Observable:
		return Errorf(NotAllowed, "poll it", "property %s of %s cannot be observed", m.Name, d.Name()).Then(StepRead, d.Name(), m.Name)
	case m.Type == ObserveProperty && len(m.Data) > 0 && len(p.URIVariables) == 0:
		return noData(m)
	}
	return nil
}

// Names returns the properties in the data of a ReadMultipleProperties message, an array of names. The error is an [*Error] of code
// [Invalid] if the data is not such an array or empty, [NoAffordance], or [NotAllowed] for a property that cannot be read.
func Names(d *td.Thing, m *Message) ([]string, error) {
	const hint = `for example ["temperature","units"]`
	v, ok, err := Value(m.Data, m.Media())
	if err != nil {
		return nil, err
	}
	list, _ := v.([]any)
	names := make([]string, 0, len(list))
	for _, e := range list {
		name, ok := e.(string)
		if !ok {
			return nil, Errorf(Invalid, hint, "expected names of properties, got %T", e)
		}
		if err := checkProperty(d, &Message{Type: ReadProperty, Name: name}); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if !ok || len(names) == 0 {
		return nil, Errorf(Invalid, hint, "expected an array with at least one property name")
	}
	return names, nil
}

// checkValues checks an object of values by property. WriteAllProperties requires all writable properties (Web Thing Protocol,
// writeallproperties).
func checkValues(d *td.Thing, m *Message) error {
	v, ok, err := Value(m.Data, m.Media())
	if err != nil {
		return err
	}
	values, _ := v.(map[string]any)
	if !ok || len(values) == 0 {
		return Errorf(Invalid, hintValues, "expected an object with the value of at least one property")
	}
	var issues []td.Issue
	for _, name := range slices.Sorted(maps.Keys(values)) {
		p := d.Properties[name]
		if p == nil || p.ReadOnly {
			return checkProperty(d, &Message{Type: WriteProperty, Name: name})
		}
		if len(p.URIVariables) == 0 && !hidesMember(d, &p.Affordance) {
			issues = append(issues, below(name, p.Schema.Check(values[name]))...)
		}
	}
	if m.Type == WriteAllProperties {
		for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
			if _, ok := values[name]; !ok && !d.Properties[name].ReadOnly {
				issues = append(issues, td.Issue{Pointer: schema.Pointer(name), Reason: "is missing: all writable properties are required"})
			}
		}
	}
	if len(issues) > 0 {
		return &Error{Code: Invalid, Title: "the values do not fit the properties", Hint: "see the schemas of the properties",
			Next: Next(StepShow, m.Thing), Issues: issues}
	}
	return nil
}

// hintValues is the hint for an object of values by name.
const hintValues = `for example {"units":"celsius"}`

// below prefixes the pointers of issues with the member name.
func below(name string, issues []td.Issue) []td.Issue {
	for i := range issues {
		issues[i].Pointer = schema.Pointer(name) + issues[i].Pointer
	}
	return issues
}

// checkInput checks JSON or CBOR against a schema. Data of other media types has no schema, and chunks are not checked. If the
// address has variables or the body has a secret, the binding to the agent checks the input.
func checkInput(d *td.Thing, a *td.Affordance, s *td.Schema, m *Message) error {
	if s == nil || len(a.URIVariables) > 0 || m.Chunks != nil || hidesMember(d, a) {
		return nil
	}
	v, ok, err := Value(m.Data, m.Media())
	switch {
	case err != nil:
		return err
	case !ok:
		return nil
	case len(m.Data) == 0:
		return checkAbsent(s, m)
	}
	if issues := s.Check(v); len(issues) > 0 {
		return &Error{Code: Invalid, Title: "the input does not fit the schema of " + m.Name,
			Hint: "see the schema of its input", Next: Next(StepShow, m.Thing), Issues: issues}
	}
	return nil
}

// checkAbsent returns an error if data is required. An action requires no input if its schema allows any value, or an object whose
// members are all optional.
func checkAbsent(s *td.Schema, m *Message) error {
	if m.Type == InvokeAction && (s.Type() == "" || s.Type() == "object" && len(s.Check(map[string]any{})) == 0) {
		return nil
	}
	return &Error{Code: Invalid, Title: "the input is missing", Hint: "see the schema of its input", Next: Next(StepShow, m.Thing),
		Issues: []td.Issue{{Reason: "expected a value"}}}
}

// CheckReply returns the first violation of the description d in the reply r. The error is an [*Error] of code [AgentFailed].
func CheckReply(d *td.Thing, r *Message) error {
	switch r.Type {
	case PropertyReading:
		if p := d.Properties[r.Name]; p != nil {
			return checkOutput(d, p.Schema, r)
		}
	case PropertyReadings:
		return checkReadings(d, r)
	case ActionStatus:
		if a := d.Actions[r.Name]; a != nil && r.Status == StatusCompleted {
			return checkOutput(d, a.Output, r)
		}
	case Event:
		if e := d.Events[r.Name]; e != nil {
			return checkOutput(d, e.Data, r)
		}
	}
	return nil
}

func checkReadings(d *td.Thing, r *Message) error {
	v, ok, err := Value(r.Data, r.Media())
	values, isObject := v.(map[string]any)
	if err != nil || ok && len(r.Data) > 0 && !isObject {
		return violation(d, r, []td.Issue{{Reason: "expected an object of values by name"}})
	}
	var issues []td.Issue
	for name, value := range values {
		if p := d.Properties[name]; p != nil {
			issues = append(issues, below(name, p.Schema.Check(value))...)
		}
	}
	if len(issues) > 0 {
		return violation(d, r, issues)
	}
	return nil
}

func checkOutput(d *td.Thing, s *td.Schema, r *Message) error {
	if s == nil || len(r.Data) == 0 {
		return nil
	}
	v, ok, err := Value(r.Data, r.Media())
	switch {
	case err != nil:
		return violation(d, r, []td.Issue{{Reason: err.Error()}})
	case !ok:
		return nil
	}
	if issues := s.Check(v); len(issues) > 0 {
		return violation(d, r, issues)
	}
	return nil
}

// violation returns the error of a reply that violates its schema.
func violation(d *td.Thing, r *Message, issues []td.Issue) error {
	return &Error{Code: AgentFailed, Title: fmt.Sprintf("the reply of %s violates its schema of %s", d.Name(), r.Name),
		Hint: "correct the agent or its description; a node that trusts its agents can run with interact.validate: false", Issues: issues}
}

// hidesMember reports whether a security scheme adds a member to the body, unknown to the consumer (TD 1.1 §5.3.3).
func hidesMember(d *td.Thing, a *td.Affordance) bool {
	for i := range a.Forms {
		for _, name := range a.Forms[i].Security {
			if s := d.SecurityDefs[name]; s != nil && s.In == "body" {
				return true
			}
		}
	}
	return false
}

func noAction(d *td.Thing, name string) error {
	return noAffordance(d, "action", name, slices.Collect(maps.Keys(d.Actions)))
}

func noAffordance(d *td.Thing, kind, name string, have []string) error {
	slices.Sort(have)
	hint := fmt.Sprintf("%s has no %s", d.Name(), plural(kind))
	if len(have) > 0 {
		hint = fmt.Sprintf("%s has the %s %s", d.Name(), plural(kind), strings.Join(have[:min(len(have), 8)], ", "))
	}
	return Errorf(NoAffordance, hint, "%s has no %s %q", d.Name(), kind, name)
}

func plural(kind string) string {
	if before, ok := strings.CutSuffix(kind, "y"); ok {
		return before + "ies"
	}
	return kind + "s"
}
