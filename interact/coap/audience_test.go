package coap

import (
	"context"
	"iter"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// The server reads the directory for its clients: links and descriptions are those that they may see.
func TestDescriptionsAreForTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thing := describe(t, "", serveTD)
		for via, want := range map[did.Via]bool{did.Unproven: false, did.Loopback: true} {
			known := func(ctx context.Context) iter.Seq[*td.Description] {
				return func(yield func(*td.Description) bool) {
					if did.PrincipalOf(ctx).Relation == did.Local {
						yield(described(thing))
					}
				}
			}
			b := newBench(t, ServerOptions{Mesh: fakeMesh(echoMesh), Known: known, From: did.Consumer(via, "")}, thing)
			if got := string(b.ask(b.request(codes.GET, "/.well-known/core")).Payload); strings.Contains(got, thing.ID) != want {
				t.Errorf("%s: got %q", via, got)
			}
			b.end()
		}
	})
}
