package textmatch

import (
	"slices"
	"testing"
	"unicode/utf8"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                             nil,
		"  –  ":                        nil,
		"Rain in Köln?":                {"rain", "in", "köln"},
		"Ko\u0308ln":                   {"köln"},
		"urn:example:stock-level/v2":   {"urn", "example", "stock", "level", "v2"},
		"getWeather":                   {"getweather", "get", "weather"},
		"HTTPServer":                   {"httpserver", "http", "server"},
		"snake_case and the iPhone 15": {"snake", "case", "and", "the", "iphone", "i", "phone", "15"},
	} {
		if got := Split(text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestContent(t *testing.T) {
	t.Parallel()
	for question, want := range map[string][]string{
		"who can check stock levels": {"check", "stock", "levels"},
		"Wer kann das Wetter sagen?": {"wetter", "sagen"},
		"who are you":                {"who", "are", "you"},
		"":                           nil,
	} {
		if got := Content(question); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", question, got, want)
		}
	}
}

func TestLike(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"forecast", "forecasts", true},
		{"cities", "city", true},
		{"boxes", "box", true},
		{"status", "statu", true}, // one letter
		{"weather", "waether", true},
		{"wether", "weather", true},
		{"weathr", "weather", true},
		{"warehouse", "werhouse", true}, // two in nine letters
		{"fore", "forecast", true},
		{"fo", "forecast", false}, // too short for a beginning
		{"cat", "car", false},     // and for typos
		{"bill", "kill", false},   // the first letter is right
		{"2024", "2025", false},
		{"2024", "2024", true},
		{"weather", "whether", false}, // three
		{"rain", "train", false},
		{"", "a", false},
		{"", "", true},
		{"ü", "ö", false},
	} {
		if got := Like(c.a, c.b); got != c.want {
			t.Errorf("Like(%q, %q) = %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func FuzzLike(f *testing.F) {
	f.Add("getWeather", "ß\u0308ẞ")
	f.Add("XMLHttpRequest2Go aB", "HTTPServer_v2 iPhone15 A")
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, s := range []string{a, b} {
			// One letter more, and it is no longer the quick way that is taken.
			if slow := Split(s + " \u00fc"); utf8.ValidString(s) && !slices.Equal(append(Split(s), "\u00fc"), slow) {
				t.Fatalf("%q: %q, the slow way %q", s, Split(s), slow)
			}
		}
		for _, w := range Split(a) {
			if !utf8.ValidString(a) {
				return
			}
			if w == "" || Fold(w) != w || !Like(w, w) {
				t.Fatalf("%q of %q", w, a)
			}
			for _, o := range Split(b) {
				Like(w, o)
			}
		}
		d := Distance([]rune(a), []rune(b), 3)
		if back := Distance([]rune(b), []rune(a), 3); d != back || (d == 0) != (string([]rune(a)) == string([]rune(b))) {
			t.Fatalf("%q to %q: %d, back %d", a, b, d, back)
		}
	})
}
