package policy

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// Refusals are logged once for each caller and Thing within a minute, and the memory for them is limited.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		p := loaded(t, Rules{Options: rules.Options{Untrusted: access.UntrustedFind}, Log: slog.New(slog.NewTextHandler(&text, nil)), Hint: func(r Refusal) string {
			return fmt.Sprint(r.Who.ID(), " ", r.Hidden, " ", access.NameOf(r.Request.Target))
		}})
		call := func(from *did.Principal, name string) {
			thing := interact.Chain(answering, p.Authorize(lamp, &access.Target{ID: "urn:x:" + name}, nil))
			_, _ = interact.Call(t.Context(), thing, &interact.Message{Type: invoke, Name: "blink", Thing: "lamp", From: from})
		}
		lines := func() int { return strings.Count(text.String(), "call refused") }
		for i := range 3 {
			call(&did.Principal{DID: alice, Node: alice, Name: fmt.Sprint(i), Via: did.Peer}, "a")
		}
		call(who(local), "a")
		if lines() != 1 || !strings.Contains(text.String(), "op=invoke thing=urn:x:a why=\"no rule lets untrusted callers invoke\" hint=\""+string(alice)+"#0 false urn:x:a\"") {
			t.Errorf("logged\n%s", text.String())
		}
		call(who(alice), "b")
		time.Sleep(refusalInterval)
		call(who(alice), "a")
		if lines() != 3 {
			t.Errorf("logged\n%s", text.String())
		}
		for i := range 2 * maxRefusals {
			call(&did.Principal{Node: did.DID(fmt.Sprint("did:key:", i)), Via: did.Peer}, "a")
		}
		if n := len(p.refused.last); n > maxRefusals {
			t.Errorf("%d callers are kept", n)
		}
		time.Sleep(refusalInterval)
		call(who(alice), "a")
		if !strings.Contains(text.String(), "omitted=") {
			t.Error("the number of omitted lines is missing")
		}
	})
}

func TestAllowedCallsDoNotLog(t *testing.T) {
	p := loaded(t, Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}, Log: slog.New(slog.DiscardHandler)})
	m, target, known := &interact.Message{Type: invoke, Name: "blink", From: who(alice)}, access.TargetOf(lamp, "lamp"), access.Affordances(lamp)
	with := testing.AllocsPerRun(100, func() {
		if _, err := p.authorize(m, target, func() map[access.Op][]string { return known }); err != nil {
			t.Error("refused")
		}
	})
	if with > 1 { // the closure for the input
		t.Errorf("%v allocations", with)
	}
}
