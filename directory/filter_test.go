package directory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/td"
)

// Checks of single descriptions end with the context of the query, and the result is then truncated.
func TestChecksEndWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the clock stands still during checks
		d := openDirectory(t, Options{Embedder: &topicEmbedder{}})
		const n = 400
		for i := range n {
			desc := plain(t, byte(i/100), fmt.Sprintf("urn:%03d", i), "Weather", "urn:example:weather", "urn:example:sky")
			desc.Capabilities[0].Version, desc.Capabilities[1].Version = "1.0.0", "2.0.0"
			desc.Record.Capabilities = []string{"urn:example:sky", "urn:example:weather"}
			if _, err := d.put(desc, received); err != nil {
				t.Fatal(err)
			}
		}
		stop := run(t, d)
		synctest.Wait() // until all have a vector
		stop()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		// All have the capability, and one in the version range, but not in the same capability.
		hard := td.Query{Capability: []string{"urn:example:weather"}, Version: "^2"}
		for _, text := range []string{"", "weather", "inventory"} {
			q := hard
			q.Text = text
			_, _ = d.embeddings.Query(t.Context(), text) // a cached vector needs no time
			for _, c := range []struct {
				ctx  context.Context
				want error
			}{{t.Context(), nil}, {over, context.Canceled}} {
				q.Counter = &td.CoverageCounter{}
				found, err := found(d.Find(c.ctx, q))
				if len(found) != 0 || !errors.Is(err, c.want) || q.Counter.Coverage().Truncated != (c.want != nil) {
					t.Errorf("%q, %v: got %d, %v, %+v", text, c.want, len(found), err, q.Counter.Coverage())
				}
			}
		}
		for name, s := range map[string]*checkLimit{
			"time":   {ctx: t.Context(), until: time.Now().Add(-time.Hour)},
			"number": {ctx: t.Context(), until: time.Now().Add(time.Hour), n: maxChecks - 10},
		} {
			checks := 0
			for s.next() {
				checks++
			}
			if checks > 15 || !s.cut {
				t.Errorf("by %s: %d checks", name, checks)
			}
		}
	})
}
