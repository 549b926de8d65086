package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestClarify(t *testing.T) {
	t.Parallel()
	show := func(ref string) string { return "lmosd show " + ref }
	ambiguous := func(refs ...string) error {
		return &interact.Error{Code: interact.Ambiguous, Hint: "use one", Next: interact.UseOne(refs)}
	}
	for name, test := range map[string]struct {
		err         error
		asked       string
		hint, cause string
	}{
		"a near name":            {interact.Errorf(interact.NotFound, "", "x").Then(interact.StepShow, "weather"), "weathr", `did you mean "weather"? lmosd show weather`, ""},
		"a near name with signs": {interact.Errorf(interact.NotFound, "", "x").Then(interact.StepShow, "a;b"), "a", `did you mean "a;b"? lmosd show 'a;b'`, ""},
		"nothing near":           {interact.Errorf(interact.NotFound, "see", "x").Then(interact.StepFind), "weathr", "see", ""},
		"two owners": {ambiguous("urn:lmos:did:key:"+twin1+":w", "urn:x:w@"+twin2), "w",
			"lmosd show w@" + twin1[:render.ShortKey], "w@" + twin1[:render.ShortKey] + ", w@" + twin2[:render.ShortKey]},
		"one owner":        {ambiguous("urn:x:a@"+twin1, "urn:x:b@"+twin1), "w", "use one", ""},
		"a key":            {ambiguous("urn:x:a@" + twin1), "z6Mk", "use one", ""},
		"no list":          {interact.Errorf(interact.Ambiguous, "say more", "x"), "w", "say more", ""},
		"another error":    {interact.Errorf(interact.Timeout, "wait", "x"), "w", "wait", ""},
		"of nobody at all": {errors.New("boom"), "w", "", "boom"},
	} {
		e := interact.AsError(clarify(test.err, test.asked, show))
		cause := ""
		if e.Err != nil {
			cause = e.Err.Error()
		}
		if ownAdvice(e) != test.hint || cause != test.cause {
			t.Errorf("%s: hint %q, cause %q; want %q, %q", name, ownAdvice(e), cause, test.hint, test.cause)
		}
	}
	if clarify(nil, "w", show) != nil {
		t.Error("no error became one")
	}
}

func TestMisfit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"an input with places":  {&interact.Error{Code: interact.Invalid, Hint: "old", Issues: []td.Issue{{Reason: "x"}}}, "lmosd call a b"},
		"an input without them": {&interact.Error{Code: interact.Invalid, Hint: "old"}, "old"},
		"another error":         {&interact.Error{Code: interact.Timeout, Hint: "old", Issues: []td.Issue{{}}}, "old"},
	} {
		if got := ownAdvice(interact.AsError(misfit(test.err, "lmosd call a b"))); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestAgain(t *testing.T) {
	t.Parallel()
	for want, rest := range map[string][]string{
		"lmosd call w":           nil,
		"lmosd call w act":       {"act"},
		"lmosd call w 'a b' …":   {"a b", "k=v"},
		"lmosd call w '$(rm)' …": {"$(rm)", "k=v", "x"},
	} {
		if got := again("call", "w", rest); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// ownAdvice returns the hint of e with the steps of this program.
func ownAdvice(e *interact.Error) string {
	next := slices.DeleteFunc(slices.Clone(e.Next), func(s interact.Step) bool { return s.Kind != cli.StepCommand })
	return new(cli.Console).Advice(e.Hint, next, false)
}
