package node

import (
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestFromPublishToWithdrawal(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	a := newAgent(t)
	host, caller := nodes[0], nodes[1].Client()
	ref := publish(t, host, toolAt("Echo", "", a.url))
	knows(t, nodes[1], ref)
	out, media, err := caller.Call(t.Context(), "echo", "echo", interact.JSON, []byte(`"hello"`))
	if err != nil || string(out) != `"hello"` || media != interact.JSON {
		t.Errorf("the call gives %s (%s), %v; want the same text", out, media, err)
	}
}
