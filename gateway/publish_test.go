package gateway

import (
	"testing"

	"github.com/lmosd/lmosd/td"
)

func TestFirstIsDeterministic(t *testing.T) {
	t.Parallel()
	d := &td.Description{Thing: &td.Thing{Actions: map[string]*td.Action{"c": nil, "a": nil, "b": nil},
		Capabilities: []td.Capability{{ID: "urn:x:2"}, {ID: "urn:x:1"}}}}
	for range 20 {
		if capability, action := examplesOf(d); capability != "urn:x:2" || action != "a" {
			t.Fatalf("got %s, %s; want the first capability, and the action that comes first", capability, action)
		}
	}
	if capability, action := examplesOf(&td.Description{Thing: &td.Thing{}}); capability != "" || action != "" {
		t.Errorf("of nothing: got %q, %q", capability, action)
	}
}
