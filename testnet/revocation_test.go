package testnet

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// 20 nodes of two organizations, which are partners, serve a member of one of them until its issuer revokes it: then none lets a call
// through, and none sends an event, after two seconds of simulated time.
func TestRevocationReachesAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		r, err := Revoke(ctx, 20, t.TempDir(), Options{Latency: 5 * time.Millisecond, Farthest: 100 * time.Millisecond}, true)
		if err != nil {
			t.Fatal(err)
		}
		calls, streams := slices.Max(r.Calls), slices.Max(r.Streams)
		if len(r.Calls) != 19 || calls > 2*time.Second || streams > 2*time.Second {
			t.Errorf("the last of %d nodes let a call through after %v, and sent an event after %v of simulated time", len(r.Calls), calls, streams)
		}
		t.Logf("the last call let through: %v; the last event: %v", calls, streams)
	})
}
