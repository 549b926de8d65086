package directory

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

// Watchers receive two reports of a flapping host at once, and then one per 10 s at most. The last one has the final state.
func TestFlappingHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := didtest.Key(7).DID(), didtest.Key(8).DID(), didtest.Key(9).DID()
		on := func(id string, hosts ...did.DID) *td.Description {
			desc := plain(t, 1, id, id)
			for _, h := range hosts {
				desc.Record.Hosts = append(desc.Record.Hosts, td.Host{Node: h})
			}
			return desc
		}
		d := filled(t, Options{}, on("a", a), on("ab", a, b), on("c", c))
		defer run(t, d)()
		flap := func(node did.DID, up ...bool) func() {
			return func() {
				for _, ok := range up {
					d.SetReachable(node, ok)
				}
			}
		}
		const window = 10 * time.Second // of reachability.Options.OnChange
		pause := func(long time.Duration) func() { return func() { time.Sleep(long); synctest.Wait() } }
		many := make([]bool, 0, 2000)
		for range 1000 {
			many = append(many, false, true)
		}
		for _, step := range []struct {
			name string
			do   func()
			want string
		}{
			{"the first change", flap(a, false), "~a:unreachable"},
			{"the second change", flap(a, true), "~a:reachable"},
			{"the third change is delayed", flap(a, false), ""},
			{"another host is not delayed", flap(c, false), "~c:unreachable"},
			{"both hosts of a Thing are down", flap(b, false), "~ab:unreachable"},
			{"the delayed report", pause(window), "~a:unreachable"},
			{"1,000 changes, the first at once", flap(a, append([]bool{true}, many...)...), "~a:reachable ~ab:reachable"},
			{"no delayed report without a change", pause(window), ""},
			{"1,000 changes with a difference", flap(a, append(many, false)...), "~a:unreachable ~ab:unreachable"},
			{"no further report", pause(5 * window), ""},
			{"a change after the window", flap(a, true), "~a:reachable ~ab:reachable"},
		} {
			start := d.Latest()
			step.do()
			if got := watched(t, d, td.Query{}, start); got != step.want {
				t.Errorf("%s: got %s, want %s", step.name, got, step.want)
			}
		}
		d.SetReachable(c, true)
		d.SetReachable(c, false)
		start := d.Latest()
		if _, err := d.put(on("late", c), received); err != nil {
			t.Fatal(err)
		}
		pause(2 * window)()
		d.SetReachable(c, true)
		if got := watched(t, d, td.Query{}, start); !strings.HasSuffix(got, "~late:reachable") {
			t.Errorf("a Thing that was added while its host was down: got %s", got)
		}
	})
}
