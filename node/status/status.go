// Package status assembles the status of a node, its warnings and its counters.
package status

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/pubsub/reconcile"
	"github.com/lmosd/lmosd/pubsub/suspicion"
)

// A Store is the store of a node.
type Store interface {
	// Room returns an error of code DiskFull if nothing can be stored now.
	Room() error
	// Hurt reports whether damage was found since the start.
	Hurt() bool
	Path() string
	// Size returns the bytes of the store on the disk.
	Size() uint64
}

// A Reporter reports the state of the parts of a node. All fields are required. It is safe for concurrent use.
type Reporter struct {
	DID                             did.DID
	Name, Version, Profile, Network string
	Dir                             string // the data directory
	DHTMode                         string
	Started                         time.Time
	IsDraining                      func() bool

	Host      host.Host
	Peers     *p2p.Peers
	Store     Store
	Policy    *policy.Policy
	Directory *directory.Directory
	DHT       *dht.DHT
	Gossip    *pubsub.PubSub
	Sync      *reconcile.Reconciler
	Suspicion *suspicion.Detector
	Streams   *stream.Binding
	Publisher *publication.Publisher
	Index     *publication.Index
	Metrics   *gateway.Metrics
	// AuditEquivocations returns the members whose audit logs have two histories, and the folder of the evidence (audit.Log).
	AuditEquivocations func() (members []did.DID, dir string)
	// Late returns the loops that hang, the vital ones first (heartbeat.Loops).
	Late func() []heartbeat.Late
	// Agents returns the numbers of the tasks of the agents of this node by state, and of subscriptions (servient.Servient).
	Agents func() (tasks map[interact.Status]int, subscriptions int)
}

// Status returns the state of the node without the URL of its API. It counts the Things that the caller of ctx sees.
func (r *Reporter) Status(ctx context.Context) *api.Status {
	s := &api.Status{APIVersion: api.APIVersion, Kind: "Status", State: "ready", DID: r.DID, PeerID: r.Host.ID().String(),
		Name: r.Name, Version: r.Version, Uptime: time.Since(r.Started).Seconds(), Profile: r.Profile,
		Network: r.Network, DataDir: r.Dir, Addrs: p2p.FullAddrs(r.Host), Callers: r.Policy.Callers(), Warnings: r.warnings()}
	r.addEquivocations(s)
	if r.IsDraining() {
		s.State = "draining"
	} else if slices.ContainsFunc(s.Warnings, func(w api.Warning) bool { return w.Severity == "high" }) {
		s.State = "degraded"
	} else if r.Index.IsLoading() {
		s.State = "starting"
	}
	s.Peers.Total, s.Peers.Direct, s.Peers.Relayed = r.Peers.Count()
	s.Reachability, s.Relays = r.Peers.Reachability()
	s.DHT.Mode, s.DHT.Table = r.DHTMode, r.DHT.Size()
	s.Gossip.Topics, s.Gossip.Peers = pubsub.Shards, r.Gossip.Peers()
	_, s.Agents.Known = r.Directory.Count(ctx)
	s.Agents.Local = r.Index.Count(ctx)
	s.Agents.Fill = math.Round(1000*r.Directory.Fill()) / 1000
	r.Metrics.FillCalls(s)
	return s
}

// others returns a phrase for n further members.
func others(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; so do %d others", n)
}

// Ready returns nil when the node serves, and otherwise the reason: it stops, or a vital loop hangs. A node without peers is ready: it serves
// its own agents.
func (r *Reporter) Ready() error {
	if r.IsDraining() {
		return interact.ShutdownError("try again when the node is back")
	}
	if late := r.Late(); len(late) > 0 && late[0].Vital {
		return fmt.Errorf("a loop hangs: %s", late[0])
	}
	return nil
}

// warnOfLoops adds a warning if loops hang, of high severity if one of them is vital.
func (r *Reporter) warnOfLoops(add warner) {
	late := r.Late()
	if len(late) == 0 {
		return
	}
	names := make([]string, len(late))
	for i, l := range late {
		names[i] = l.String()
	}
	w := add(api.LoopHangs, "restart the node, and report its log", "%s: %s", interact.Count(len(late), "loop hangs", "loops hang"), strings.Join(names, ", "))
	if w.Since = time.Now().Add(-late[0].Since); !late[0].Vital {
		w.Severity, w.Hint = "medium", "see its log, and whether the disk and the network work; restart the node if the loop goes on to hang"
	}
}

// A warner adds a warning, which the caller may change.
type warner func(kind api.WarningKind, hint, format string, args ...any) *api.Warning

func (r *Reporter) warner(ws *[]api.Warning) warner {
	return func(kind api.WarningKind, hint, format string, args ...any) *api.Warning {
		w := kind.Warning(hint, format, args...)
		w.Since = r.Started
		*ws = append(*ws, w)
		return &(*ws)[len(*ws)-1]
	}
}

// ResultWarnings returns the warnings that explain wrong or incomplete answers of the directory: a wrong clock. It sends no request.
func (r *Reporter) ResultWarnings() (ws []api.Warning) {
	r.warnOfClock(r.warner(&ws))
	return ws
}

// warnings returns the warnings, with the time since which each holds, where that is known.
func (r *Reporter) warnings() []api.Warning {
	ws := []api.Warning{}
	add := r.warner(&ws)
	if up := time.Since(r.Started); r.Peers.IsAlone() && up > 30*time.Second {
		add(api.NoPeers, "connect to a peer, or name one in mesh.bootstrap", "this node is alone").Next = interact.Next(interact.StepConnect)
	}
	if k := r.Publisher.Pending(); k > 0 && time.Since(r.Started) > 5*time.Second {
		add(api.AnnouncePending, "they are announced when a peer connects", "%s not announced to other nodes yet", interact.Count(k, "agent is", "agents are"))
	}
	r.warnOfGrants(add)
	if p2p.OnlyLoopback(r.Host.Addrs(), r.Host.Network().ListenAddresses()) {
		add(api.LoopbackOnly, "see the interfaces of this machine and listen.no_announce, or name an address in listen.announce",
			"peers learn no address of this node but loopback: no other machine reaches it")
	}
	r.warnOfClock(add)
	r.warnOfLoops(add)
	if err := r.Store.Room(); err != nil {
		add(api.DiskLow, interact.AsError(err).Hint, "%s", err)
	}
	if r.Store.Hurt() {
		add(api.StoreDamaged, storage.HurtHint, "the store is damaged: %s", r.Store.Path())
	}
	for folder, text := range storage.Notes(r.Dir) {
		add(api.StoreDamaged, "publish the named Things again; then delete the folder: rm -r "+interact.Quote(folder), "%s", text).Severity = "low"
	}
	if members, dir := r.AuditEquivocations(); len(members) > 0 {
		add(api.AuditEquivocated, "examine the member; the evidence is in "+dir+": delete the file of the member when the case is closed, and restart",
			"the audit log of %s was changed or replaced: it contradicts a checkpoint that the member signed before%s", members[0].Short(), others(len(members)-1))
	}
	if fill, lacks := r.Directory.Fill(), r.Directory.IsIncomplete(); lacks {
		s := r.Directory.Stats()
		add(api.DirectoryFull, "raise directory.max_things, or deny owners with many descriptions",
			"the directory is full: %s of others not kept since the start; they are requested from the mesh when they are needed",
			interact.Count(int(s.Refused+s.Evicted), "description was", "descriptions were")).Next = interact.Next(interact.StepPolicy, "deny", "DID")
	} else if fill >= nearlyFull {
		add(api.DirectoryNearlyFull, "raise directory.max_things",
			"the directory is %.0f%% full; beyond that, what is trusted, used and connected stays", 100*fill)
	}
	return ws
}

// warnOfGrants adds a warning for the Things of other owners whose grants end soon or have ended, and for those with a newer grant that the operator must
// bring. Each names one of the Things.
func (r *Reporter) warnOfGrants(add warner) {
	var ending, waiting []publication.Hosted
	for _, h := range r.Publisher.Granted() {
		switch {
		case h.Offered && h.Waiting != 0:
			waiting = append(waiting, h)
		case time.Until(h.Grant.Expires) < publication.GrantWarning:
			ending = append(ending, h)
		}
	}
	if len(ending) > 0 {
		first := slices.MinFunc(ending, func(a, b publication.Hosted) int { return a.Grant.Expires.Compare(b.Grant.Expires) })
		add(api.GrantEnds, "get a newer one from its owner",
			"not hosted after the end of the grant: %s of other owners; the first is %s at %s", interact.Count(len(ending), "agent", "agents"), first.Thing, first.Grant.Expires.Format(time.RFC3339)).Next =
			interact.Next(interact.StepHosting, "put", "FILE")
	}
	if len(waiting) > 0 {
		add(api.GrantWaits, "get it from its owner",
			"a newer grant of another description exists for %s of other owners: %s", interact.Count(len(waiting), "agent", "agents"), waiting[0].Thing).Next = interact.Next(interact.StepHosting, "put", "FILE")
	}
}

// nearlyFull is the part of the directory from which on there is a warning.
const nearlyFull = 0.9
