package directory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Of names that look alike one is the original, which the others resemble. A later name does not become the original.
func TestResembles(t *testing.T) {
	t.Parallel()
	const cyrillic, other = "\u0415cho", "Ech\u043e"
	self, friend := didtest.Key(9).DID(), didtest.Key(3).DID()
	trust := func(o did.DID) (float64, string) {
		if o == friend {
			return 1, "allowed"
		}
		return 0.5, "no rule"
	}
	d := filled(t, Options{Self: self, Trust: trust})
	n := 0
	add := func(owner byte, title string, own bool) *td.Description {
		t.Helper()
		n++
		desc := with(plain(t, owner, fmt.Sprintf("urn:x:%d", n), title), func(r *td.Record) {
			if own {
				r.Hosts = []td.Host{{Node: self}}
			}
		})
		from := received
		if own {
			from = published
		}
		if _, err := d.put(desc, from); err != nil {
			t.Fatal(err)
		}
		return desc
	}
	check := func(what string, desc *td.Description, want string) {
		t.Helper()
		if got := d.Resembles(desc.Record); got != want {
			t.Errorf("%s: resembles %q, want %q", what, got, want)
		}
	}
	first := add(1, cyrillic, false)
	check("alone", first, "")
	second := add(2, "Echo", false)
	check("the first", first, "")
	check("the second", second, "\u0435cho")
	same := add(4, cyrillic, false)
	check("another Thing of that name", same, "")
	ours := add(3, "Echo", false) // of a trusted owner
	check("of a trusted owner", ours, "")
	check("another Thing of the name of a trusted owner", second, "")
	check("the first, after that of a trusted owner", first, "echo")
	own := add(9, other, true)
	check("this node's own", own, "")
	check("that of the trusted owner, after that of this node", ours, "ech\u043e")
	if got := d.Resembles(add(5, "Weather", false).Record); got != "" {
		t.Errorf("weather resembles %q", got)
	}
	d.mu.Lock()
	d.removeLocked(d.entries[own.Record.Key()], Withdrawn)
	d.mu.Unlock()
	check("that of the trusted owner, after the one of this node was withdrawn", ours, "")
	check("the first, after that", first, "echo")
}

// The error for an ambiguous name has a mark for a name that looks like another.
func TestAnAmbiguousNameThatLooksLikeAnotherIsMarked(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{Self: didtest.Key(9).DID()})
	for owner, title := range map[byte]string{2: "\u0435cho", 3: "\u0435cho", 4: "Plain", 5: "Plain"} {
		if _, err := d.Add(plain(t, owner, fmt.Sprintf("urn:x:%d", owner), title)); err != nil {
			t.Fatal(err)
		}
	}
	original := with(plain(t, 1, "urn:x:1", "Echo"), func(r *td.Record) { r.Hosts = []td.Host{{Node: didtest.Key(9).DID()}} })
	if _, err := d.put(original, published); err != nil {
		t.Fatal(err)
	}
	_, err := d.Get(t.Context(), "\u0435cho")
	wantCode(t, err, interact.Ambiguous, "2 agents match \"\u0435cho\"; \"\u0435cho\" looks like \"echo\" (Cyrillic \u0435)", "{use [urn:x:2@")
	if _, err = d.Get(t.Context(), "plain"); interact.AsError(err).Code != interact.Ambiguous || strings.Contains(err.Error(), "looks like") {
		t.Errorf("error for names that look like no other: %v", err)
	}
}
