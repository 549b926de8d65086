package td

import (
	"slices"
	"testing"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, base, href, want string }{
		{"no base", "", "a", "a"},
		{"an absolute href", "http://x/", "coap://y/a", "coap://y/a"},
		{"a sibling", "http://x/a/b", "c", "http://x/a/c"},
		{"below", "http://x/a/b/", "c", "http://x/a/b/c"},
		{"from the root", "http://x/a/b", "/c", "http://x/c"},
		{"upwards", "http://x/a/b/", "../c", "http://x/a/c"},
		{"another host", "http://x/a", "//y/c", "http://y/c"},
		{"a query", "http://x/a", "?q=1", "http://x/a?q=1"},
		{"a template", "http://x/a/", "{id}/b{?c,d}", "http://x/a/{id}/b{?c,d}"},
		{"a template in the base", "http://{host}/a/", "b/{id}", "http://{host}/a/b/{id}"},
		{"many templates", "http://x/", "{a}{b}{c}{d}{e}{f}{g}{h}{i}{j}{k}{l}",
			"http://x/{a}{b}{c}{d}{e}{f}{g}{h}{i}{j}{k}{l}"},
		{"half a template", "http://x/", "a{b", "http://x/a%7Bb"},
		{"two slashes stay", "http://x/", "a//b", "http://x/a//b"},
		{"a topic", "mqtt://broker:1883/", "things/a", "mqtt://broker:1883/things/a"},
		{"an invalid base", "http://[", "a", "a"},
		{"an invalid href", "http://x/", "%zz", "%zz"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := newBase(tt.base).resolve(tt.href); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSchemeOf(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://x": "http", "HTTPS://x": "https", "coap+tcp://x": "coap+tcp", "urn:x": "urn",
		"": "", "x": "", "/a:b": "", ":x": "", "1a:b": "", "{a}:b": "",
	} {
		if got := schemeOf(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestTemplateVars(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want []string
		ok   bool
	}{
		{"http://x/a", nil, true},
		{"http://x/{a}{?b,c*}{+d:3}{#e}", []string{"a", "b", "c", "d", "e"}, true},
		{"{", nil, false},
		{"}", nil, false},
		{"{a{b}}", nil, false},
		{"{a}}", []string{"a"}, false},
		{"{}", []string{""}, true},
	}
	for _, tt := range tests {
		if got, ok := templateVars(tt.in); !slices.Equal(got, tt.want) || ok != tt.ok {
			t.Errorf("%q: got %q %v, want %q %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

func TestIsJSON(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON; charset=utf-8": true, "application/td+json": true,
		"application/x-ndjson": false, "application/json-seq": false, "text/plain": false, "json": false,
	} {
		if got := IsJSON(contentType); got != want {
			t.Errorf("%q: got %v, want %v", contentType, got, want)
		}
	}
}
