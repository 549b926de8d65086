package td

import (
	"slices"
	"strings"
	"testing"
)

// TestLanguages checks the warnings about inconsistent translations.
func TestLanguages(t *testing.T) {
	t.Parallel()
	const (
		context = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "X", `
		en, de  = `{"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"@language": "en"}], "title": "X", `,
			`{"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"@language": "DE"}], "title": "X", `
		rest = `, "security": "n", "securityDefinitions": {"n": {"scheme": "nosec"}}, "actions": {"a": {
			"title": "A", "titles": {"en": "A", "de": "B"},
			"input": {"type": "object", "properties": {"title": {"description": "d", "descriptions": {"de": "d", "en": "d"}}},
				"default": {"title": "x", "titles": {"fr": "x"}}},
			"forms": [{"href": "http://a"}]}}}`
	)
	for name, c := range map[string]struct {
		head string
		want []string
	}{
		"the same":         {en + `"titles": {"en": "X", "de": "Y"}`, nil},
		"another language": {context + `"titles": {"en": "X", "fr": "Y"}`, []string{"/titles td-multi-languages-consistent"}},
		"one language only": {context + `"description": "d"`,
			[]string{"/description td-titles-descriptions", "/title td-titles-descriptions"}},
		"another default text": {de + `"titles": {"en": "X", "de": "X"}`, []string{"/actions/a/title td-title-description"}},
	} {
		thing, err := Parse([]byte(c.head + rest))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range thing.Warnings {
			if _, rule, ok := strings.Cut(w.Reason, "(td-"); ok {
				got = append(got, w.Pointer+" td-"+strings.TrimSuffix(rule, ")"))
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
