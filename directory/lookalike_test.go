package directory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Of names that look alike one is the original, and the others are marked: nobody takes the mark off by coming later.
func TestResembles(t *testing.T) {
	t.Parallel()
	const cyrillic, other = "\u0415cho", "Ech\u043e"
	self, friend := key(t, 9).DID(), key(t, 3).DID()
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
	check("who comes later", second, "\u0435cho")
	same := add(4, cyrillic, false)
	check("another of that name", same, "")
	ours := add(3, "Echo", false) // of a trusted owner
	check("the name that a trusted owner has", ours, "")
	check("and whoever has it too", second, "")
	check("what is like it", first, "echo")
	own := add(9, other, true)
	check("this node's own", own, "")
	check("what is like that", ours, "ech\u043e")
	if got := d.Resembles(add(5, "Weather", false).Record); got != "" {
		t.Errorf("weather resembles %q", got)
	}
	d.mu.Lock()
	d.endLocked(d.entries[own.Record.Key()], Withdrawn)
	d.mu.Unlock()
	check("when the own one is gone", ours, "")
	check("and what was first", first, "echo")
	for i := range 3 * maxAlike { // a flood of names that look alike marks none that was there, and is bounded
		variant := ""
		for b, letters := range [][2]string{{"e", "\u0435"}, {"c", "\u0441"}, {"h", "\u04bb"}, {"o", "\u043e"}, {"e", "\u0435"}, {"c", "\u0441"}, {"o", "\u043e"}, {"e", "\u0435"}} {
			variant += letters[i>>b&1]
		}
		desc := add(byte(20+i%200), variant, false)
		if want := "echoecoe"; i > 0 && d.Resembles(desc.Record) != want {
			t.Errorf("%d: %q resembles %q", i, variant, d.Resembles(desc.Record))
		}
	}
	for _, group := range d.lookalikes.groups {
		if len(group) > maxAlike {
			t.Errorf("%d names of one skeleton are remembered", len(group))
		}
	}
	for k, e := range d.entries {
		if e.view != nil {
			d.mu.Lock()
			d.endLocked(d.entries[k], Withdrawn)
			d.mu.Unlock()
		}
	}
	if len(d.lookalikes.groups) != 0 {
		t.Errorf("%d names of nothing are remembered", len(d.lookalikes.groups))
	}
}

// A name that several things have and that looks like another is marked in the error, which shows references, not letters.
func TestAnAmbiguousNameThatLooksLikeAnotherIsMarked(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{Self: key(t, 9).DID()})
	for owner, title := range map[byte]string{2: "\u0435cho", 3: "\u0435cho", 4: "Plain", 5: "Plain"} {
		if _, err := d.Add(plain(t, owner, fmt.Sprintf("urn:x:%d", owner), title)); err != nil {
			t.Fatal(err)
		}
	}
	original := with(plain(t, 1, "urn:x:1", "Echo"), func(r *td.Record) { r.Hosts = []td.Host{{Node: key(t, 9).DID()}} })
	if _, err := d.put(original, published); err != nil {
		t.Fatal(err)
	}
	_, err := d.Get(t.Context(), "\u0435cho")
	wantCode(t, err, interact.Ambiguous, "2 agents match \"\u0435cho\"; \"\u0435cho\" looks like \"echo\" (Cyrillic \u0435)", "{use [urn:x:2@")
	if _, err = d.Get(t.Context(), "plain"); interact.AsError(err).Code != interact.Ambiguous || strings.Contains(err.Error(), "looks like") {
		t.Errorf("names that look like no other: %v", err)
	}
}
