package scheme

import (
	"slices"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	for _, s := range All {
		plain := Lookup(s.Protocol)
		if Lookup(s.Name) != s || plain.Name != s.Protocol || plain.IsSecure {
			t.Errorf("%s: its protocol %q has no plain scheme", s.Name, s.Protocol)
		}
		if s.Port == "" || s.Network != "tcp" && s.Network != "udp" {
			t.Errorf("%s: port %q, network %q", s.Name, s.Port, s.Network)
		}
		if !slices.Contains(slices.Collect(Matching(s.Name)), s.Protocol) {
			t.Errorf("a search for %s does not find %s", s.Protocol, s.Name)
		}
	}
	if got := Lookup("gopher"); got != (Scheme{}) {
		t.Errorf("got %v for a scheme without a binding", got)
	}
	var protocols []string
	for _, s := range All {
		if !slices.Contains(protocols, s.Protocol) {
			protocols = append(protocols, s.Protocol)
		}
	}
	if got, want := Protocols(), strings.Join(protocols, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMatching(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"https": "http https", "mqtt": "mqtt", "coaps+tcp": "coap coaps coaps+tcp", "ws": "w ws", "opc.ua+tcp": "opc.ua opc.ua+tcp",
	} {
		if got := strings.Join(slices.Sorted(Matching(name)), " "); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}
