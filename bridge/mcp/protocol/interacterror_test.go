package protocol

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// Text is unchanged, and an ended connection is unreachable.
func TestFaults(t *testing.T) {
	t.Parallel()
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
