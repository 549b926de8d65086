package form

import (
	"fmt"
	"strings"
	"testing"
)

// vectors are the examples of RFC 6570 §1.2 and §3.2 that use strings and lists, and a few beyond ASCII: template, expansion.
const vectors = `
	{var} value | {hello} Hello%20World%21 | {half} 50%25 | O{empty}X OX | O{undef}X OX | {x,y} 1024,768
	{x,hello,y} 1024,Hello%20World%21,768 | ?{x,empty} ?1024, | ?{x,undef} ?1024 | ?{undef,y} ?768 | {var:3} val | {var:30} value
	{+var} value | {+hello} Hello%20World! | {+half} 50%25 | {base}index http%3A%2F%2Fexample.com%2Fhome%2Findex
	{+base}index http://example.com/home/index | O{+empty}X OX | {+path}/here /foo/bar/here | here?ref={+path} here?ref=/foo/bar
	up{+path}{var}/here up/foo/barvalue/here | {+x,hello,y} 1024,Hello%20World!,768 | {+path,x}/here /foo/bar,1024/here
	{+path:6}/here /foo/b/here | {#var} #value | {#hello} #Hello%20World! | foo{#empty} foo# | foo{#undef} foo
	{#path,x}/here #/foo/bar,1024/here | {.who} .fred | {.who,who} .fred.fred | {.half,who} .50%25.fred | X{.var} X.value | X{.empty} X.
	X{.undef} X | X{.var:3} X.val | {/who} /fred | {/half,who} /50%25/fred | {/who,dub} /fred/me%2Ftoo | {/var,empty} /value/
	{/var,x}/here /value/1024/here | {/var:1,var} /v/value | {;who} ;who=fred | {;half} ;half=50%25 | {;empty} ;empty
	{;v,empty,who} ;v=6;empty;who=fred | {;x,y,undef} ;x=1024;y=768 | {;hello:5} ;hello=Hello | {?who} ?who=fred
	{?x,y,empty} ?x=1024&y=768&empty= | {?x,y,undef} ?x=1024&y=768 | {?var:3} ?var=val | {?var*} ?var=value | {&who} &who=fred
	?fixed=yes{&x} ?fixed=yes&x=1024 | {&x,y,empty} &x=1024&y=768&empty= | {uni} W%C3%B6rt%20%E2%98%83 | {uni:2} W%C3%B6
	{+pct} a%2fb%25zz | {pct} a%252fb%25zz | no/expression no/expression
	{list} red,green,blue | {list*} red,green,blue | {+list} red,green,blue | {+list*} red,green,blue | {#list} #red,green,blue
	{#list*} #red,green,blue | X{.list} X.red,green,blue | X{.list*} X.red.green.blue | {/list} /red,green,blue | {/list*} /red/green/blue
	{/list*,path:4} /red/green/blue/%2Ffoo | {;list} ;list=red,green,blue | {;list*} ;list=red;list=green;list=blue
	{?list} ?list=red,green,blue | {?list*} ?list=red&list=green&list=blue | {&list} &list=red,green,blue
	{&list*} &list=red&list=green&list=blue | {?x,list*,y} ?x=1024&list=red&list=green&list=blue&y=768 | {?none,x} ?x=1024`

func TestTemplateVectors(t *testing.T) {
	t.Parallel()
	values := map[string][]string{"list": {"red", "green", "blue"}, "none": {}}
	for name, value := range map[string]string{"var": "value", "hello": "Hello World!", "path": "/foo/bar", "x": "1024", "y": "768",
		"empty": "", "half": "50%", "who": "fred", "base": "http://example.com/home/", "dub": "me/too", "v": "6",
		"uni": "Wört ☃", "pct": "a%2fb%zz"} {
		values[name] = []string{value}
	}
	for _, v := range strings.FieldsFunc(vectors, func(r rune) bool { return r == '|' || r == '\n' }) {
		text, want, _ := strings.Cut(strings.TrimSpace(v), " ")
		parsed, err := parseTemplate(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := parsed.expand(values); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestBadTemplates(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", "}", "a}b", "{}", "{a", "{a{b}}", "{=a}", "{|a}", "{a,}", "{,a}", "{a:0}",
		"{a:10000}", "{a:x}", "{a b}", "{ä}", "{+}"} {
		if _, err := parseTemplate(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestRequired(t *testing.T) {
	t.Parallel()
	for href, want := range map[string]string{
		"http://h/x":                     "[]",
		"http://h/{a}/{b,c}{?d}{&e}{#f}": "[a b c]",
		"http://h{/a*}{;b:3}{+c}{.d}":    "[a b c d]",
	} {
		parsed, err := parseTemplate(href)
		if got := fmt.Sprint(parsed.required()); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", href, got, err, want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	f.Add("http://h/{a}{?b:3}", "x", "ü")
	f.Add("{+a}{#b*}", "%41%", "\x00")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		parsed, err := parseTemplate(text)
		if err != nil {
			return
		}
		got := parsed.expand(map[string][]string{"a": {a}, "b": {b, a}})
		if !strings.Contains(text, "{") && got != text {
			t.Errorf("%q became %q", text, got)
		}
		for _, p := range parsed {
			if len(p.vars) > 0 && strings.ContainsAny(parsed.expand(nil), "{}") {
				t.Errorf("%q leaves %q", text, parsed.expand(nil))
			}
		}
	})
}
