package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A record that is not public is neither sent nor accepted: to send one violates the protocol.
func TestRestrictedRecordsAreNotReconciled(t *testing.T) {
	t.Parallel()
	s, err := td.SignTombstone(first, "urn:x:1", td.Lease{Seq: 7, Now: time.Now(), Lifetime: time.Hour, Audience: td.Partners}, false)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode()
	n.add(t, s)
	key := td.Key(first.DID(), "urn:x:1")
	if got := n.outgoing(key, true); len(got.Record) > 0 {
		t.Error("it is sent")
	}
	if accepted, err := newNode().accept(item{key, 7}, s); accepted || !errors.Is(err, errViolation) {
		t.Errorf("got %t, %v, want a violation", accepted, err)
	}
}
