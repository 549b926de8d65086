package directory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A thing is said to be reachable only if a host of it is connected or was reached lately; a valid record alone says nothing.
func TestPresence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		self, host, other := key(t, 9).DID(), key(t, 7).DID(), key(t, 8).DID()
		connected := map[did.DID]bool{}
		on := func(id string, hosts ...did.DID) *td.Description {
			return with(plain(t, 1, id, id), func(r *td.Record) {
				r.Hosts, r.Expires = nil, r.Expires.Add(10*time.Hour)
				for _, h := range hosts {
					r.Hosts = append(r.Hosts, td.Host{Node: h})
				}
			})
		}
		a, both, here, nowhere := on("a", host), on("both", host, other), on("here", self), on("nowhere")
		d := filled(t, Options{Self: self, Connected: func(n did.DID) bool { return connected[n] }}, a, both, here)
		issued := a.Record.Issued
		check := func(what string, desc *td.Description, state State, seen time.Time) {
			t.Helper()
			if got := d.Presence(desc); got.State != state || !got.LastSeen.Equal(seen) {
				t.Errorf("%s: got %s, seen %v, want %s, %v", what, got.State, got.LastSeen, state, seen)
			}
		}
		time.Sleep(time.Minute)
		check("a late joiner, who has the record only", a, StateUnknown, issued)
		check("what this node hosts", here, StateReachable, time.Now())
		check("what has no host", nowhere, StateUnknown, issued)

		connected[host] = true
		check("connected", a, StateReachable, time.Now())
		check("one of two connected", both, StateReachable, time.Now())
		d.SetAway(a, host, true)
		check("the host says that the agent is away", a, StateUnreachable, time.Now())
		check("another agent of that host", both, StateReachable, time.Now())
		d.SetAway(both, host, true)
		check("away at one host, the other unknown", both, StateUnknown, time.Now())
		d.SetAway(both, other, true)
		check("away at both", both, StateUnreachable, time.Now())
		d.SetAway(a, host, false)
		check("the agent is back", a, StateReachable, time.Now())

		ended := time.Now()
		delete(connected, host)
		d.Disconnected(host)
		time.Sleep(time.Second)
		check("the connection has ended", a, StateUnknown, ended)
		d.SetReachable(host, false)
		check("and the host could not be reached again", a, StateUnreachable, ended)
		d.SetReachable(host, true)
		reached := time.Now()
		time.Sleep(reachedFor - 1)
		check("reached lately", a, StateReachable, reached)
		time.Sleep(time.Nanosecond)
		check("and not any more", a, StateUnknown, reached)

		d.SetAway(here, self, true)
		check("an agent of this node", here, StateUnreachable, time.Now())
		time.Sleep(awayFor)
		check("and nobody has said it again", here, StateReachable, time.Now())
	})
}

// What is remembered of nodes and agents is bounded, and agents that come and go are told of like hosts.
func TestPresenceIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := key(t, 7).DID()
		a := with(plain(t, 1, "a", "A"), func(r *td.Record) { r.Hosts = []td.Host{{Node: host}} })
		d := filled(t, Options{}, a)
		start := d.changed.last()
		for range 100 {
			d.SetAway(a, host, true)
			d.SetAway(a, host, true)
			d.SetAway(a, host, false)
		}
		if got := told(t, d, td.Query{}, start); got != "~a:unreachable ~a:reachable" {
			t.Errorf("told %s", got)
		}
		for i := range maxContacts + maxAway {
			d.reach.setReachable(did.DID(string(rune('a'+i))), true, time.Now())
			d.reach.setAway(agentAt{key: [32]byte{byte(i), byte(i >> 8)}, host: host}, true, time.Now())
		}
		if len(d.reach.contacts) > maxContacts || len(d.reach.away) > maxAway {
			t.Errorf("%d contacts and %d agents are remembered", len(d.reach.contacts), len(d.reach.away))
		}
	})
}
