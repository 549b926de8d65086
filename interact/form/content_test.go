package form

import "testing"

func TestAlike(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]bool{{"", "application/json"}: true, {"application/td+json", "application/json"}: true,
		{"application/cbor", "application/senml+cbor"}: true, {"application/cbor", "application/json"}: false, {"text/plain",
			"text/plain;charset=utf-8"}: true} {
		if Alike(pair[0], pair[1]) != want {
			t.Errorf("%v: %v", pair, !want)
		}
	}
}
