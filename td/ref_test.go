package td

import (
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/did"
)

const testKey = "z6MkjchhfUsD6mmvni8mCdXHw216Xrm9bQe2mBH1P5RDjVJG" // of seed 0…01

func TestParseRef(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in string
		want     Ref
		written  string
	}{
		{"a name", "weather", Ref{"weather", "", ""}, "weather"},
		{"a title", " Weather Agent ", Ref{"Weather Agent", "", ""}, "Weather Agent"},
		{"a name and a key", "weather@" + testKey, Ref{"weather", testKey, ""}, "weather@" + testKey},
		{"a name and the beginning of a key", "weather@z6Mkjc", Ref{"weather", "z6Mkjc", ""}, "weather@z6Mkjc"},
		{"as tables write it", "weather@z6Mkjchh…", Ref{"weather", "z6Mkjchh", ""}, "weather@z6Mkjchh"},
		{"a name and a DID", "weather@did:web:example.com", Ref{"weather", "did:web:example.com", ""},
			"weather@did:web:example.com"},
		{"an id", "urn:example:weather", Ref{"urn:example:weather", "", ""}, "urn:example:weather"},
		{"an id and a key", "urn:example:weather@" + testKey, Ref{"urn:example:weather", testKey, ""},
			"urn:example:weather@" + testKey},
		{"an id with its owner", "urn:lmos:did:key:" + testKey + ":w",
			Ref{"urn:lmos:did:key:" + testKey + ":w", "did:key:" + testKey, ""},
			"urn:lmos:did:key:" + testKey + ":w"},
		{"a DID", "did:key:" + testKey, Ref{"did:key:" + testKey, "did:key:" + testKey, ""}, "did:key:" + testKey},
		{"a DID with a path", "did:web:example.com/a#b", Ref{"did:web:example.com/a#b", "did:web:example.com", ""},
			"did:web:example.com/a#b"},
		{"a mail address", "mailto:bob@example.com", Ref{"mailto:bob@example.com", "", ""}, "mailto:bob@example.com"},
		{"a user in a URL", "https://bob@z6.example/x", Ref{"https://bob@z6.example/x", "", ""},
			"https://bob@z6.example/x"},
		{"an at sign and a key", "a@b@z6Mkx", Ref{"a@b", "z6Mkx", ""}, "a@b@z6Mkx"},
		{"an at sign first", "@z6Mkx", Ref{"@z6Mkx", "", ""}, "@z6Mkx"},
		{"an organization", "globex/weather", Ref{"weather", "", "globex"}, "globex/weather"},
		{"an organization and a key", "globex/Weather Agent@" + testKey, Ref{"Weather Agent", testKey, "globex"}, "globex/Weather Agent@" + testKey},
		{"an organization without a name", "globex/", Ref{"globex/", "", ""}, "globex/"},
		{"a name without an organization", "/weather", Ref{"/weather", "", ""}, "/weather"},
		{"nothing", "", Ref{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := ParseRef(tt.in)
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if s := got.String(); s != tt.written {
				t.Errorf("written %q, want %q", s, tt.written)
			}
		})
	}
}

func TestRefMatch(t *testing.T) {
	t.Parallel()
	owner, err := did.Parse("did:key:" + testKey)
	if err != nil {
		t.Fatal(err)
	}
	describe := func(id, title string) *Description {
		return &Description{Thing: &Thing{ID: id, Title: title}, Record: &Record{Owner: owner, Thing: id, Title: title}}
	}
	agent := describe("urn:example:agents/Meteo", "Weather Agent")
	tests := []struct {
		ref  string
		d    *Description
		want bool
	}{
		{"weather-agent", agent, true},
		{"Weather Agent", agent, true},
		{"WEATHER AGENT", agent, true},
		{"meteo", agent, true},
		{"weather", agent, false},
		{"urn:example:agents/Meteo", agent, true},
		{"urn:example:agents/meteo", agent, false}, // ids are exact
		{"weather-agent@" + testKey, agent, true},
		{"weather-agent@z6Mkjc", agent, true},
		{"weather-agent@z6Mkxx", agent, false},
		{"weather-agent@did:key:" + testKey, agent, true},
		{"weather-agent@did:web:example.com", agent, false},
		{"urn:example:agents/Meteo@z6Mkxx", agent, false},
		{"did:key:" + testKey, describe("did:key:"+testKey, "Own"), true},
		{"did:key:" + testKey, agent, false},
		{"☀", describe("urn:x:1", "☀"), true},
		{"☀", agent, false},
		{"", agent, false},
	}
	for _, tt := range tests {
		if got := ParseRef(tt.ref).Match(tt.d); got != tt.want {
			t.Errorf("%q and %q: got %v, want %v", tt.ref, tt.d.ID, got, tt.want)
		}
	}
}

// The exact reference of a thing, read again, names it and its owner.
func TestExactRef(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"urn:example:weather":                "urn:example:weather@" + testKey,
		"urn:lmos:did:key:" + testKey + ":w": "urn:lmos:did:key:" + testKey + ":w",
		"did:key:" + testKey:                 "did:key:" + testKey,
		"mailto:a@z6Mk":                      "mailto:a@z6Mk@" + testKey,
	} {
		d := &Description{Thing: &Thing{ID: id}, Record: &Record{Owner: "did:key:" + testKey, Thing: id}}
		got := d.Ref()
		if got != want {
			t.Errorf("%s: got %q, want %q", id, got, want)
		}
		if r := ParseRef(got); r.Name != id || !r.Match(d) || !r.Exact() {
			t.Errorf("%s: read as %+v", got, r)
		}
	}
	other := &Description{Record: &Record{Owner: "did:web:example.com", Thing: "urn:x"}}
	if got, want := other.Ref(), "urn:x@did:web:example.com"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSlug(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Weather Agent":    "weather-agent",
		"  Weather--Agent": "weather-agent",
		"WeatherAgent":     "weatheragent",
		"Wetter für Köln!": "wetter-für-köln",
		"天気 エージェント":        "天気-エージェント",
		"v1.2":             "v1-2",
		"☀":                "",
		"":                 "",
	} {
		if got := Slug(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := Slug(rapid.String().Draw(t, "s"))
		if again := Slug(s); again != s {
			t.Fatalf("the slug of %q is %q", s, again)
		}
		if strings.HasPrefix(s, "-") || strings.HasSuffix(s, "-") || strings.Contains(s, "--") {
			t.Fatalf("hyphens in %q", s)
		}
	})
}

func TestName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ title, id, want string }{
		{"Weather Agent", "urn:x:y", "weather-agent"},
		{"☀", "urn:x:sunny", "sunny"},
		{"", "", ""},
	} {
		if got := (&Thing{Title: tt.title, ID: tt.id}).Name(); got != tt.want {
			t.Errorf("%+v: got %q", tt, got)
		}
	}
}

func TestMintID(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"weather": "urn:lmos:did:key:z:weather",
		"köln":    "urn:lmos:did:key:z:k%C3%B6ln",
		"":        "urn:lmos:did:key:z:thing",
	} {
		got := mintID("did:key:z", name)
		if got != want || !hasScheme(got) || ownerInID(got) != "did:key:z" {
			t.Errorf("%q: got %q (owner %q), want %q", name, got, ownerInID(got), want)
		}
	}
	seen := map[string]bool{}
	for _, name := range []string{strings.Repeat("\u0301", 1500), strings.Repeat("\u0301", 1501), strings.Repeat("w", 1100), strings.Repeat("w", 1100) + "ö"} {
		got := mintID("did:key:z", name)
		if _, err := url.PathUnescape(got); len(got) > MaxID || seen[got] || err != nil || ownerInID(got) != "did:key:z" {
			t.Errorf("%d bytes: %q, %v", len(name), got, err)
		}
		seen[got] = true
	}
}
