package interact

import (
	"maps"
	"slices"

	"github.com/lmosd/lmosd/td"
)

// ops are the operations of TD 1.1 §5.3.4.2 by message type.
var ops = [...]string{
	ReadProperty:            "readproperty",
	WriteProperty:           "writeproperty",
	ReadAllProperties:       "readallproperties",
	ReadMultipleProperties:  "readmultipleproperties",
	WriteAllProperties:      "writeallproperties",
	WriteMultipleProperties: "writemultipleproperties",
	ObserveProperty:         "observeproperty",
	UnobserveProperty:       "unobserveproperty",
	InvokeAction:            "invokeaction",
	QueryAction:             "queryaction",
	CancelAction:            "cancelaction",
	QueryAllActions:         "queryallactions",
	SubscribeEvent:          "subscribeevent",
	UnsubscribeEvent:        "unsubscribeevent",
	SubscribeAllEvents:      "subscribeallevents",
	UnsubscribeAllEvents:    "unsubscribeallevents",
	ObserveAllProperties:    "observeallproperties",
	UnobserveAllProperties:  "unobserveallproperties",
	ContinueAction:          "continueaction",
}

// Op returns the operation of t, for example "readproperty"; empty if t is not a request.
func (t Type) Op() string {
	if int(t) < len(ops) {
		return ops[t]
	}
	return ""
}

// TypeOf returns the type of the operation op; zero for an unknown one.
func TypeOf(op string) Type {
	for t, o := range ops {
		if o == op && o != "" {
			return Type(t)
		}
	}
	return 0
}

// Long reports whether an interaction of type t has no end of its own and thus no deadline.
func (t Type) Long() bool {
	switch t {
	case ObserveProperty, ObserveAllProperties, SubscribeEvent, SubscribeAllEvents:
		return true
	}
	return false
}

// AboutRun reports whether a request of type t is about a run of an action, which one host has.
func (t Type) AboutRun() bool { return t == QueryAction || t == CancelAction || t == ContinueAction }

// Reads reports whether a request of type t is read-only and can be repeated.
func (t Type) Reads() bool {
	switch t {
	case ReadProperty, ReadAllProperties, ReadMultipleProperties, QueryAction, QueryAllActions:
		return true
	}
	return t.Long()
}

// Repeatable reports whether the request m can be sent to an agent twice: it is read-only, or an action that d marks as safe or
// idempotent (TD 1.1 §5.3.1.4). With a nil d no action is. [Message].Key does not count: only the host of the agent uses it.
func Repeatable(d *td.Thing, m *Message) bool {
	switch {
	case m.Chunks != nil:
		return false // chunks are read once
	case m.Type.Reads():
		return true
	case m.Type == InvokeAction && d != nil:
		a := d.Actions[m.Name]
		return a != nil && (a.Safe || a.Idempotent)
	}
	return m.Type == CancelAction
}

// Affordance returns the property, action or event of m in d; nil if m is about the Thing itself, or d has none of that name.
func Affordance(d *td.Thing, m *Message) *td.Affordance {
	switch m.Type {
	case ReadProperty, WriteProperty, ObserveProperty, UnobserveProperty:
		if p := d.Properties[m.Name]; p != nil {
			return &p.Affordance
		}
	case InvokeAction, QueryAction, CancelAction:
		if a := d.Actions[m.Name]; a != nil {
			return &a.Affordance
		}
	case SubscribeEvent, UnsubscribeEvent:
		if e := d.Events[m.Name]; e != nil {
			return &e.Affordance
		}
	}
	return nil
}

// InputSchema returns the schema of the data of m: the input of an action, the value of a property, the data of a subscription; nil
// if d has none.
func InputSchema(d *td.Thing, m *Message) *td.Schema {
	switch m.Type {
	case InvokeAction:
		if a := d.Actions[m.Name]; a != nil {
			return a.Input
		}
	case WriteProperty:
		if p := d.Properties[m.Name]; p != nil {
			return p.Schema
		}
	case SubscribeEvent:
		if e := d.Events[m.Name]; e != nil {
			return e.Subscription
		}
	}
	return nil
}

// Forms returns the forms of d for the operation of m, in the order of the description (TD 1.1 §5.3.4.2): those of the affordance,
// or of the Thing for an operation on all or several.
func Forms(d *td.Thing, m *Message) []td.Form {
	forms := d.Forms
	if a := Affordance(d, m); a != nil {
		forms = a.Forms
	}
	var fit []td.Form
	for _, f := range forms {
		if slices.Contains(f.Ops, m.Type.Op()) {
			fit = append(fit, f)
		}
	}
	return fit
}

// AllForms returns all forms of d: those of its actions, properties and events, each sorted by name, then its own.
func AllForms(d *td.Thing) (all []*td.Form) {
	add := func(forms []td.Form) {
		for i := range forms {
			all = append(all, &forms[i])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Actions)) {
		add(d.Actions[name].Forms)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		add(d.Properties[name].Forms)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Events)) {
		add(d.Events[name].Forms)
	}
	add(d.Forms)
	return all
}
