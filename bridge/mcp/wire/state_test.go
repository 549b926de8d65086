package wire

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/seal"
)

// A client learns where its call waits.
func TestRefusedStates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		e    *Error
		want string
	}{
		"elsewhere": {RefuseState(&seal.ElsewhereError{Node: "did:key:zA"}), "send it there"},
		"expired":   {RefuseState(seal.ErrExpired), "too old"},
		"forged":    {RefuseState(seal.ErrForged), "not of this request"},
		"used":      {UsedState(), "used already"},
	} {
		if c.e.Code != InvalidParams || !strings.Contains(c.e.Message, c.want) {
			t.Errorf("%s: got %v", name, c.e)
		}
	}
	if got := string(RefuseState(&seal.ElsewhereError{Node: "did:key:zA"}).Data); got != `{"node":"did:key:zA"}` {
		t.Errorf("got %s", got)
	}
}
