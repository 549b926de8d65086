package form

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/netguard"
)

func TestReasonsHoldNoAddress(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		errors.New(`Get "http://h/?key=hunter2": x509: unknown authority`),
		errors.New("hunter2"),
		&net.OpError{Op: "read", Err: errors.New("hunter2")},
		fmt.Errorf("hunter2: %w", io.ErrUnexpectedEOF),
	} {
		if got := Reason(err, true); strings.Contains(got, "hunter2") || got == "" {
			t.Errorf("%v: got %q", err, got)
		}
	}
}

func TestReasonsOfRefusalsAreShown(t *testing.T) {
	t.Parallel()
	err := netguard.Public().Check(netip.MustParseAddr("127.0.0.1"))
	if got := Reason(fmt.Errorf("hunter2: %w", err), true); got != err.Error() {
		t.Errorf("got %q, want %q", got, err)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://a/goods{?max_price}":       "http://a/goods",
		"http://a/goods{#part}":            "http://a/goods",
		"http://h/a?key=x#y":               "http://h/a",
		"http://me:pw@h:1/a{b}":            "http://h:1/a{b}",
		"http://h{?key}":                   "http://h/",
		"http://h":                         "http://h/",
		"no address":                       "no address",
		"mqtt://user:secret@h:1/a/b?x=1#y": "mqtt://h:1/a/b", "mqtt://h": "mqtt://h/", "odd": "odd", "mqtt://a@b@c/x": "mqtt://c/x",
		"mqtt://h/a\x1b[31mb":    "mqtt://h/a [31mb",
		"http://a@b@h/x@y":       "http://h/x@y",
		"https://[::1]:80/?a=/@": "https://[::1]:80/",
	} {
		if got := Plain(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
