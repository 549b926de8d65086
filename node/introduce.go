package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/mdns"
	"github.com/lmosd/lmosd/td"
)

// Anybody on the local network can introduce anything, so all of it is bounded.
const (
	heardMax       = 256 // discovered things
	heardPerSource = 16  // of them by one host of the network
	triesPerVisit  = 64  // TDs of one exploration that are looked at
	visitsAtOnce   = 4   // explorations, and one to each host, with a pause after it
	visitPause     = time.Second
	visitEvery     = 10 * time.Minute
	heardFor       = 3 * visitEvery // of a description, unless an exploration brings it again
)

// discovered marks the description of a discovered thing, and says where it was found.
const discovered = "lmos:discovered"

// An introducer tells the local network of this node, and this node of what others introduce there: an mdns.Service.
type introducer interface {
	Host() string
	Offer(port uint16, https bool)
	Watch(ctx context.Context) iter.Seq[mdns.Change]
	Run(ctx context.Context) error
	Close() error
}

// openLocal opens DNS-SD. A host without multicast is no reason not to start.
func (n *Node) openLocal() error {
	open := n.opts.introducer
	if open == nil {
		if !n.opts.MDNS {
			return nil
		}
		open = func(o mdns.Options) (introducer, error) { return mdns.New(o) }
	}
	source, err := open(mdns.Options{Name: n.opts.Name, Network: n.opts.Network, Log: n.log})
	if err != nil {
		n.log.Warn("nothing is introduced on the local network", "err", err)
		return nil
	}
	n.onClose(source.Close)
	n.local = &introductions{node: n, source: source, pause: visitPause, all: map[string]*introduction{}, busy: map[netip.Addr]bool{}}
	return nil
}

// runLocal announces the directory if others may read it, and explores what they introduce.
func (n *Node) runLocal(ctx context.Context) error {
	if n.local == nil {
		return nil
	}
	n.local.source.Offer(n.gateway.Introducible(), false)
	return n.local.run(ctx)
}

// hostNames are the names of the API: on the local network, that of the announcement, too.
func (n *Node) hostNames(h *HTTP) []string {
	if n.local == nil || !h.OpenDirectory {
		return h.Hosts
	}
	return append(slices.Clone(h.Hosts), n.local.source.Host())
}

// nearby is the address of the API for its own description: where the local network is told of it, an address that only this host
// understands is of no use there.
func (n *Node) nearby(api string) string {
	port := n.gateway.Introducible()
	if u, err := url.Parse(api); n.local == nil || port == 0 || err != nil || !onLoopback(u.Host) {
		return api
	}
	return "http://" + net.JoinHostPort(n.local.source.Host(), strconv.Itoa(int(port)))
}

// introductions are explored as they come, and again every ten minutes. Their things go with them.
type introductions struct {
	node   *Node
	source introducer
	pause  time.Duration // how long a host is left alone after an exploration, whatever it says meanwhile

	// what follows belongs to run.
	all  map[string]*introduction // by name
	busy map[netip.Addr]bool      // hosts whose introductions are explored now
}

// An introduction is one that holds, and what asks its things.
type introduction struct {
	mdns.Introduction
	ways   *bindings // nil if nobody is asked over their own addresses
	due    time.Time // of the next exploration
	cancel context.CancelFunc
}

// run returns when the last of its goroutines has. A network without multicast ends nothing else.
func (is *introductions) run(ctx context.Context) error {
	changes, done := make(chan mdns.Change), make(chan *introduction)
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work.Go(func() {
		if err := is.source.Run(ctx); err != nil && ctx.Err() == nil {
			is.node.log.Warn("nothing is introduced on the local network", "err", err)
		}
	})
	work.Go(func() {
		for c := range is.source.Watch(ctx) {
			select {
			case changes <- c:
			case <-ctx.Done():
				return
			}
		}
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := is.begin(ctx, &work, done, time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			for name := range is.all {
				is.drop(name, &work)
			}
			return ctx.Err()
		case c := <-changes:
			is.drop(c.Name, &work)
			if !c.Gone && c.Network != is.node.opts.Network { // what a node of our mesh has comes by the mesh
				is.all[c.Name] = &introduction{Introduction: c.Introduction, due: time.Now(), ways: is.node.nearbyBindings(c.Introduction)}
			}
		case in := <-done:
			delete(is.busy, in.From)
		case <-timer.C:
		}
	}
}

// begin explores what is due, and returns when more will be, as far as it is known; done says when a place has become free.
func (is *introductions) begin(ctx context.Context, work *sync.WaitGroup, done chan<- *introduction, now time.Time) (next time.Time) {
	all := slices.SortedFunc(maps.Values(is.all), func(a, b *introduction) int {
		return cmp.Or(a.due.Compare(b.due), strings.Compare(a.Name, b.Name))
	})
	for _, in := range all {
		switch {
		case in.due.After(now):
			return in.due
		case !is.busy[in.From] && len(is.busy) < visitsAtOnce:
			is.busy[in.From], in.due = true, now.Add(visitEvery)
			visit, cancel := context.WithCancel(ctx)
			in.cancel = cancel
			work.Go(func() {
				defer cancel()
				is.explore(visit, in)
				select {
				case <-time.After(is.pause):
				case <-ctx.Done():
				}
				select {
				case done <- in:
				case <-ctx.Done():
				}
			})
		}
	}
	return next
}

// drop ends an introduction.
func (is *introductions) drop(name string, work *sync.WaitGroup) {
	in := is.all[name]
	if in == nil {
		return
	}
	delete(is.all, name)
	if in.cancel != nil {
		in.cancel() // first: then nothing more of it is taken
	}
	if k := is.node.overheard.keep(in, nil); k > 0 {
		is.node.log.Debug("no longer on the local network", "introduction", in.Instance, "things", k)
	}
	if in.ways != nil {
		work.Go(func() { _ = in.ways.close() })
	}
}

// explore goes where an introduction leads. Its things are what is found there now; if not all could be read, what was found before
// stays until it ends.
func (is *introductions) explore(ctx context.Context, in *introduction) {
	n := is.node
	x := mdns.NewExplorer(mdns.ExplorerOptions{Network: n.opts.Network, Known: n.knows})
	found, tries, unread := map[string]bool{}, 0, false
	var failed []error
	for f, err := range x.Explore(ctx, in.Introduction) {
		var id string
		switch {
		case err != nil:
			unread = true
		case f.Kind == mdns.KindLink:
			continue // what it links to comes by itself
		case tries >= triesPerVisit || len(found) >= heardPerSource:
			err = errors.New("it has more things than are taken from one host")
		default:
			tries++
			if id, err = n.overhear(ctx, in, f, time.Now()); err == nil {
				found[id] = true
				continue
			}
			failed = append(failed, fmt.Errorf("%s: %w", f.From, err))
			continue
		}
		failed = append(failed, err)
		break
	}
	if ctx.Err() != nil {
		return
	}
	if !unread {
		n.overheard.keep(in, found)
	}
	n.log.Debug("explored on the local network", "introduction", in.Instance, "url", in.URL, "things", len(found),
		"err", errors.Join(failed[:min(len(failed), 4)]...))
}

// knows reports whether a thing that is found on the local network comes by the mesh: a thing of this node, or a node or thing of
// the mesh whose id carries its key. Another id is anybody's to claim.
func (n *Node) knows(id string) bool {
	owner := did.DID(td.ParseRef(id).Owner)
	return n.offering(id) || owner == n.DID() || owner != "" && (n.dir.Hosts(owner) || len(n.Lookup(id)) > 0)
}

// offering reports whether this node offers a thing with the id.
func (n *Node) offering(id string) bool {
	of := n.offers.get(id)
	return of != nil && of.desc != nil
}

// overhear makes a discovered thing of what was found: this node says itself what it read, and where.
func (n *Node) overhear(ctx context.Context, in *introduction, f mdns.Found, now time.Time) (id string, err error) {
	id, err = n.idOf(f)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(f.Raw)
	if n.overheard.fresh(in, id, sum, now) {
		return id, nil
	}
	raw, err := retold(f, id)
	if err != nil {
		return "", err
	}
	if err := n.overheard.room(in, id); err != nil {
		return "", err // before the work of signing
	}
	t, err := td.Complete(raw, n.overheard.signer.DID())
	if err != nil {
		return "", err
	}
	signed, err := td.Sign(t, n.overheard.signer, td.Lease{Seq: millis(now), Now: now, Lifetime: heardFor})
	if err != nil {
		return "", err
	}
	d, err := signed.Verify(ctx, n.verifier, now)
	if err != nil {
		return "", err
	}
	return id, n.overheard.put(ctx, &heard{desc: d, thing: n.discovered(d, in.ways), in: in, sum: sum})
}

// idOf returns the id of a discovered thing: its own, unless it has none, or one that this node cannot sign, because it carries the
// key of another. One that carries this node's key would pass for a thing of this node.
func (n *Node) idOf(f mdns.Found) (string, error) {
	ref := td.ParseRef(f.ID)
	switch {
	case f.ID != "" && ref.Owner == "":
		return f.ID, nil
	case f.ID != "" && (ref.Owner == string(n.DID()) || n.overheard.signs(ref.Owner) || ref.Name != f.ID):
		return "", fmt.Errorf("the id %q is not its own to have", f.ID)
	}
	var doc struct {
		Title string `json:"title"`
	}
	_ = json.Unmarshal(f.Raw, &doc) // without a title they are told apart by where they are
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", f.From, f.ID, doc.Title))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // RFC 9562 §5.8
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]), nil
}

// retold is a TD as this node tells of it: under its id, with a link to where it was found and the mark of a discovered thing, and
// without what others have signed or registered. Where it has no base, that is where it was found (RFC 3986 §5.1.3).
func retold(f mdns.Found, id string) ([]byte, error) {
	members, err := jcs.Members(f.Raw)
	if err != nil {
		return nil, err
	}
	link := map[string]any{"rel": "describedby", "href": f.From, "type": "application/td+json"}
	links, base := []any{link}, f.From
	for _, m := range members {
		var given []any
		switch m.Name {
		case "links":
			if err := json.Unmarshal(m.Raw, &given); err != nil {
				return nil, fmt.Errorf("links: %w", err)
			}
			links = append(given, link)
		case "base":
			base = ""
		}
	}
	members = slices.DeleteFunc(members, func(m jcs.Member) bool {
		return slices.Contains([]string{"id", "links", "proof", "registration", discovered}, m.Name)
	})
	more := map[string]any{"id": id, "links": links, discovered: f.From}
	if base != "" {
		more["base"] = base
	}
	for _, name := range slices.Sorted(maps.Keys(more)) {
		raw, err := json.Marshal(more[name])
		if err != nil {
			return nil, err
		}
		members = append(members, jcs.Member{Name: name, Raw: raw})
	}
	return jcs.Join(members), nil
}

// nearbyBindings ask the things of an introduction, without any secret of this node, on the local network only. Nothing there has
// certificates, so TLS is not asked for. Each introduction has connections of its own: what one may reach, another may not.
func (n *Node) nearbyBindings(in mdns.Introduction) *bindings {
	if n.opts.Direct == DirectOff {
		return nil
	}
	return newBindings(credentials.Store{}, nearbyDialer(in, mdns.Local), nil, n.log)
}

const nearbyTimeout = 5 * time.Second

// nearbyDialer connects to addresses that allow permits, and to the host of an introduction by its name. No other name is looked up.
func nearbyDialer(in mdns.Introduction, allow func(mdns.Introduction, netip.Addr) error) dialer {
	return func(ctx context.Context, network, hostport string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(hostport)
		if err != nil {
			return nil, err
		}
		addrs := in.Addrs
		if !strings.EqualFold(strings.TrimSuffix(host, "."), in.Host) {
			addr, err := netip.ParseAddr(host)
			if err != nil {
				return nil, interact.Errorf(interact.Unreachable, "its description has to name "+in.Host+", or an address",
					"%q is not where the local network introduced the thing", host)
			}
			addrs = []netip.Addr{addr.Unmap()}
		}
		failed := []error{errors.New("no address")}
		for _, addr := range addrs {
			if err := allow(in, addr); err != nil {
				failed = append(failed, interact.Errorf(interact.Unreachable, "it was introduced on the local network, and is asked there only",
					"%v", err))
				continue
			}
			c, err := (&net.Dialer{Timeout: nearbyTimeout}).DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
			if err == nil {
				return c, nil
			}
			failed = append(failed, err)
		}
		return nil, failed[len(failed)-1]
	}
}

// discovered asks a discovered thing over its own forms. It has no other way: who wrote "lmos:" there is asked by nobody.
func (n *Node) discovered(d *td.Description, ways *bindings) interact.Thing {
	var paths []interact.Path
	if ways != nil {
		paths = ways.paths(d.Thing, 0)
	}
	for i, p := range paths {
		paths[i].Thing = interact.Chain(p.Thing, n.checked(d.Thing), interact.Composed(d.Thing))
	}
	if len(paths) == 0 {
		none := interact.Errorf(interact.Unreachable, "interact.direct: secure lets it be asked, where its forms have addresses",
			"no way to %s, which the local network introduced", d.Name())
		return interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return interact.Fail(none)
		})
	}
	return interact.Chain(interact.NewPaths(d.Thing, paths...), interact.Named(d.Ref()), n.hub.Wrap())
}

// A heard is a discovered thing: what this node itself says of what it found. It is read-only.
type heard struct {
	desc  *td.Description
	thing interact.Thing
	in    *introduction
	sum   [sha256.Size]byte // of what was found
}

// overheard are the discovered things. They are apart from the directory, so that nothing of them is stored, announced, reconciled
// or answered to peers.
type overheard struct {
	own func(id string) bool // whether this node offers a thing itself: then that is meant
	// signer signs what nobody else has. It is not the node's key, and ends with the process: a description with the node's own
	// signature could be told on as a thing of this node.
	signer did.Signer

	mu     sync.RWMutex
	things map[string]*heard // by id; owned by mu
}

// signs reports whether owner is the key of the discovered things.
func (o *overheard) signs(owner string) bool {
	id := o.signer.DID()
	return owner == string(id) || owner == id.Multibase()
}

// fresh reports whether a thing is known as it was found now, for longer than until the next exploration.
func (o *overheard) fresh(in *introduction, id string, sum [sha256.Size]byte, now time.Time) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	h := o.things[id]
	return h != nil && h.in == in && h.sum == sum && h.desc.Record.Expires.After(now.Add(visitEvery+time.Minute))
}

// room says why a thing of an introduction is not taken. The first who has an id keeps it.
func (o *overheard) room(in *introduction, id string) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.roomLocked(in, id)
}

func (o *overheard) roomLocked(in *introduction, id string) error {
	old, same := o.things[id], 0
	for _, h := range o.things {
		if h.in.From == in.From {
			same++
		}
	}
	switch {
	case old != nil && old.in == in:
		return nil
	case old != nil:
		return fmt.Errorf("%q is introduced by %q already", id, old.in.Instance)
	case o.own(id):
		return fmt.Errorf("%q is a thing of this node", id)
	case same >= heardPerSource:
		return fmt.Errorf("%s has %d things here already", in.From, same)
	case len(o.things) >= heardMax:
		return fmt.Errorf("%d things of the local network are known already", len(o.things))
	}
	return nil
}

// put takes a thing, unless the exploration that found it is over.
func (o *overheard) put(ctx context.Context, h *heard) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := h.desc.Record.Thing
	if err := cmp.Or(ctx.Err(), o.roomLocked(h.in, id)); err != nil {
		return err
	}
	o.things[id] = h
	return nil
}

// keep forgets all things of an introduction but those with the ids, and returns how many went.
func (o *overheard) keep(in *introduction, ids map[string]bool) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.things)
	maps.DeleteFunc(o.things, func(id string, h *heard) bool { return h.in == in && !ids[id] })
	return before - len(o.things)
}

// that returns the things in force that fits takes, by id.
func (o *overheard) that(fits func(d *td.Description) bool) []*heard {
	o.mu.RLock()
	defer o.mu.RUnlock()
	now := time.Now()
	var found []*heard
	for id, h := range o.things {
		if h.desc.Record.Expires.After(now) && !o.own(id) && fits(h.desc) {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *heard) int { return strings.Compare(a.desc.Record.Thing, b.desc.Record.Thing) })
	return found
}

// after yields what q finds, and then the things of the local network that q asks for, as far as its limit has room: whatever a
// network introduces, it takes no place from what the mesh has.
func (o *overheard) after(found iter.Seq2[*td.Description, error], q td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		given := 0
		var failed error
		for d, err := range found {
			if failed = err; err != nil {
				break
			}
			if given++; !yield(d, nil) {
				return
			}
		}
		for _, h := range o.that(q.Match) {
			if given++; given > q.Max() {
				q.Tally.Truncate()
				break
			}
			q.Tally.See(h.desc.Record.Issued)
			if !yield(h.desc, nil) {
				return
			}
		}
		if failed != nil {
			yield(nil, failed)
		}
	}
}

// heard returns the discovered thing that ref names, or nil if ref is for the directory to say. The mesh's thing comes before a
// discovered one with the same id, and a name that both have is [interact.Ambiguous].
func (n *Node) heard(ctx context.Context, ref string) (*heard, error) {
	r := td.ParseRef(ref)
	found := n.overheard.that(r.Match)
	if len(found) == 0 {
		return nil, nil
	}
	if r.Exact() && n.overheard.signs(r.Owner) {
		return found[0], nil
	}
	d, err := n.dir.Get(ctx, ref)
	if e, ok := errors.AsType[*interact.Error](err); ok && e.Code == interact.NotFound {
		if len(found) == 1 {
			return found[0], nil
		}
	} else if err != nil || r.Exact() {
		return nil, err
	}
	var refs []string
	if d != nil {
		refs = append(refs, interact.Quote(d.Ref()))
	}
	for _, h := range found[:min(len(found), 8)] {
		refs = append(refs, interact.Quote(h.desc.Ref()))
	}
	return nil, interact.Errorf(interact.Ambiguous, "use one of "+strings.Join(refs, ", "),
		"%q may be a thing that somebody on the local network introduced, or another", ref)
}

// A finder locates what this node's consumers ask for.
type finder struct{ node *Node }

// Locate implements [interact.Finder].
func (f finder) Locate(ctx context.Context, ref string) (interact.Thing, error) {
	h, err := f.node.heard(ctx, ref)
	switch {
	case err != nil:
		return nil, err
	case h != nil:
		return h.thing, nil
	}
	return f.node.dir.Locate(ctx, ref)
}
