//go:build !race

package node

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// TestAllocationsOfACall limits the allocations of a call of an in-process agent: 30 objects for each node on its path, libp2p included.
// Concurrent work of both nodes counts, too; the least of three measurements is used. The race detector makes pools drop objects at random.
func TestAllocationsOfACall(t *testing.T) {
	nodes := connected(t, 2)
	p, err := nodes[0].Offer(t.Context(), []byte(echoTD), echo)
	if err != nil {
		t.Fatal(err)
	}
	knows(t, nodes[1], p.Ref)
	data := []byte(`"` + strings.Repeat("x", 254) + `"`)
	const perNode = 30
	for name, of := range map[string]struct {
		asked  *running
		passed float64
	}{"router and chain of one node": {nodes[0], 1}, "two nodes": {nodes[1], 2}} {
		m := &interact.Message{Type: interact.InvokeAction, From: did.Consumer(did.Process, ""), Thing: p.Ref, Name: "echo", Data: data}
		var failed error
		call := func() {
			if r, err := interact.Call(t.Context(), of.asked.Mesh(), m); err != nil || len(r.Data) != len(data) {
				failed = fmt.Errorf("%v, %w", r, err)
			}
		}
		n := math.Inf(1)
		for range 3 { // the nodes have just begun, and have much to do beside
			n = min(n, testing.AllocsPerRun(500, call))
		}
		if n > perNode*of.passed || failed != nil {
			t.Errorf("%s: a call allocates %v objects (%v), want %v at most", name, n, failed, perNode*of.passed)
		}
		t.Logf("%s: %v objects", name, n)
	}
}
