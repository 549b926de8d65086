package configs

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestSet(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		key    string
		values []string
		want   string // the value, or after "error:" a part of the message
	}{
		{"mesh.mdns", []string{"false"}, "false"},
		{"mesh.mdns", []string{"False"}, "error: expected true or false"},
		{"mesh.limits.streams_per_peer", []string{"8"}, "8"},
		{"mesh.limits.streams_per_peer", []string{"7"}, "error: the min is 8"},
		{"mesh.limits.streams_per_peer", []string{"65537"}, "error: the max is 65536"},
		{"mesh.limits.streams_per_peer", []string{"0x10"}, "error: expected a whole number"},
		{"mesh.limits.memory", []string{"32MiB"}, "32MiB"},
		{"mesh.limits.memory", []string{"31MiB"}, "error: the min is 32MiB"},
		{"interact.timeout", []string{"99ms"}, "error: the min is 100ms"},
		{"trust.rate.per_peer", []string{"0/s"}, "0/s"},
		{"trust.untrusted", []string{"find"}, "find"},
		{"trust.untrusted", []string{"Find"}, "error: expected one of open, find, none"},
		{"http.hosts", []string{"a", "b"}, "a\nb"},
		{"http.hosts", nil, ""},
		{"http.listen", []string{"a", "b"}, "error: expected one value, got 2"},
		{"http.listen", nil, "error: expected one value, got 0"},
	} {
		c := Default()
		f, ok := c.field(test.key)
		if !ok {
			t.Fatalf("no key %s", test.key)
		}
		before, _ := c.Get(test.key)
		err := f.set(test.values)
		got, _ := c.Get(test.key)
		says, bad := strings.CutPrefix(test.want, "error: ")
		switch {
		case bad && (err == nil || !strings.Contains(err.Error(), says) || got != before):
			t.Errorf("%s = %q: got %q, %v; want an error with %q and the value as it was", test.key, test.values, got, err, says)
		case !bad && (err != nil || got != test.want):
			t.Errorf("%s = %q: got %q, %v; want %q", test.key, test.values, got, err, test.want)
		}
	}
}

func TestListsAreNotShared(t *testing.T) {
	t.Parallel()
	c, d := Default(), Default()
	values := []string{"a"}
	f, _ := c.field("http.hosts")
	if err := f.set(values); err != nil {
		t.Fatal(err)
	}
	values[0] = "changed"
	if !slices.Equal(c.HTTP.Hosts, []string{"a"}) || len(d.HTTP.Hosts) != 0 {
		t.Errorf("got %v and %v", c.HTTP.Hosts, d.HTTP.Hosts)
	}
}

func TestGetAcceptsKeysOnly(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "mesh", "mesh.", "mesh.dht", "nothing", "places", "http.listen.x"} {
		if v, ok := Default().Get(key); ok {
			t.Errorf("%q is %q", key, v)
		}
	}
}

func TestExplicit(t *testing.T) {
	t.Parallel()
	c, err := Load(LoadOptions{Env: []string{"LMOSD_HTTP__LISTEN=127.0.0.1:4668"}, Flags: flag("profile", "lean")})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"http.listen": true, "profile": true, "mesh.dht.mode": false, "listen.p2p": false} {
		if got := c.Explicit(key); got != want {
			t.Errorf("%s: explicit is %t, want %t", key, got, want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	source := []byte("one\n\ttwo: x\r\nthree\n\n")
	for name, test := range map[string]struct {
		at   place
		want string
	}{
		"the first line":            {place{line: 1, col: 1, source: source}, ">   1 | one\n      | ^\n    2 |  two: x"},
		"a tab and a carriage":      {place{line: 2, col: 2, source: source}, "    1 | one\n>   2 |  two: x\n      |  ^\n    3 | three"},
		"the last line":             {place{line: 3, col: 3, source: source}, "    2 |  two: x\n>   3 | three\n      |   ^"},
		"outside of a file":         {place{text: "flag --x"}, ""},
		"behind the end":            {place{line: 9, col: 1, source: source}, ""},
		"before the line":           {place{line: 1, col: 0, source: []byte("x")}, ">   1 | x\n      | ^"},
		"a file without a line end": {place{line: 1, col: 2, source: []byte("xy")}, ">   1 | xy\n      |  ^"},
	} {
		if got := test.at.excerpt(); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

func TestAnErrorIsAnErrorOfTheCatalogue(t *testing.T) {
	t.Parallel()
	err := error(&Error{[]Problem{{Code: interact.InlineSecret, Where: "x.yaml:1:2", Reason: "why", Hint: "do"}, {Code: interact.ConfigFile}}})
	var e *interact.Error
	if !errors.As(err, &e) || e.Code != interact.InlineSecret || e.Hint != "do" || err.Error() != "x.yaml:1:2: why (and 1 more)" {
		t.Errorf("got %v, %+v", err, e)
	}
}
