package main

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
)

// Without an invitation, a node joins only after its user has compared the words.
func TestJoinByRequestComparesWords(t *testing.T) {
	t.Parallel()
	const joined = "organization\tacme.example"
	for name, test := range map[string]struct {
		typed string
		args  []string
		code  int
	}{
		"the same words":          {"y\n", nil, 0},
		"other words":             {"n\n", nil, cli.ExitInterrupted},
		"words as an argument":    {"", []string{"--words", "apple bird cloud door egg fox"}, 0},
		"wrong ones":              {"", []string{"--words", "apple bird cloud door egg cow"}, cli.ExitUsage},
		"too few":                 {"", []string{"--words", "apple"}, cli.ExitUsage},
		"the node by its key":     {"y\n", []string{"--at", twin1[:12]}, 0},
		"a node that offers none": {"", []string{"--at", twin2}, cli.ExitNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, shown := atTerminal(t, test.typed, append([]string{"org", "join"}, test.args...)...)
			if r.code != test.code || strings.Contains(r.out, joined) != (test.code == 0) {
				t.Errorf("exit code %d, %q; the terminal shows %q", r.code, r.out, shown)
			}
			if test.typed != "" {
				contains(t, shown, "lmosd org admit apple bird cloud door egg fox", "[y/N]")
			}
		})
	}
	env := withToken(newFakeNode(t))
	if r := lmosd(t.Context(), home(t, env...), "", "org", "join"); r.code != cli.ExitUsage || !strings.Contains(r.errors, "--words 'apple bird") {
		t.Errorf("without a terminal: %d, %s", r.code, r.errors)
	}
}

func TestAdmitByWords(t *testing.T) {
	t.Parallel()
	env := withToken(newFakeNode(t))
	contains(t, lmosd(t.Context(), home(t, env...), "", "org", "requests").out, "apple bird cloud door egg fox")
	if r := lmosd(t.Context(), home(t, env...), "", "org", "admit", "Apple", "bird", "cloud door egg", "fox", "--role", "ops"); r.code != 0 || !strings.Contains(r.out, "admitted") {
		t.Errorf("%d, %s%s", r.code, r.out, r.errors)
	}
	for _, words := range [][]string{{"apple"}, {"apple", "bird", "cloud", "door", "egg", "cow"}, {"z6Mk"}} {
		if r := lmosd(t.Context(), home(t, env...), "", append([]string{"org", "admit"}, words...)...); r.code != cli.ExitNotFound {
			t.Errorf("%q: exit code %d", words, r.code)
		}
	}
}

func TestChooseAnOffer(t *testing.T) {
	t.Parallel()
	one, two := api.Offer{Node: "did:key:" + twin1, Name: "acme"}, api.Offer{Node: "did:key:" + twin2, Name: "acme"}
	for name, c := range map[string]struct {
		all  []api.Offer
		at   string
		want api.Offer
		code interact.Code
	}{
		"none":    {nil, "", api.Offer{}, interact.NotFound},
		"one":     {[]api.Offer{one}, "", one, 0},
		"two":     {[]api.Offer{one, two}, "", api.Offer{}, interact.Ambiguous},
		"chosen":  {[]api.Offer{one, two}, string(two.Node), two, 0},
		"unknown": {[]api.Offer{one}, "z6MkOther", api.Offer{}, interact.NotFound},
	} {
		o, err := choose(c.all, c.at)
		if o != c.want || (err == nil) != (c.code == 0) || err != nil && interact.AsError(err).Code != c.code {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
}
