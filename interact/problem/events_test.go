package problem

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// Comments are not events, and a problem event ends the sequence with its error.
func TestEvents(t *testing.T) {
	t.Parallel()
	const stream = ": \n\nevent: hot\nid: 1\ndata: 20\ndata: 21\n\ndata: x\n\n"
	var got []string
	for e, err := range Events(strings.NewReader(stream), 100) {
		got = append(got, fmt.Sprintf("%s %s %s %v", e.Name, e.ID, e.Data, err))
	}
	if want := []string{"hot 1 20\n21 <nil>", " 1 x <nil>"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for range Events(strings.NewReader(stream), 100) {
		break
	}
	const ended = "event: lmosd:problem\ndata: {\"code\":\"LMOS-1411\",\"type\":\"x\"}\n\nevent: after\ndata: \n\n"
	for _, err := range Events(strings.NewReader(ended), 100) {
		if e := interact.AsError(err); e == nil || e.Code != interact.Withdrawn {
			t.Errorf("got %v", err)
		}
	}
	n := 0
	for _, err := range Events(strings.NewReader(stream), 5) {
		if n++; err == nil {
			t.Error("a line that is too long is read")
		}
	}
	if n != 1 {
		t.Errorf("%d events", n)
	}
}
