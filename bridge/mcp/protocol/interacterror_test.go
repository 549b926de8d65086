package protocol

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// What a model reads names no command, whatever the code; what is no command stays as it was said.
func TestFaultsNameNoCommands(t *testing.T) {
	t.Parallel()
	for _, code := range interact.Codes() {
		for _, hint := range []string{"lmosd show x", "it may come back: lmosd find", "raise --timeout, or wait", "`lmosd status`", "call it: lmosd"} {
			text := string(RespondError("1", FromError(interact.Errorf(code, hint, "it failed"))).Bytes())
			if strings.Contains(text, "lmosd show") || strings.Contains(text, "lmosd find") || strings.Contains(text, "--") || strings.Contains(text, "lmosd status") {
				t.Errorf("%s: %s", code, text)
			}
		}
	}
	for _, hint := range []string{"pull harder", "well-known -- or not"} {
		if got := Hint(interact.Errorf(interact.AgentFailed, hint, "x")); got != hint {
			t.Errorf("%q became %q", hint, got)
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("read: %w", io.EOF)} {
		if text := string(RespondError("1", FromError(err)).Bytes()); strings.Contains(text, "EOF") || !strings.Contains(text, "LMOS-1503") {
			t.Errorf("%v is said as %s", err, text)
		}
	}
}
