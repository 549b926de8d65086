package node

import (
	"slices"
	"testing"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
)

// addrs parses multiaddrs.
func addrs(t testing.TB, texts ...string) []ma.Multiaddr {
	t.Helper()
	var as []ma.Multiaddr
	for _, text := range texts {
		a, err := ma.NewMultiaddr(text)
		if err != nil {
			t.Fatal(err)
		}
		as = append(as, a)
	}
	return as
}

func TestWarningForLoopbackOnly(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Listen, o.NoAnnounce = []string{"/ip4/0.0.0.0/tcp/0"}, []string{"/ip4"}
	silent := opened(t, o)
	if ws := silent.Status().Warnings; !slices.ContainsFunc(ws, func(w api.Warning) bool { return w.Code == "LMOS-W005" }) {
		t.Errorf("an unreachable node reports %+v", ws)
	}
}
