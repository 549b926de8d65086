package stream

import (
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/td"
)

const (
	maxPins = 4096      // of each kind
	pinFor  = time.Hour // after its last use a pin makes room for others first; hosts keep ended runs for 10 min
)

// A pinKind is a kind of state that one of several hosts has.
type pinKind int

const (
	pinRun          pinKind = iota // a run, by its ActionID
	pinLatest                      // the latest run of a caller, by the name of the action; empty: of any action
	pinKeyed                       // the run of an idempotency key
	pinEvents                      // events that can be sent again
	pinConversation                // messages with one correlation: any host can continue it
	pinKinds
)

// A pinID identifies a state.
type pinID struct {
	kind           pinKind
	thing, who, id string
}

// A pin is the host that has a state.
type pin struct {
	host    did.DID
	used    time.Time
	running int  // calls with the idempotency key at the host
	started bool // one may have started there; true for all other kinds
}

// pins are the hosts of states. The zero value works. It is safe for concurrent use.
type pins struct {
	mu  sync.Mutex
	all [pinKinds]map[pinID]*pin // owned by mu
}

// host returns the host that has the state.
func (p *pins) host(id pinID) (did.DID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[id.kind][id]; one != nil {
		return one.host, true
	}
	return "", false
}

// set records the host that has the state.
func (p *pins) set(id pinID, host did.DID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(id, &pin{host: host, used: time.Now(), started: true})
}

func (p *pins) putLocked(id pinID, one *pin) {
	boundedmap.Put(&p.all[id.kind], id, one, maxPins, func(old *pin) bool { return old.running == 0 && one.used.Sub(old.used) > pinFor })
}

// claim returns the host for a call with an idempotency key: the one that has it, else host. The caller calls release.
func (p *pins) claim(id pinID, host did.DID) did.DID {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[id.kind][id]
	if one == nil {
		one = &pin{host: host}
	}
	one.used = time.Now()
	one.running++
	p.putLocked(id, one)
	return one.host
}

// release ends a claim. If no call has started at the host, the key is free for other hosts.
func (p *pins) release(id pinID, started bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[id.kind][id]
	if one == nil {
		return
	}
	one.running--
	if one.started = one.started || started; !one.started && one.running == 0 {
		delete(p.all[id.kind], id)
	}
}

// pinOf returns the state that m is about. Strict means that other hosts do not know it, or could run the action twice. ok is false if any host can
// answer.
func (t *Thing) pinOf(m *interact.Message) (id pinID, strict, ok bool) {
	switch {
	case m.Type.AboutRun() && m.ActionID != "":
		return pinID{pinRun, t.ref, "", m.ActionID}, true, true
	case m.Type.AboutRun():
		return pinID{pinLatest, t.ref, m.From.ID(), m.Name}, true, true
	case m.Type == interact.QueryAllActions:
		return pinID{pinLatest, t.ref, m.From.ID(), ""}, false, true
	case m.Type == interact.InvokeAction && m.Key != "":
		return pinID{pinKeyed, t.ref, m.From.ID(), m.Name + "\x00" + m.Key}, !interact.Repeatable(t.desc, m), true
	case m.Type.Long() && m.After != "":
		return pinID{pinEvents, t.ref, "", m.Name}, true, true
	case m.Correlation != "" && m.Correlation != m.ID:
		return pinID{pinConversation, t.ref, m.From.ID(), m.Correlation}, false, true
	}
	return pinID{}, false, false
}

// remember records what a host has after a reply r to m.
func (t *Thing) remember(m, r *interact.Message, host did.DID) {
	pins := &t.b.pins
	switch {
	case m.Type == interact.InvokeAction && r.ActionID != "":
		pins.set(pinID{pinRun, t.ref, "", r.ActionID}, host)
		pins.set(pinID{pinLatest, t.ref, m.From.ID(), m.Name}, host)
		pins.set(pinID{pinLatest, t.ref, m.From.ID(), ""}, host)
	case m.Type.Long() && r.ID != "":
		pins.set(pinID{pinEvents, t.ref, "", m.Name}, host)
	}
	if id, strict, ok := t.pinOf(m); ok && !strict && id.kind != pinLatest {
		pins.set(id, host)
	}
}

// HasState reports whether a host of the Thing has what m is about: a run, an idempotency key, or earlier messages of a conversation. Then m must
// not go to another host.
func (t *Thing) HasState(m *interact.Message) bool {
	id, _, ok := t.pinOf(m)
	if !ok {
		return false
	}
	_, ok = t.b.pins.host(id)
	return ok
}

// pinned returns the index of the host that has what m is about; -1 if m can go to any host. The error is Unreachable: that host is none of the
// Thing any more.
func (t *Thing) pinned(m *interact.Message) (i int, strict bool, err error) {
	id, strict, ok := t.pinOf(m)
	if !ok {
		return -1, false, nil
	}
	host, ok := t.b.pins.host(id)
	if !ok {
		return -1, false, nil
	}
	i = slices.IndexFunc(t.hosts, func(h td.Host) bool { return h.Node == host })
	if i < 0 && strict {
		return -1, true, t.left(host, m)
	}
	return i, strict, nil
}

// left returns the error for a message that only a former host of the Thing could answer.
func (t *Thing) left(host did.DID, m *interact.Message) error {
	e := interact.Errorf(interact.Unreachable, "the other hosts do not know it", "%s was at host %s, which is not a host of it any more", m.Name, host.Short())
	e.Started = m.Key != ""
	return e
}
