package lookalike

import (
	"testing"
)

const cyrillic, accented = "\u0435cho", "ech\u043e" // look like "echo"

// The original is that of the highest class, then the oldest. Later names do not take its place.
func TestOriginal(t *testing.T) {
	t.Parallel()
	l := New()
	check := func(step, name, want string) {
		t.Helper()
		if got := l.Original(name); got != want {
			t.Errorf("%s: %q resembles %q, want %q", step, name, got, want)
		}
	}
	check("empty", "echo", "")
	l.Add(cyrillic, Other, false)
	check("alone", cyrillic, "")
	l.Add("echo", Other, false)
	check("first", cyrillic, "")
	check("second", "echo", cyrillic)
	l.Add("echo", Trusted, false)
	check("trusted", "echo", "")
	check("first, after a trusted one", cyrillic, "echo")
	l.Add(accented, Own, false)
	check("trusted, after an own one", "echo", accented)
	l.Remove(accented, Own)
	check("trusted, after the own one was removed", "echo", "")
	check("removed", accented, "echo")
	l.Remove("echo", Trusted)
	check("second, without its trusted Thing", "echo", cyrillic)
	check("another skeleton", "weather", "")
	if l.Add("", Other, false) || l.Original("") != "" {
		t.Error("an empty name is recorded")
	}
}

// Of names that are known from before a restart, one in plain ASCII is the original, in any order.
func TestOriginalAfterARestart(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{cyrillic, "echo"}, {"echo", cyrillic}} {
		l := New()
		for _, name := range names {
			l.Add(name, Other, true)
		}
		l.Add(accented, Other, false)
		if got := l.Original(accented); got != "echo" {
			t.Errorf("%q: got %q", names, got)
		}
	}
}

func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	l := New()
	added := map[string]bool{}
	for i := range 3 * maxAlike {
		name := ""
		for b, letters := range [][2]string{{"e", "\u0435"}, {"c", "\u0441"}, {"h", "\u04bb"}, {"o", "\u043e"}, {"e", "\u0435"}, {"c", "\u0441"}, {"o", "\u043e"}, {"e", "\u0435"}} {
			name += letters[i>>b&1]
		}
		added[name] = l.Add(name, Other, false)
		if want := "echoecoe"; i > 0 && l.Original(name) != want {
			t.Errorf("%d: %q resembles %q", i, name, l.Original(name))
		}
	}
	for key, group := range l.groups {
		if len(l.groups) != 1 || len(group) != maxAlike {
			t.Errorf("%d names of skeleton %d are recorded", len(group), key)
		}
	}
	if !l.Add("\u0435choecoe", Own, false) {
		t.Error("the name of an own Thing does not fit")
	}
	l.Remove("\u0435choecoe", Own)
	for name, ok := range added {
		if ok {
			l.Remove(name, Other)
		}
	}
	if len(l.groups) != 0 {
		t.Errorf("%d groups remain", len(l.groups))
	}
}
