package protocol

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// Prose hints are unchanged, and the error of an ended connection does not contain its cause.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	for _, hint := range []string{"pull harder", "well-known -- or not"} {
		if got := Hint(interact.Errorf(interact.AgentFailed, hint, "x")); got != hint {
			t.Errorf("%q became %q", hint, got)
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("read: %w", io.EOF)} {
		if text := string(RespondError("1", FromError(err)).Bytes()); strings.Contains(text, "EOF") || !strings.Contains(text, "LMOS-1503") {
			t.Errorf("%v has the text %s", err, text)
		}
	}
}
