package packet

import (
	"slices"
	"strings"
	"testing"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		filter, topic string
		want          bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"a/b", "a", false}, {"a", "a/b", false}, {"a/b", "a/b/c", false},
		{"a/+", "a/b", true}, {"a/+", "a/", true}, {"a/+", "a", false}, {"a/+", "a/b/c", false}, {"+/b", "a/b", true},
		{"+", "a", true},
		{"a/+/c", "a/b/c", true}, {"a/+/c", "a/b/d", false}, {"+/+", "/x", true}, {"/+", "/x", true}, {"+", "/x", false},
		{"a/#", "a", true}, {"a/#", "a/", true}, {"a/#", "a/b/c", true}, {"a/#", "ab", false}, {"#", "a/b", true}, {"+/#", "a", true},
		{"#", "$SYS/x", false}, {"+/x", "$SYS/x", false}, {"$SYS/#", "$SYS/x", true}, {"$SYS/#", "a", false},
	}
	for _, tt := range tests {
		if got := Matches(tt.filter, tt.topic); got != tt.want {
			t.Errorf("%q covers %q: %v", tt.filter, tt.topic, got)
		}
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	tests := []struct {
		a, b string
		want bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"a/+", "+/b", true}, {"a/+", "b/+", false}, {"a/+", "a/b/c", false},
		{"a/#", "a", true},
		{"a/#", "a/b/+", true}, {"a/b/#", "a/+", true}, {"a/b/c/#", "a/+", false}, {"#", "x/y", true}, {"#", "$SYS/x", false},
		{"a/+/c", "a/b/+", true},
		{"a/+/c", "a/b/d", false}, {"+", "a/b", false},
	}
	for _, tt := range tests {
		if Overlap(tt.a, tt.b) != tt.want || Overlap(tt.b, tt.a) != tt.want {
			t.Errorf("%q and %q: %v, %v", tt.a, tt.b, Overlap(tt.a, tt.b), Overlap(tt.b, tt.a))
		}
	}
}

func TestFiltersAndTopics(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]bool{"a": true, "#": true, "+": true, "a/+/b": true, "a/#": true, "a//b": true, "/": true,
		"": false, "a#": false,
		"a/#/b": false, "a+": false, "a/b+/c": false, "a\x00": false, "a\nb": false, "\xff": false, strings.Repeat("a/", 200): false,
		strings.Repeat("a", 5000): false} {
		if got := IsFilter(filter); got != want {
			t.Errorf("filter %.40q: %v", filter, got)
		}
	}
	for topic, want := range map[string]bool{"a/b": true, "urn:x:lamp/actions/fade": true, "a/+": false, "#": false, "": false,
		"ä/ß": true} {
		if got := IsTopic(topic); got != want {
			t.Errorf("topic %q: %v", topic, got)
		}
	}
}

func TestCoveredFilters(t *testing.T) {
	t.Parallel()
	got := Covered([]string{"a/b", "a/#", "c/+", "c/d", "a/#", "e", "c/#", "+/b"})
	if want := []string{"a/#", "e", "c/#", "+/b"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Covered([]string{"a/+", "a/#"}); !slices.Equal(got, []string{"a/#"}) {
		t.Errorf("+ does not cover #: %q", got)
	}
}

func TestTopicOfAName(t *testing.T) {
	t.Parallel()
	tests := []struct{ thing, kind, name, want string }{
		{"weather", "actions", "forecast", "weather/actions/forecast"},
		{"urn:lmos:did:key:z6Mk:w@z6Mk", "events", "storm", "urn:lmos:did:key:z6Mk:w@z6Mk/events/storm"},
		{"https://x.example/a?b#c", "properties", "a/b+c#d%", "https:%2F%2Fx.example%2Fa%3Fb%23c/properties/a%2Fb%2Bc%23d%25"},
		{"$SYS", "", "", "%24SYS"},
	}
	for _, tt := range tests {
		got := Topic(tt.thing, tt.kind, tt.name)
		if got != tt.want || !IsTopic(got) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// What is escaped is one level without wildcards, and comes back.
func FuzzTopicLevel(f *testing.F) {
	for _, s := range []string{"weather", "urn:x:y", "a/b", "+", "#", "$share", "100%", "%2F", "ü \n", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		level := EscapeLevel(name)
		if strings.ContainsAny(level, "/+#") || strings.HasPrefix(level, "$") {
			t.Errorf("%q became %q", name, level)
		}
		if back := UnescapeLevel(level); back != name {
			t.Errorf("%q became %q became %q", name, level, back)
		}
	})
}

// matches and overlap agree: a topic that both cover is one where they overlap.
func FuzzFilters(f *testing.F) {
	f.Add("a/+", "+/b", "a/b")
	f.Add("a/#", "a", "a")
	f.Add("$SYS/#", "#", "$SYS/x")
	f.Fuzz(func(t *testing.T, a, b, topic string) {
		if !IsFilter(a) || !IsFilter(b) || !IsTopic(topic) {
			return
		}
		if Overlap(a, b) != Overlap(b, a) {
			t.Errorf("%q and %q overlap one way", a, b)
		}
		if Matches(a, topic) && Matches(b, topic) && !Overlap(a, b) {
			t.Errorf("%q and %q cover %q and do not overlap", a, b, topic)
		}
		if !IsPattern(a) && Matches(a, topic) != (a == topic) {
			t.Errorf("%q covers %q", a, topic)
		}
		for _, kept := range Covered([]string{a, b}) {
			if kept != a && kept != b {
				t.Errorf("%q was not asked for", kept)
			}
		}
		if (Matches(a, topic) || Matches(b, topic)) && !slices.ContainsFunc(Covered([]string{a, b}),
			func(f string) bool { return Matches(f, topic) }) {
			t.Errorf("%q and %q lost %q", a, b, topic)
		}
	})
}
