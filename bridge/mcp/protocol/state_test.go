package protocol

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/opaque"
)

// The error of a request state of another node names that node.
func TestStateErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		e    *Error
		want string
	}{
		"elsewhere": {StateError(&opaque.ElsewhereError{Node: "did:key:zA"}), "send it there"},
		"expired":   {StateError(opaque.ErrExpired), "has expired"},
		"forged":    {StateError(opaque.ErrForged), "does not belong to this request"},
		"used":      {UsedStateError(), "already used"},
	} {
		if c.e.Code != InvalidParams || !strings.Contains(c.e.Message, c.want) {
			t.Errorf("%s: got %v", name, c.e)
		}
	}
	if got := string(StateError(&opaque.ElsewhereError{Node: "did:key:zA"}).Data); got != `{"node":"did:key:zA"}` {
		t.Errorf("got %s", got)
	}
}
