package publication

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td/scheme"
)

// An agent is up if one of its addresses answers, whatever the others do.
func TestOneAddressIsEnough(t *testing.T) {
	p := New(Options{Pings: map[string]func(context.Context, string) error{"coap": func(ctx context.Context, addr string) error {
		switch addr {
		case "up:5683":
			return nil
		case "silent:5683":
			<-ctx.Done()
			return ctx.Err()
		}
		return errors.New("connection refused")
	}}})
	at := func(name, addr string) target { return p.newTarget(scheme.Lookup(name), addr) }
	silent, up, dead, dtls := at("coap", "silent:5683"), at("coap", "up:5683"), at("http", "127.0.0.1:1"), at("coaps", "127.0.0.1:1")
	for name, c := range map[string]struct {
		targets       []target
		direct, vague bool
	}{
		"all":            {[]target{silent, dead, up}, true, true},
		"none":           {[]target{dead}, false, false},
		"one not probed": {[]target{dead, dtls}, false, true},
		"silence":        {[]target{silent}, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			if direct, vague := probe(t.Context(), c.targets); direct != c.direct || vague != c.vague {
				t.Errorf("%s: got %v, %v", name, direct, vague)
			}
		})
	}
}

// A broker that is up does not show that the agent behind it is: a failed call counts for a minute.
func TestBrokerIsNotAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		l := f.publish("Echo", "").live
		l.targets = []target{{probe: func(context.Context, string) error { return nil }, isVague: true}}
		if !l.isUp(t.Context()) {
			t.Error("down at the start")
		}
		l.note(interact.Errorf(interact.Unreachable, "start the agent", "no subscriber for topic echo"))
		time.Sleep(probePause)
		if l.isUp(t.Context()) {
			t.Error("up because the broker is")
		}
		time.Sleep(failureMemory)
		if !l.isUp(t.Context()) {
			t.Error("down a minute after the failed call")
		}
	})
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	for href, want := range map[string]string{
		"http://127.0.0.1:80/a/{b}": "http://127.0.0.1:80", "https://x": "https://x", "ws://x/": "ws://x", "lmos:mesh": "lmos:mesh", "": "",
	} {
		if got := origin(href); got != want {
			t.Errorf("%q: got %q, want %q", href, got, want)
		}
	}
}
