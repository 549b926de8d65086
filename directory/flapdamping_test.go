package directory

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A host that comes and goes is told of once and again at once, and then every ten seconds at most; what it has come to in the
// end is always told.
func TestFlappingHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := key(t, 7).DID(), key(t, 8).DID(), key(t, 9).DID()
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
			{"the first time", flap(a, false), "~a:unreachable"},
			{"and back", flap(a, true), "~a:reachable"},
			{"the third time is not told at once", flap(a, false), ""},
			{"another host is", flap(c, false), "~c:unreachable"},
			{"what has two hosts is down with the other", flap(b, false), "~ab:unreachable"},
			{"then the last state is", pause(flapWindow), "~a:unreachable"},
			{"and a thousand times are one", flap(a, append([]bool{true}, many...)...), "~a:reachable ~ab:reachable"},
			{"which are told of no more if they changed nothing", pause(flapWindow), ""},
			{"but are if they did", flap(a, append(many, false)...), "~a:unreachable ~ab:unreachable"},
			{"again later", pause(5 * flapWindow), ""},
			{"who waits is told at once", flap(a, true), "~a:reachable ~ab:reachable"},
		} {
			start := d.Latest()
			step.do()
			if got := told(t, d, td.Query{}, start); got != step.want {
				t.Errorf("%s: got %s, want %s", step.name, got, step.want)
			}
		}
		d.SetReachable(c, true)
		d.SetReachable(c, false)
		start := d.Latest()
		if _, err := d.put(on("late", c), received); err != nil {
			t.Fatal(err)
		}
		pause(2 * flapWindow)()
		d.SetReachable(c, true)
		if got := told(t, d, td.Query{}, start); !strings.HasSuffix(got, "~late:reachable") {
			t.Errorf("what was met while its host was down: got %s", got)
		}
	})
}

// However many hosts come and go, a bounded number is remembered, and those owed are not forgotten.
func TestFlapsAreBounded(t *testing.T) {
	t.Parallel()
	var fs flaps
	fs.start()
	now := time.Now()
	for i := range 2 * maxFlaps {
		host := did.DID(rune(i + 1))
		for range 3 {
			fs.mayLocked(host, now)
		}
	}
	if len(fs.hosts) != maxFlaps {
		t.Errorf("%d hosts are remembered", len(fs.hosts))
	}
	for _, f := range fs.hosts {
		f.pending = false
	}
	fs.mayLocked("one more", now.Add(flapWindow))
	if len(fs.hosts) != 1 {
		t.Errorf("%d hosts are remembered after their window", len(fs.hosts))
	}
}
