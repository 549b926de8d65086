package td

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNormal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in, want string
		ok             bool
	}{
		{"a URN", "urn:example:weather:forecast", "urn:example:weather:forecast", true},
		{"capitals", "URN:Example:Weather", "urn:example:weather", true},
		{"a word", "View Bills", "view bills", true},
		{"empty levels", "urn::telekom:/billing//view:", "urn:telekom:billing/view", true},
		{"space around levels", " telekom : billing ", "telekom:billing", true},
		{"a URL", "https://example.com/Cap", "https:example.com/cap", true},
		{"composed letters", "cafe\u0301", "caf\u00e9", true},
		{"the longest", strings.Repeat("x", MaxCapability), strings.Repeat("x", MaxCapability), true},
		{"too long", strings.Repeat("x", MaxCapability+1), "", false},
		{"nothing", "", "", false},
		{"separators", ":/:", "", false},
		{"a URN of nothing", "urn:", "urn", false},
		{"a line break", "a\nb", "", false},
		{"no text", "a\xffb", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := Normal(tt.in); got != tt.want || ok != tt.ok {
				t.Errorf("got %q %v, want %q %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestNormalIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		checkNormal(t.Fatalf, rapid.String().Draw(t, "id"))
	})
}

func checkNormal(fatalf func(string, ...any), s string) {
	id, ok := Normal(s)
	if !ok {
		return
	}
	if again, ok := Normal(id); !ok || again != id {
		fatalf("normal form of %q is %q, of that %q (%v)", s, id, again, ok)
	}
	if len(id) > MaxCapability || id == "" {
		fatalf("normal form of %q is %q", s, id)
	}
	for _, level := range Levels(id) {
		if Shard(level) != Shard(id) || !hasLevels(id, level) {
			fatalf("level %q of %q is in another shard, or not a prefix", level, id)
		}
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		"urn:telekom:capability:billing":     {"telekom", "telekom:capability", "telekom:capability:billing"},
		"telekom/capability:billing":         {"telekom", "telekom:capability", "telekom:capability:billing"},
		"a:b:c:d:e:f":                        {"a", "a:b", "a:b:c", "a:b:c:d"},
		"getweather":                         {"getweather"},
		"urn:urn:x":                          {"x"},
		"urn:lmos:did:key:z6mk:weather-view": {"lmos", "lmos:did", "lmos:did:key", "lmos:did:key:z6mk"},
	} {
		if got := Levels(in); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}

// Shards are part of the protocol between nodes and must never change. All levels of a capability are in one shard.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{"": "", "urn:": "urn", "weather": "weather", "A:b/c:d:e": "a a:b a:b:c a:b:c:d a:b:c:d:e",
		"urn:Example:catalogue": "example urn:example example:catalogue urn:example:catalogue"} {
		if got := strings.Join(Prefixes(id), " "); got != want {
			t.Errorf("%q: got %q, want %q", id, got, want)
		}
	}
}

func TestShard(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]byte{
		"telekom": 12, "urn:telekom": 12, "urn:telekom:billing:view": 12, "telekom/billing": 12,
		"example": 0, "urn:example:weather:forecast": 0, "getweather": 7,
	} {
		if got := Shard(in); got != want {
			t.Errorf("%s: got %d, want %d", in, got, want)
		}
	}
	var seen [16]bool
	for i := range 100 {
		s := Shard(strings.Repeat("x", i))
		if s > 15 {
			t.Fatalf("shard %d", s)
		}
		seen[s] = true
	}
	if n := slices.Index(seen[:], false); n >= 0 {
		t.Errorf("no capability is in shard %d", n)
	}
}

func TestTerms(t *testing.T) {
	t.Parallel()
	thing := &Thing{
		Types:        []string{"lmos:Agent", "saref:Sensor", ContextLMOS + "/Tool", "Thing"},
		Capabilities: []Capability{{ID: "urn:B:x"}, {ID: "urn:a"}, {ID: "urn:A"}, {ID: "::"}},
		Actions:      map[string]*Action{"getWeather": {}, "a b": {}},
	}
	if got, want := thing.Terms(), []string{"a b", "getweather", "saref:sensor", "urn:a", "urn:b:x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, id := range manyCapabilities(MaxCaps) {
		thing.Capabilities = append(thing.Capabilities, Capability{ID: id})
	}
	got := thing.Terms()
	if len(got) != MaxCaps || !slices.IsSorted(got) || slices.Contains(got, "getweather") || !slices.Contains(got, "urn:b:x") {
		t.Errorf("of many: %d %q", len(got), got)
	}
}
