package mqtt

import (
	"context"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// The broker reads the directory for its clients (directory.Options.Sees).
func TestDescriptionsAreForTheClient(t *testing.T) {
	t.Parallel()
	for _, via := range []did.Via{did.Unproven, did.Token} {
		from := did.Consumer(via, "")
		b := &Broker{o: BrokerOptions{Find: func(ctx context.Context, ref string) (*td.Description, error) {
			if did.PrincipalOf(ctx) != from {
				t.Errorf("%s: the caller is %s", via, did.PrincipalOf(ctx).Short())
			}
			return nil, interact.NoAgent(ref)
		}}}
		if _, err := b.find(t.Context(), from, "x"); interact.AsError(err).Code != interact.NotFound {
			t.Error(err)
		}
	}
}
