package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
)

// Limits of the checks.
const (
	doctorTime   = 5 * time.Second
	probeTime    = time.Second         // of a connection to an own listener
	soonExpired  = 14 * 24 * time.Hour // of a certificate
	shortLife    = time.Hour           // of the credential of the node: it is renewed after half of its life
	nearlyFilled = 0.9
)

// doctor checks the node by what it knows and by its own listeners; it asks no other host.
func (g *Gateway) doctor(w http.ResponseWriter, r *http.Request) error {
	if _, err := tdd.Params(r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), doctorTime)
	defer cancel()
	start := time.Now()
	d := &diagnosis{g: g, ctx: ctx, now: start, status: g.o.Status.Status(ctx), net: g.o.Peers.Net()}
	for _, check := range []func(*diagnosis){(*diagnosis).node, (*diagnosis).clock, (*diagnosis).disk, (*diagnosis).listeners, (*diagnosis).certificate,
		(*diagnosis).peers, (*diagnosis).bootstrap, (*diagnosis).reachability, (*diagnosis).relays, (*diagnosis).dht, (*diagnosis).directory, (*diagnosis).organization,
		(*diagnosis).audit, (*diagnosis).bridges, (*diagnosis).warnings} {
		check(d)
	}
	doc := api.Doctor{APIVersion: api.APIVersion, Kind: "Doctor", OK: true, Items: d.items, Took: api.Milliseconds(time.Since(start))}
	for _, c := range d.items {
		doc.OK = doc.OK && c.Status != api.CheckFail
	}
	return writeJSON(w, http.StatusOK, doc)
}

// A diagnosis is one execution of the checks.
type diagnosis struct {
	g      *Gateway
	ctx    context.Context
	now    time.Time
	status *api.Status
	net    *api.Net
	items  []api.DoctorCheck
	used   []string // codes of warnings that a check has
}

// add adds a check, which the caller may complete.
func (d *diagnosis) add(name, status, format string, args ...any) *api.DoctorCheck {
	d.items = append(d.items, api.DoctorCheck{Name: name, Status: status, Text: fmt.Sprintf(format, args...)})
	return &d.items[len(d.items)-1]
}

// warned adds a check for each warning with one of the codes. It reports whether there was one.
func (d *diagnosis) warned(name string, codes ...string) (any bool) {
	d.used = append(d.used, codes...)
	for _, w := range d.status.Warnings {
		if slices.Contains(codes, w.Code) {
			d.warning(name, w)
			any = true
		}
	}
	return any
}

// warning adds a warning of the status.
func (d *diagnosis) warning(name string, w api.Warning) {
	status := api.CheckWarn
	if w.Severity == "high" {
		status = api.CheckFail
	}
	c := d.add(name, status, "%s", w.Text)
	c.Hint, c.Next = w.Hint, w.Next
}

// node checks the state, the key, and the loops: the description of the node was signed with the key.
func (d *diagnosis) node() {
	if err := d.g.o.Status.Ready(); err != nil || d.g.gate.Closed() {
		d.add("node", api.CheckFail, "the node does not serve: %v", errors.Join(err, d.g.gateError()))
	} else {
		d.add("node", api.CheckPass, "lmosd %s, %s since %s", d.status.Version, d.status.State, time.Duration(d.status.Uptime*float64(time.Second)).Round(time.Second))
	}
	if _, err := d.status.DID.Key(); err != nil {
		d.add("key", api.CheckFail, "the DID of the node has no key: %v", err)
	} else {
		d.add("key", api.CheckPass, "Ed25519, %s", d.status.DID.Short())
	}
	if !d.warned("loops", api.LoopHangs.Code) {
		d.add("loops", api.CheckPass, "no loop of the node hangs")
	}
}

// gateError returns the error of a node that drains, or nil.
func (g *Gateway) gateError() error {
	if g.gate.Closed() {
		return errShuttingDown()
	}
	return nil
}

// skipped adds a check that needs a peer as skipped if there is none.
func (d *diagnosis) skipped(name string) bool {
	if d.status.Peers.Total > 0 {
		return false
	}
	d.add(name, api.CheckSkip, "skipped: no node is connected")
	return true
}

// bootstrap checks the entries of mesh.bootstrap.
func (d *diagnosis) bootstrap() {
	failed := 0
	for _, b := range d.net.Bootstrap {
		if b.State == api.BootstrapUnreachable || b.State == api.BootstrapRefused {
			failed++
			c := d.add("bootstrap", api.CheckWarn, "%s is %s: %s", b.Addr, b.State, b.Reason)
			c.Hint = "see that the node runs there, and that the address is right"
			if b.State == api.BootstrapRefused {
				c.Hint = "ask its operator for an invitation"
			}
		}
	}
	if n := len(d.net.Bootstrap); n > 0 && failed == 0 {
		d.add("bootstrap", api.CheckPass, "no entry of mesh.bootstrap has failed, of %d", n)
	}
}

func (d *diagnosis) clock() {
	if d.warned("clock", "LMOS-W031") {
		return
	}
	if d.skipped("clock") {
		return
	}
	d.add("clock", api.CheckPass, "within 30 s of the clocks of the peers")
}

func (d *diagnosis) disk() {
	if !d.warned("disk", "LMOS-W020") {
		d.add("disk", api.CheckPass, "the store has room")
	}
	if !d.warned("store", "LMOS-W021") {
		d.add("store", api.CheckPass, "no damage was found")
	}
}

// listeners connects to the listeners of the API.
func (d *diagnosis) listeners() {
	if d.g.tcp != nil {
		d.probe("http", d.g.tcp.Addr(), "http.listen")
	}
	if d.g.socket != nil {
		d.probe("socket", d.g.socket.Addr(), "http.socket")
	}
	if d.warned("listen", "LMOS-W005") {
		return
	}
	if len(d.status.Addrs) == 0 {
		d.add("listen", api.CheckWarn, "other nodes know no address of this one").Hint = "set listen.p2p"
		return
	}
	d.add("listen", api.CheckPass, "%s for other nodes", interact.Count(len(d.status.Addrs), "address", "addresses"))
}

// probe connects to a listener of this node.
func (d *diagnosis) probe(name string, addr net.Addr, key string) {
	target := addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		loopback := *tcp
		if loopback.IP = net.IPv4(127, 0, 0, 1); tcp.IP.To4() == nil {
			loopback.IP = net.IPv6loopback
		}
		target = loopback.String()
	}
	ctx, cancel := context.WithTimeout(d.ctx, probeTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, addr.Network(), target)
	if err != nil {
		d.add(name, api.CheckFail, "%s does not answer: %v", target, err).Hint = "restart the node, or set " + key
		return
	}
	c.Close()
	d.add(name, api.CheckPass, "%s accepts connections", target)
}

// certificate checks the certificate of the API.
func (d *diagnosis) certificate() {
	if d.g.cert == nil {
		if d.g.tcp != nil && !d.g.guard.loopback && !d.g.o.IsEncrypted() {
			d.add("certificate", api.CheckWarn, "the API is served without encryption beyond this host").Hint = "set http.tls, or listen on 127.0.0.1"
		}
		return
	}
	current, err := d.g.cert.get(nil)
	if err != nil {
		d.add("certificate", api.CheckFail, "%v", err)
		return
	}
	leaf := current.Leaf
	left := leaf.NotAfter.Sub(d.now)
	switch {
	case left <= 0:
		d.add("certificate", api.CheckFail, "expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339)).Hint = renewHint
	case d.now.Before(leaf.NotBefore):
		d.add("certificate", api.CheckFail, "not valid before %s", leaf.NotBefore.UTC().Format(time.RFC3339)).Hint = "set the clock, or get another certificate"
	case left < soonExpired:
		d.add("certificate", api.CheckWarn, "expires in %s, at %s", interact.Count(int(left.Hours()/24), "day", "days"), leaf.NotAfter.UTC().Format(time.RFC3339)).Hint = renewHint
	default:
		d.add("certificate", api.CheckPass, "%s, valid until %s", nameOf(leaf), leaf.NotAfter.UTC().Format(time.DateOnly))
	}
}

const renewHint = "renew it and replace the files of http.tls; the node reads them again"

// nameOf returns the first name of a certificate.
func nameOf(leaf *x509.Certificate) string {
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return "without a name"
}

func (d *diagnosis) peers() {
	p := d.status.Peers
	switch {
	case d.warned("peers", "LMOS-W001"):
	case p.Total == 0:
		c := d.add("peers", api.CheckWarn, "no node is connected")
		c.Hint, c.Next = "connect to a peer, or name one in mesh.bootstrap", interact.Next(interact.StepConnect)
	default:
		d.add("peers", api.CheckPass, "%d connected, %d directly, %d through relays", p.Total, p.Direct, p.Relayed)
	}
}

func (d *diagnosis) reachability() {
	n := d.net
	switch {
	case n.Reachability == api.ReachablePrivate && len(n.Relays) == 0:
		c := d.add("reachability", api.CheckFail, "no address is known to work from outside, and the node has no relay: others cannot reach its agents")
		c.Hint = "connect to a node that relays, or forward the port of listen.p2p and name the address in listen.announce"
	case n.Reachability == api.ReachablePrivate:
		d.add("reachability", api.CheckPass, "behind a router; others reach it through its relays")
	case n.Reachability == api.ReachableUnknown, n.Reachability == "":
		d.add("reachability", api.CheckWarn, "no address is known to work from outside").Hint = "nodes of the same network may reach it"
	case n.Reachability == api.ReachableLocal:
		d.add("reachability", api.CheckPass, "others reach it in its own network")
	default:
		d.add("reachability", api.CheckPass, "%s", n.Reachability)
	}
}

// relays checks the reservations at relays, which the node renews.
func (d *diagnosis) relays() {
	n := d.net
	ended := 0
	for _, r := range n.Relays {
		if !r.Until.After(d.now) {
			ended++
		}
	}
	switch {
	case ended > 0:
		d.add("relays", api.CheckWarn, "%d of %s ended", ended, interact.Count(len(n.Relays), "reservation has", "reservations have"))
	case len(n.Relays) > 0:
		d.add("relays", api.CheckPass, "%s", interact.Count(len(n.Relays), "reservation", "reservations"))
	case len(n.RelayFailures) > 0:
		d.add("relays", api.CheckWarn, "%s did not serve this node, the last one because %s", interact.Count(len(n.RelayFailures), "relay", "relays"), n.RelayFailures[0].Reason)
	default:
		d.add("relays", api.CheckPass, "none is used")
	}
}

func (d *diagnosis) dht() {
	s := d.status
	defer d.warned("announcements", "LMOS-W042")
	if d.skipped("dht") {
		d.skipped("gossip")
		return
	}
	if s.DHT.Table == 0 {
		d.add("dht", api.CheckWarn, "the routing table is empty: descriptions of absent nodes are not found").Hint = "wait a minute after the start; then connect to a node with mesh.dht.mode server"
	} else {
		d.add("dht", api.CheckPass, "%s, %s in the routing table", s.DHT.Mode, interact.Count(s.DHT.Table, "node", "nodes"))
	}
	if s.Gossip.Peers == 0 {
		d.add("gossip", api.CheckWarn, "no peer takes part: changes arrive late")
	} else {
		d.add("gossip", api.CheckPass, "%s, %s", interact.Count(s.Gossip.Peers, "peer", "peers"), interact.Count(s.Gossip.Topics, "topic", "topics"))
	}
}

func (d *diagnosis) directory() {
	if d.warned("directory", "LMOS-W050", "LMOS-W051") {
		return
	}
	fill := math.Round(100 * d.status.Agents.Fill)
	if d.status.Agents.Fill >= nearlyFilled {
		d.add("directory", api.CheckWarn, "%.0f%% full", fill).Hint = "raise directory.max_things"
		return
	}
	d.add("directory", api.CheckPass, "agents: %d known, of which %d of this node; %.0f%% full", d.status.Agents.Known, d.status.Agents.Local, fill)
}

// organization checks the credential of the node, and what is known of the members.
func (d *diagnosis) organization() {
	if d.g.o.Trust == nil {
		return
	}
	org, err := d.g.o.Trust.Organization()
	if err != nil {
		if interact.AsError(err).Code != interact.NotFound {
			d.add("organization", api.CheckFail, "%v", err)
		} else {
			d.add("organization", api.CheckPass, "the node is in none")
		}
		return
	}
	left := org.Until.Sub(d.now)
	switch {
	case org.State == api.OrganizationEnded:
		d.add("organization", api.CheckFail, "%s has ended", org.Name).Next = interact.Next(interact.StepOrgLeave)
	case org.State == api.OrganizationExpired, !org.Until.IsZero() && left <= 0:
		d.add("organization", api.CheckFail, "the credential of this node in %s expired at %s: others treat it as untrusted", org.Name,
			org.Until.UTC().Format(time.RFC3339)).Hint = "connect to an issuer, which renews it"
	case !org.Until.IsZero() && left < shortLife:
		d.add("organization", api.CheckWarn, "the credential of this node in %s expires in %s and was not renewed", org.Name,
			left.Round(time.Second)).Hint = "connect to an issuer, which renews it"
	case org.State == api.OrganizationUnconfirmed:
		d.add("organization", api.CheckWarn, "no issuer of %s has confirmed the members since the start", org.Name).Hint = "connect to an issuer"
	default:
		d.add("organization", api.CheckPass, "member of %s until %s", org.Name, org.Until.UTC().Format(time.RFC3339))
	}
}

// audit checks the chains of the audit log.
func (d *diagnosis) audit() {
	d.warned("audit", "LMOS-W062")
	if d.g.o.AuditDir == "" {
		return
	}
	report, err := d.g.verifyAudit(d.ctx)
	switch {
	case err == nil:
		lines := uint64(0)
		for _, c := range report.Chains {
			lines += c.Lines
		}
		d.add("audit", api.CheckPass, "%s, no line was changed or removed", interact.Count(int(lines), "line", "lines"))
	case d.ctx.Err() != nil:
		d.add("audit", api.CheckWarn, "the check did not end in %v", doctorTime)
	default:
		d.add("audit", api.CheckFail, "%v", err).Hint = interact.AsError(err).Hint
	}
}

func (d *diagnosis) bridges() {
	for _, b := range d.g.bridges(d.ctx) {
		if b.Status == api.CheckFail {
			d.add("bridge "+b.Name, api.CheckFail, "%s", b.Text)
			continue
		}
		d.add("bridge "+b.Name, api.CheckPass, "%s, %d with an error", interact.Count(int(b.Requests), "request", "requests"), b.Errors)
	}
}

// warnings adds the warnings of the status that no check has.
func (d *diagnosis) warnings() {
	for _, w := range d.status.Warnings {
		if !slices.Contains(d.used, w.Code) {
			d.warning(w.Title, w)
		}
	}
}
