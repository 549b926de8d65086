package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// TestFormModel holds the model of forms against schemas that the forms of other consoles could not show. Each case is an expression with the
// class Form; field(form, name) is the draft of a member.
func TestFormModel(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/agents")
	p.loaded()
	for _, test := range []struct{ name, script, want string }{
		{"left-out members are absent", `const f = new Form({type: 'object', properties: {a: {type: 'string'}, b: {type: 'number'}, o: {type: 'object', properties: {x: {}}}}, required: ['a']});
			field(f, 'o'); field(f, 'a').text = 'hi'; return f.body().text`, `{"a":"hi"}`},
		{"a required text that is empty is absent", `return new Form({type: 'object', properties: {a: {type: 'string'}}, required: ['a']}).body().text`, `{}`},
		{"large numbers keep their digits", `const f = new Form({type: 'object', properties: {n: {type: 'integer'}}}); field(f, 'n').text = '12345678901234567890'; return f.body().text`, `{"n":12345678901234567890}`},
		{"what is no number is an error of its field", `const f = new Form({type: 'object', properties: {n: {type: 'number'}}}); field(f, 'n').text = 'x'; return f.body().errors[0].field`, `/n`},
		{"a null of an enum can be chosen", `const f = new Form({type: 'object', properties: {e: {enum: ['a', null]}}}); field(f, 'e').index = '1'; return f.body().text`, `{"e":null}`},
		{"and cleared", `const f = new Form({type: 'object', properties: {e: {enum: ['a', null]}}}); field(f, 'e').index = '1'; field(f, 'e').index = ''; return f.body().text`, `{}`},
		{"a nullable reference", `const f = new Form({type: 'object', properties: {m: {anyOf: [{$ref: '#/$defs/E'}, {type: 'null'}]}}, $defs: {E: {enum: ['x', 'y']}}}); return field(f, 'm').field.options.map((o) => o.label).join()`, `x,y,null`},
		{"anyOf at the root has fields", `const f = new Form({type: 'object', properties: {a: {type: 'string'}, b: {type: 'string'}}, anyOf: [{required: ['a']}, {required: ['b']}]});
			f.member(f.draft.inner, 'a').text = '1'; f.choose(f.draft, '1'); return f.body().text + [...f.draft.inner.field.required]`, `{"a":"1"}b`},
		{"oneOf at the root has fields", `const f = new Form({oneOf: [{type: 'object', properties: {k: {const: 'p'}, v: {type: 'string'}}, required: ['k']}, {type: 'string'}]});
			f.member(f.draft.inner, 'v').text = 'w'; return f.body().text`, `{"k":"p","v":"w"}`},
		{"allOf combines members", `const f = new Form({allOf: [{$ref: '#/$defs/a'}, {properties: {y: {type: 'number'}}, required: ['y']}], $defs: {a: {type: 'object', properties: {x: {type: 'string'}}}}}); return f.draft.field.members.map((m) => m[0]).sort().join()`, `x,y`},
		{"a loop of references is JSON", `return new Form({$defs: {a: {$ref: '#/$defs/b'}, b: {$ref: '#/$defs/a'}}, $ref: '#/$defs/a'}).draft.field.kind`, `json`},
		{"a schema that contains itself is bounded", `const f = new Form({type: 'object', properties: {l: {$ref: '#'}, r: {$ref: '#'}, c: {$ref: '#'}}, required: ['l', 'r', 'c']}); f.body(); return String(f.made < 10000)`, `true`},
		{"a remote reference is JSON", `const f = new Form({type: 'object', properties: {a: {$ref: 'urn:x'}}}); return field(f, 'a').field.kind`, `json`},
		{"members below depth 8 are JSON", `let s = {type: 'string'}; for (let i = 0; i < 12; i++) s = {type: 'object', properties: {a: s}, required: ['a']};
			const f = new Form(s); let d = f.draft; let n = 0; while (d.field.kind === 'object') { d = f.member(d, 'a'); n++; } return d.field.kind + n`, `json9`},
		{"fields are made when they are shown", `const properties = {}; for (let i = 0; i < 500; i++) properties['m' + i] = {type: 'string'}; const f = new Form({type: 'object', properties}); return String(f.made)`, `1`},
		{"a member may have the name __proto__", `const f = new Form(JSON.parse('{"type":"object","properties":{"__proto__":{"type":"string"}}}')); field(f, '__proto__').text = 'x'; return f.body().text`, `{"__proto__":"x"}`},
		{"without a schema, text is text", `const f = new Form(undefined); f.draft.text = 'hello'; return f.body().text`, `"hello"`},
		{"unless it is JSON", `const f = new Form(undefined); f.draft.text = '{"a":1}'; return f.body().text`, `{"a":1}`},
		{"and nothing is no input", `return String(new Form(undefined).body().text)`, `undefined`},
		{"the form is filled from its JSON", `const f = new Form({type: 'object', properties: {a: {type: 'array', items: {type: 'integer'}}, u: {oneOf: [{type: 'object', properties: {k: {const: 'p'}}, required: ['k']}, {type: 'object', properties: {k: {const: 'q'}, w: {type: 'number'}}, required: ['k']}]}}});
			f.showJSON(); f.text = '{"a":[1,2],"u":{"k":"q","w":3}}'; f.showForm(); return f.body().text`, `{"a":[1,2],"u":{"k":"q","w":3}}`},
		{"what the form cannot show stays as JSON", `const f = new Form({type: 'object', properties: {a: {type: 'integer'}}}); f.showJSON(); f.text = '{"a":"no","other":1}'; f.showForm(); return f.body().text`, `{"a":"no","other":1}`},
		{"a missing member is an error of its field", `const f = new Form({type: 'object', properties: {o: {type: 'object', properties: {b: {}}, required: ['b']}}, required: ['o']}); return f.place({field: '/o', description: '"b" is missing'})`, `/o/b`},
		{"an error of an unknown field belongs to the one around it", `const f = new Form({type: 'object', properties: {o: {type: 'object', properties: {b: {}}}}, required: ['o']}); return f.place({field: '/o/x/y', description: 'is wrong'})`, `/o`},
	} {
		got := p.eval(fmt.Sprintf("import('./schema.js').then(({Form}) => { const field = (f, name) => f.member(f.draft, name); %s })", test.script))
		if got != test.want {
			t.Errorf("%s: got %v, want %s", test.name, got, test.want)
		}
	}
}

// TestSchemasOfAnyShape makes forms of values that are no schemas: none may throw.
func TestSchemasOfAnyShape(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/agents")
	p.loaded()
	got := p.eval(`import('./schema.js').then(({Form}) => {
		const wrong = [];
		for (const s of [true, false, null, [], 'x', 5, {type: 5}, {type: []}, {enum: {}}, {properties: []}, {required: {}}, {oneOf: {}}, {anyOf: [5]}, {allOf: [null]}, {items: []},
			{type: 'array', items: false}, {type: 'object', properties: {a: null}}, {$ref: 5}, {$ref: '#/%'}, {type: 'object', properties: {a: {$ref: '#/properties/a'}}}]) {
			try { const f = new Form(s); f.body(); f.showJSON(); f.showForm(); f.place({field: '/a/b'}); f.firstText(); } catch (e) { wrong.push(JSON.stringify(s) + ': ' + e); }
		}
		return wrong.join('\n');
	})`)
	if got != "" {
		t.Error(got)
	}
}

// TestCopiedCommands runs the copied command lines with functions in place of lmosd and curl: names and values of untrusted peers arrive as
// arguments, byte for byte, and nothing else runs.
func TestCopiedCommands(t *testing.T) {
	t.Parallel()
	bash := testprogram.Path(t, "bash")
	p := open(t, mesh.Members[0], wide, "#/agents")
	p.loaded()
	for _, name := range []string{"'; exit 7; '", "`exit 7`", "$(exit 7)", "a\nexit 7", "\x1b[201~x", "-rf", "@file", "=ls", "~", "*", "!!", "\u202eabc", "é漢", `\`, `a\'b`, "\x011", "{a,b}", "[1-9]", "%0", "a b", "--"} {
		for _, op := range []string{"invoke", "read", "write", "listen"} {
			lines := p.eval(fmt.Sprintf(`import('./copyas.js').then((c) => { const name = %s; const op = %s;
				const r = {ref: 'urn:x', name, op, input: op === 'invoke' || op === 'write' ? JSON.stringify({[name]: name}) : undefined};
				return [c.lmosd(r), c.curl(r, 'base:/')]; })`, quote(name), quote(op))).([]any)
			for i, line := range lines {
				if strings.ContainsAny(line.(string), "\x01\x1b\u202e") {
					t.Errorf("%q has control characters", line)
				}
				out, err := exec.CommandContext(t.Context(), bash, "-c", `lmosd() { printf '%s\0' "$@"; }; curl() { printf '%s\0' "$@"; }; `+line.(string)).Output()
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
				if last := args[len(args)-1]; i == 1 && (!strings.HasPrefix(last, "base:/things/urn%3Ax/") || strings.ContainsAny(last, "{}[]*' ")) {
					t.Errorf("curl gets %q of %s", last, line)
				}
				found := i == 1
				for _, arg := range args {
					found = found || arg == name
				}
				if !found {
					t.Errorf("lmosd gets %q of %s", args, line)
				}
			}
		}
	}
}
