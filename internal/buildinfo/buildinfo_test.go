package buildinfo

import "testing"

func TestNameOf(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"": "dev", "(devel)": "dev", "v0.1.0": "0.1.0", "v0.0.0-20261121111051-0f089d02ace0+dirty": "dev",
		"v0.1.1-0.20261121111051-0f089d02ace0": "0.1.1-0.20261121111051-0f089d02ace0"} {
		if got := nameOf(version); got != want {
			t.Errorf("%s is shown as %s, want %s", version, got, want)
		}
	}
	if Version() == "" {
		t.Error("the version is empty")
	}
}
