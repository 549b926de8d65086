package status

import (
	"maps"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
)

// Counters returns the counters of the parts of the node, for /metrics. Labels have few values: never a peer, a DID or a Thing.
func (r *Reporter) Counters() []gateway.Counter {
	g, d, k, s, y, h := r.Gossip.Stats(), r.Directory.Stats(), r.DHT.Stats(), r.Streams.Stats(), r.Sync.Stats(), r.Suspicion.Stats()
	cs := []gateway.Counter{
		{Name: "gossip_messages_total", Label: "result", Value: "published", Count: float64(g.Published)},
		{Name: "gossip_messages_total", Label: "result", Value: "delivered", Count: float64(g.Delivered)},
		{Name: "gossip_messages_total", Label: "result", Value: "rejected", Count: float64(g.Rejected)},
		{Name: "gossip_messages_total", Label: "result", Value: "ignored", Count: float64(g.Ignored)},
		{Name: "gossip_messages_total", Label: "result", Value: "limited", Count: float64(g.Limited)},
		{Name: "gossip_messages_total", Label: "result", Value: "refused", Count: float64(g.Refused)},
		{Name: "gossip_bans_total", Count: float64(g.Banned)},
		{Name: "gossip_messages_total", Label: "result", Value: "duplicate", Count: float64(g.Duplicates)},
		{Name: "gossip_messages_total", Label: "result", Value: "dropped", Count: float64(g.Dropped)},
		{Name: "td_reject_total", Label: "reason", Value: "invalid", Count: float64(d.Invalid)},
		{Name: "td_reject_total", Label: "reason", Value: "rolled_back", Count: float64(d.RolledBack)},
		{Name: "td_reject_total", Label: "reason", Value: "no_room", Count: float64(d.Refused)},
		{Name: "td_reject_total", Label: "reason", Value: "queue_full", Count: float64(d.Dropped)},
		{Name: "directory_evicted_total", Count: float64(d.Evicted)},
		{Name: "td_equivocation_total", Count: float64(d.Equivocations)},
		{Name: "td_fetch_total", Label: "result", Value: "ok", Count: float64(d.Fetches - d.Unfetched)},
		{Name: "td_fetch_total", Label: "result", Value: "failed", Count: float64(d.Unfetched)},
		{Name: "dht_served_total", Label: "result", Value: "ok", Count: float64(k.Served)},
		{Name: "dht_served_total", Label: "result", Value: "refused", Count: float64(k.Refused + k.RefusedStreams + k.RefusedFrames + k.LimitedRequests)},
		{Name: "dht_writes_refused_total", Count: float64(k.RefusedWrites)},
		{Name: "sync_sessions_total", Label: "result", Value: "started", Count: float64(y.Sessions)},
		{Name: "sync_sessions_total", Label: "result", Value: "failed", Count: float64(y.Failed)},
		{Name: "sync_sessions_total", Label: "result", Value: "served", Count: float64(y.Served)},
		{Name: "sync_sessions_total", Label: "result", Value: "refused", Count: float64(y.Refused)},
		{Name: "sync_sessions_total", Label: "result", Value: "violation", Count: float64(y.Violations)},
		{Name: "sync_records_total", Label: "direction", Value: "in", Count: float64(y.Received)},
		{Name: "sync_records_total", Label: "direction", Value: "out", Count: float64(y.Sent)},
		{Name: "sync_bytes_total", Label: "direction", Value: "in", Count: float64(y.BytesIn)},
		{Name: "sync_bytes_total", Label: "direction", Value: "out", Count: float64(y.BytesOut)},
		{Name: "suspicion_messages_total", Label: "result", Value: "sent", Count: float64(h.Sent)},
		{Name: "suspicion_messages_total", Label: "result", Value: "send_failed", Count: float64(h.SendFailed)},
		{Name: "suspicion_messages_total", Label: "result", Value: "rejected", Count: float64(h.Rejected)},
		{Name: "suspicion_hosts_total", Label: "result", Value: "received", Count: float64(h.Received)},
		{Name: "suspicion_hosts_total", Label: "result", Value: "probed", Count: float64(h.Probed)},
		{Name: "suspicion_hosts_total", Label: "result", Value: "confirmed", Count: float64(h.Confirmed)},
		{Name: "suspicion_hosts_total", Label: "result", Value: "refuted", Count: float64(h.Refuted)},
		{Name: "suspicion_bytes_total", Label: "direction", Value: "in", Count: float64(h.BytesIn)},
		{Name: "suspicion_bytes_total", Label: "direction", Value: "out", Count: float64(h.BytesOut)},
		{Name: "panics_total", Count: float64(k.Panics + y.Panics + h.Panics)},
		{Name: "stream_calls_total", Label: "direction", Value: "in", Count: float64(s.CallsIn)},
		{Name: "stream_calls_total", Label: "direction", Value: "out", Count: float64(s.CallsOut)},
		{Name: "stream_errors_total", Label: "direction", Value: "in", Count: float64(s.ErrorsIn)},
		{Name: "stream_errors_total", Label: "direction", Value: "out", Count: float64(s.ErrorsOut)},
	}
	cs = append(cs, netCounters(r.Peers.Net())...)
	tasks, subscriptions := r.Agents()
	for s := interact.StatusPending; s <= interact.StatusInputRequired; s++ {
		cs = append(cs, gateway.Counter{Name: "tasks", Label: "state", Value: s.String(), Count: float64(tasks[s]), Gauge: true})
	}
	cs = append(cs, gateway.Counter{Name: "subscriptions", Count: float64(subscriptions), Gauge: true},
		gateway.Counter{Name: "store_bytes", Label: "store", Value: "database", Count: float64(r.Store.Size()), Gauge: true},
		gateway.Counter{Name: "store_bytes", Label: "store", Value: "directory", Count: float64(d.Bytes), Gauge: true},
		gateway.Counter{Name: "store_bytes", Label: "store", Value: "dht_values", Count: float64(k.Values.Bytes), Gauge: true},
		gateway.Counter{Name: "store_bytes", Label: "store", Value: "dht_providers", Count: float64(k.Providers.Bytes), Gauge: true})
	cs = append(cs, gateway.Counter{Name: "announcements_pending", Count: float64(r.Publisher.Pending()), Gauge: true},
		gateway.Counter{Name: "clock_skew_seconds", Count: r.Sync.Skew().Ahead.Seconds(), Gauge: true})
	if free, err := storage.FreeOn(r.Dir)(); err == nil {
		cs = append(cs, gateway.Counter{Name: "disk_free_bytes", Count: float64(free), Gauge: true})
	}
	for op, c := range k.Calls {
		cs = append(cs, gateway.Counter{Name: "dht_ops_total", Label: "op", Value: op, Count: float64(c.Sent)},
			gateway.Counter{Name: "dht_ops_failed_total", Label: "op", Value: op, Count: float64(c.Failed + c.Malformed)})
	}
	return cs
}

// netCounters returns the counters of reachability, relays and hole punching.
func netCounters(n *api.Net) (cs []gateway.Counter) {
	for _, state := range []string{api.ReachablePublic, api.ReachableLocal, api.ReachablePrivate, api.ReachableUnknown} {
		is := 0.0
		if n.Reachability == state {
			is = 1
		}
		cs = append(cs, gateway.Counter{Name: "reachability", Label: "state", Value: state, Count: is, Gauge: true})
	}
	cs = append(cs, gateway.Counter{Name: "relay_reservations", Label: "side", Value: "own", Count: float64(len(n.Relays)), Gauge: true},
		gateway.Counter{Name: "punches_total", Label: "result", Value: api.PunchWon, Count: float64(n.Punches.Won)},
		gateway.Counter{Name: "punches_total", Label: "result", Value: api.PunchFailed, Count: float64(n.Punches.Failed)},
		gateway.Counter{Name: "punches_total", Label: "result", Value: api.PunchDirect, Count: float64(n.Punches.Direct)})
	s := n.Serving
	if s == nil {
		s = &api.Serving{}
	}
	cs = append(cs, gateway.Counter{Name: "relay_reservations", Label: "side", Value: "served", Count: float64(len(s.Reservations)), Gauge: true},
		gateway.Counter{Name: "relay_circuits", Count: float64(len(s.Circuits)), Gauge: true}, gateway.Counter{Name: "relay_bytes_total", Count: float64(s.Bytes)})
	refused := map[string]uint64{"PERMISSION_DENIED": 0}
	maps.Copy(refused, s.Refused)
	for status, count := range refused { // a status of the protocol
		cs = append(cs, gateway.Counter{Name: "relay_refused_total", Label: "reason", Value: status, Count: float64(count)})
	}
	return cs
}
