package interact

import (
	"testing"

	"github.com/lmosd/lmosd/td"
)

func TestOperationsHaveOneNameEach(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for typ := ReadProperty; typ <= UnobserveAllProperties; typ++ {
		op := typ.Op()
		if op == "" || seen[op] || TypeOf(op) != typ {
			t.Errorf("type %d is %q, which is type %d", typ, op, TypeOf(op))
		}
		seen[op] = true
	}
	if len(seen) != 18 { // TD 1.1 §5.3.4.2 has 18 words
		t.Errorf("%d operations, want 18", len(seen))
	}
	for _, typ := range []Type{0, PropertyReading, Acknowledgement, 200} {
		if typ.Op() != "" {
			t.Errorf("type %d is the operation %q", typ, typ.Op())
		}
	}
	if TypeOf("") != 0 || TypeOf("explode") != 0 {
		t.Error("a word that is no operation has a type")
	}
}

func TestRepeatable(t *testing.T) {
	t.Parallel()
	d := &td.Thing{Actions: map[string]*td.Action{"get": {Safe: true}, "set": {Idempotent: true}, "add": {}}}
	for name, c := range map[string]struct {
		m    *Message
		want bool
	}{
		"a reading":            {&Message{Type: ReadProperty}, true},
		"a writing":            {&Message{Type: WriteProperty}, false},
		"a subscription":       {&Message{Type: SubscribeEvent}, true},
		"a safe action":        {&Message{Type: InvokeAction, Name: "get"}, true},
		"an idempotent action": {&Message{Type: InvokeAction, Name: "set"}, true},
		"another action":       {&Message{Type: InvokeAction, Name: "add"}, false},
		"with a key":           {&Message{Type: InvokeAction, Name: "add", Key: "k"}, false},
		"a stream":             {&Message{Type: InvokeAction, Name: "get", Key: "k", Chunks: func(func([]byte, error) bool) {}}, false},
		"an unknown action":    {&Message{Type: InvokeAction, Name: "x"}, false},
		"a cancel":             {&Message{Type: CancelAction, Name: "add"}, true},
	} {
		if got := Repeatable(d, c.m); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if Repeatable(nil, &Message{Type: InvokeAction, Name: "get"}) {
		t.Error("an action without a description is repeatable")
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	form := func(href string, ops ...string) td.Form { return td.Form{Href: href, Ops: ops} }
	d := &td.Thing{
		Forms:      []td.Form{form("all", "readallproperties", "writemultipleproperties"), form("events", "subscribeallevents")},
		Properties: map[string]*td.Property{"p": {Affordance: td.Affordance{Forms: []td.Form{form("r", "readproperty"), form("o", "observeproperty", "readproperty")}}}},
		Actions:    map[string]*td.Action{"a": {Affordance: td.Affordance{Forms: []td.Form{form("i", "invokeaction")}}}},
		Events:     map[string]*td.Event{"e": {Affordance: td.Affordance{Forms: []td.Form{form("s", "subscribeevent", "unsubscribeevent")}}}},
	}
	for name, c := range map[string]struct {
		m    Message
		want string
	}{
		"read":         {Message{Type: ReadProperty, Name: "p"}, "ro"},
		"observe":      {Message{Type: ObserveProperty, Name: "p"}, "o"},
		"write":        {Message{Type: WriteProperty, Name: "p"}, ""},
		"read all":     {Message{Type: ReadAllProperties}, "all"},
		"write some":   {Message{Type: WriteMultipleProperties}, "all"},
		"invoke":       {Message{Type: InvokeAction, Name: "a"}, "i"},
		"query":        {Message{Type: QueryAction, Name: "a"}, ""},
		"subscribe":    {Message{Type: SubscribeEvent, Name: "e"}, "s"},
		"all events":   {Message{Type: SubscribeAllEvents}, "events"},
		"unknown name": {Message{Type: ReadProperty, Name: "x"}, ""},
	} {
		got := ""
		for _, f := range Forms(d, &c.m) {
			got += f.Href
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestStatusNames(t *testing.T) {
	t.Parallel()
	for s := StatusPending; s <= StatusCancelled; s++ {
		if StatusOf(s.String()) != s || s.Final() != (s >= StatusCompleted) {
			t.Errorf("%d is %q, which is %d; final: %t", s, s, StatusOf(s.String()), s.Final())
		}
	}
	for _, word := range []string{"in progress", "inProgress", "in_progress"} {
		if StatusOf(word) != StatusRunning {
			t.Errorf("%q is not running", word)
		}
	}
	if StatusOf("") != StatusNone || StatusOf("done") != StatusNone || Status(99).String() != "" {
		t.Error("an unknown name is a state, or an unknown state has a name")
	}
}
