// Package delegation issues delegations (UCAN 1.0): a caller that has a right on a Thing lets another caller use it for a while.
//
// The host of the Thing signs the first link, for the node of the delegator, and stores with it what the delegator was then. That node signs the
// second one, for the delegate. The two are a token, which is valid at that host only. At each use the host asks the policy whether the delegator
// still has the right: who is locked out has lent nothing. Sources: UCAN 1.0.0; docs/decisions/0054-ucan-commands.md.
package delegation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// Limits of a node.
const (
	maxIssued    = 4096 // delegations that have not ended
	maxPerLender = 256
	maxLent      = 1024 // that consumers of this node lent
	maxWhere     = 16
	minPrefix    = 12 // of an id
	skew         = time.Minute
	repeat       = 30 * time.Second // of revocations that a host has not received
	hostTime     = 10 * time.Second // for a revocation
	maxCondition = 512              // bytes
)

// Options configure [Delegations]. All but Dir, Now and Log are required.
type Options struct {
	Dir    string // the data directory; empty: nothing is stored
	Signer did.Signer
	// May returns nil if a caller may delegate an operation on an affordance, which it must have itself (policy.Policy.MayDelegate).
	May func(who *did.Principal, t *access.Target, op access.Op, name string) error
	// Find returns the description of a Thing that the caller of ctx may find, and Own that of a Thing of this node, by its id; nil: there is none.
	Find func(ctx context.Context, ref string) (*td.Description, error)
	Own  func(thing string) *td.Description
	// As returns the statement for whom this node speaks.
	As func(*did.Principal) frame.As
	// Connect connects to a host. Ask sends a request to a connected host, and returns its response.
	Connect func(ctx context.Context, host did.DID) error
	Ask     func(ctx context.Context, host did.DID, body []byte) ([]byte, error)
	// OnEnd is called after a delegation has ended before its time, with the CID of its first link.
	OnEnd  func(link string)
	Record func(change string)
	Now    func() time.Time
	Log    *slog.Logger
}

// Delegations are those of a node. They are safe for concurrent use.
type Delegations struct {
	o        Options
	self     did.DID
	verifier *ucan.Verifier

	mu     sync.Mutex
	issued map[ucan.CID]*issued // by the CID of the first link; those of this host
	lent   []*lent              // oldest first; those of consumers of this node
	// unsaved reports whether the file is older than issued and lent.
	unsaved bool
}

// An issued delegation is a first link of this host.
type issued struct {
	Link    ucan.CID       `json:"link"`
	By      delegator      `json:"by"`
	Thing   string         `json:"thing"`
	Op      access.Op      `json:"op"`
	Name    string         `json:"name"`
	Expires time.Time      `json:"expires"`
	was     *did.Principal // By
}

// A delegator is the principal of a delegator when the link was issued. It never has more rights than this.
type delegator struct {
	Node     did.DID           `json:"node,omitempty"` // empty: a consumer of this host
	Name     string            `json:"name,omitempty"`
	Via      did.Via           `json:"via"`
	Relation did.Relation      `json:"relation,omitempty"`
	Org      did.DID           `json:"org,omitempty"`
	Roles    []string          `json:"roles,omitempty"`
	Groups   []membership      `json:"groups,omitempty"`
	Attested []did.Attestation `json:"attested,omitempty"`
}

// A membership is a [did.Membership], whose own JSON is for agents.
type membership struct {
	Group string  `json:"group"`
	Role  string  `json:"role"`
	Org   did.DID `json:"org,omitempty"`
}

func delegatorOf(p *did.Principal) delegator {
	d := delegator{p.Node, p.Name, p.Proof(), p.Relation, p.Org, p.Roles, nil, p.Attested}
	for _, m := range p.Groups {
		d.Groups = append(d.Groups, membership(m))
	}
	return d
}

func (d *delegator) principal() *did.Principal {
	p := &did.Principal{DID: d.Node, Node: d.Node, Name: d.Name, Via: d.Via, Relation: d.Relation, Org: d.Org, Roles: d.Roles, Attested: d.Attested}
	for _, m := range d.Groups {
		p.Groups = append(p.Groups, did.Membership(m))
	}
	return p
}

// lent is a delegation that a consumer of this node gave away. What others read does not change; a change replaces it.
type lent struct {
	api.Delegation
	First ucan.CID `json:"first"` // the link of the host
}

// file is the content of delegations.json.
type file struct {
	Version int       `json:"version"` // 1
	Issued  []*issued `json:"issued"`
	Lent    []*lent   `json:"lent"`
}

func (f *file) valid() bool {
	return f.Version == 1 && !slices.Contains(f.Issued, nil) && !slices.ContainsFunc(f.Lent, func(l *lent) bool { return l == nil || l.ID == "" })
}

// Open opens the delegations of a node.
func Open(o Options) (*Delegations, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Delegations{o: o, self: o.Signer.DID(), issued: map[ucan.CID]*issued{}}
	d.verifier = ucan.NewVerifier(ucan.Options{Host: d.self, Skew: skew, Revoked: func(id ucan.CID, issuers []did.DID) bool {
		return len(issuers) == 1 && !d.holds(id)
	}})
	if o.Dir == "" {
		return d, nil
	}
	raw, err := os.ReadFile(d.path())
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	var f file
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err == nil && !f.valid() {
		err = errors.New("it is of another version, or has an empty entry")
	}
	if err != nil {
		return nil, interact.Errorf(interact.StoreCorrupt, "remove delegations.json: what was delegated ends", "delegations.json cannot be read: %v", err)
	}
	d.lent = f.Lent
	for _, i := range f.Issued {
		i.was = i.By.principal()
		d.issued[i.Link] = i
	}
	return d, nil
}

func (d *Delegations) path() string { return filepath.Join(d.o.Dir, "delegations.json") }

// dropLocked drops what has ended.
func (d *Delegations) dropLocked() {
	now := d.o.Now()
	maps.DeleteFunc(d.issued, func(_ ucan.CID, i *issued) bool { return now.After(i.Expires.Add(skew)) })
	d.lent = slices.DeleteFunc(d.lent, func(l *lent) bool { return now.After(l.Expires.Add(skew)) })
}

// saveLocked writes the delegations that have not ended.
func (d *Delegations) saveLocked() error {
	d.dropLocked()
	if d.o.Dir == "" {
		return nil
	}
	f := file{Version: 1, Lent: d.lent}
	for _, i := range d.issued {
		f.Issued = append(f.Issued, i)
	}
	slices.SortFunc(f.Issued, func(a, b *issued) int { return bytes.Compare(a.Link[:], b.Link[:]) })
	raw, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = atomicfile.Write(d.path(), raw, 0o600)
	}
	d.unsaved = err != nil
	return err
}

// Delegate lets another node use a right of the caller of ctx, which is a consumer of this node.
func (d *Delegations) Delegate(ctx context.Context, q api.DelegationRequest) (*api.Delegation, error) {
	who := did.PrincipalOf(ctx)
	if who == nil || who.Relation != did.Local || who.Proof() == did.Unproven || who.Scoped() || who.Agent() != "" {
		return nil, interact.Errorf(interact.Forbidden, "use the unix socket, or the token of the operator", "%s may not delegate the rights of this node", who.Short())
	}
	to, terms, where, err := d.read(q)
	if err != nil {
		return nil, err
	}
	desc, err := d.o.Find(ctx, q.Agent)
	if err != nil {
		return nil, err
	}
	if err := d.o.May(who, access.TargetOf(desc.Thing, desc.Name()), terms.op, terms.name); err != nil { // by the rules of this node
		return nil, err
	}
	host := d.hostOf(desc)
	if host == "" {
		return nil, interact.Errorf(interact.NotAllowed, "delegate an agent of a node", "%s is at no node", interact.Excerpt(q.Agent, 80))
	}
	if to == host {
		return nil, interact.Errorf(interact.Usage, "name the DID of another node", "the delegate is the host of the agent")
	}
	terms.thing = desc.ID
	if err := d.mayLend(); err != nil { // before the host stores a link
		return nil, err
	}
	var links []*ucan.Token
	if host == d.self {
		links, err = d.delegateHere(who, to, where, terms)
	} else {
		links, err = d.delegateAt(ctx, host, who, to, where, terms)
	}
	if err != nil {
		return nil, err
	}
	one := &lent{Delegation: api.Delegation{By: who.ID(), To: to, Host: host, Thing: terms.thing, Agent: q.Agent, Op: string(terms.op), Name: terms.name,
		Where: q.Where, Expires: terms.expires}}
	var tokens [][]byte
	for _, l := range links {
		tokens = append(tokens, l.Bytes())
	}
	one.First, one.ID = links[0].CID(), links[len(links)-1].CID().String()
	text, err := ucan.Pack(ucan.Base64URL, tokens...)
	if err == nil {
		err = d.keep(one)
	}
	if err != nil {
		return nil, errors.Join(err, d.revokeSoon(context.WithoutCancel(ctx), one)) // it is not stored
	}
	d.o.Record(fmt.Sprintf("delegated %s of %s of %s at %s to %s until %s: %s", terms.op, terms.name, terms.thing, host.Short(), to, terms.expires.Format(time.RFC3339), one.ID))
	out := one.Delegation
	out.Token = string(text)
	return &out, nil
}

// revokeSoon is revokeAtHost within a few seconds.
func (d *Delegations) revokeSoon(ctx context.Context, one *lent) error {
	ctx, cancel := context.WithTimeout(ctx, hostTime)
	defer cancel()
	return d.revokeAtHost(ctx, one)
}

// read checks a request. The terms lack the Thing.
func (d *Delegations) read(q api.DelegationRequest) (to did.DID, t terms, where ucan.Policy, err error) {
	life, err := time.ParseDuration(q.Life)
	if err != nil || life < time.Second || life > ucan.MaxDelegation {
		return "", t, where, interact.Errorf(interact.Usage, "write it as 10m", "a delegation lasts from a second to 30 days, got %q", interact.Excerpt(q.Life, 40))
	}
	to, err = did.Parse(string(q.To))
	if err == nil && to.Method() != "key" {
		err = errors.New("expected a did:key")
	}
	if err == nil && to == d.self {
		err = errors.New("it is this node")
	}
	if err != nil {
		return "", t, where, interact.Errorf(interact.Usage, "name the DID of the other node", "the delegate: %v", err)
	}
	t = terms{op: access.Op(cmp.Or(q.Op, string(access.Invoke))), name: q.Name, expires: d.o.Now().Add(life).UTC().Truncate(time.Second)}
	if t.name == "" || !slices.Contains(ops, t.op) {
		return "", t, where, interact.Errorf(interact.Usage, "name one action, property or event",
			"a delegation is for one affordance, and to invoke, read, write or subscribe; got %q of %q", interact.Excerpt(q.Op, 40), interact.Excerpt(q.Name, 80))
	}
	where, err = conditions(q.Where)
	return to, t, where, err
}

// ops are the operations that can be delegated.
var ops = []access.Op{access.Invoke, access.Read, access.Write, access.Subscribe}

// mayLend returns the error of a node that has too many delegations.
func (d *Delegations) mayLend() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mayLendLocked()
}

func (d *Delegations) mayLendLocked() error {
	d.dropLocked()
	if len(d.lent) >= maxLent {
		return interact.Errorf(interact.Overloaded, "revoke those that are not needed", "%d delegations of this node have not ended", maxLent)
	}
	return nil
}

// keep stores a delegation of a consumer of this node.
func (d *Delegations) keep(one *lent) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayLendLocked(); err != nil {
		return err
	}
	d.lent = append(d.lent, one)
	err := d.saveLocked()
	if err != nil {
		d.lent = slices.DeleteFunc(d.lent, func(l *lent) bool { return l == one })
	}
	return err
}

// hostOf returns the host of a Thing: this node if it is one, else the first one; empty: none.
func (d *Delegations) hostOf(desc *td.Description) (host did.DID) {
	for _, h := range desc.Record.Hosts {
		if h.Node == d.self {
			return d.self
		}
		host = cmp.Or(host, h.Node)
	}
	return host
}

// terms are what is delegated.
type terms struct {
	thing   string
	op      access.Op
	name    string
	expires time.Time
}

func (t terms) command() (ucan.Command, error) {
	return ucan.Action{Op: string(t.op), Thing: t.thing, Name: t.name}.Command()
}

// delegateHere signs the only link of a Thing of this host.
func (d *Delegations) delegateHere(who *did.Principal, to did.DID, where ucan.Policy, t terms) ([]*ucan.Token, error) {
	link, err := d.issue(who, to, where, t)
	if err != nil {
		return nil, err
	}
	return []*ucan.Token{link}, nil
}

// delegateAt gets the first link from the host, and signs the second one.
func (d *Delegations) delegateAt(ctx context.Context, host did.DID, who *did.Principal, to did.DID, where ucan.Policy, t terms) ([]*ucan.Token, error) {
	command, err := t.command()
	if err != nil {
		return nil, err
	}
	r, err := d.ask(ctx, host, &request{Op: opIssue, As: statementOf(d.o.As(who)), Thing: t.thing, Operation: string(t.op), Name: t.name, Expires: t.expires.Unix()})
	if err != nil {
		return nil, err
	}
	first, err := ucan.Parse(r.Token)
	if err != nil {
		return nil, interact.Errorf(interact.DelegationInvalid, "", "the host answered with no delegation: %v", err)
	}
	if l := first.Delegation(); l == nil || l.Issuer != host || l.Subject != host || l.Audience != d.self || l.Command != command {
		return nil, interact.Errorf(interact.DelegationInvalid, "", "the host answered with another delegation")
	}
	second, err := ucan.Delegation{Audience: to, Subject: host, Command: command, Policy: where, Expires: t.expires}.Sign(d.o.Signer)
	if err != nil {
		return nil, err
	}
	return []*ucan.Token{first, second}, nil
}

// issue signs a first link for a caller that has the right and may delegate it.
func (d *Delegations) issue(who *did.Principal, to did.DID, where ucan.Policy, t terms) (*ucan.Token, error) {
	now := d.o.Now()
	if !t.expires.After(now) || t.expires.After(now.Add(ucan.MaxDelegation+skew)) {
		return nil, interact.Errorf(interact.ClockSkew, "compare the clocks", "the end of the delegation, %s, is not within 30 days from now", t.expires.Format(time.RFC3339))
	}
	if !slices.Contains(ops, t.op) || t.name == "" {
		return nil, interact.Errorf(interact.Invalid, "", "a delegation is for one affordance, and to invoke, read, write or subscribe")
	}
	if who.Pending != "" { // the same answer for Things that exist and those that do not
		return nil, policy.Unsettled(who)
	}
	desc := d.o.Own(t.thing)
	if desc == nil {
		return nil, interact.NotOffered(t.thing)
	}
	if err := d.o.May(who, access.TargetOf(desc.Thing, desc.Name()), t.op, t.name); err != nil {
		return nil, err
	}
	command, err := t.command()
	if err != nil {
		return nil, err
	}
	link, err := ucan.Delegation{Audience: to, Subject: d.self, Command: command, Policy: where, Expires: t.expires}.Sign(d.o.Signer)
	if err != nil {
		return nil, err
	}
	i := &issued{Link: link.CID(), By: delegatorOf(who), Thing: t.thing, Op: t.op, Name: t.name, Expires: t.expires}
	i.was = i.By.principal()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropLocked()
	same := 0
	for _, other := range d.issued {
		if other.By.Node == i.By.Node {
			same++
		}
	}
	if len(d.issued) >= maxIssued || same >= maxPerLender {
		return nil, interact.Errorf(interact.Overloaded, "wait until some have ended", "too many delegations have not ended: %d, of which %d by this caller", len(d.issued), same)
	}
	d.issued[i.Link] = i
	if err := d.saveLocked(); err != nil {
		delete(d.issued, i.Link)
		return nil, err
	}
	return link, nil
}

// List returns the delegations that consumers of this node gave away and that have not ended, without their tokens.
func (d *Delegations) List() []api.Delegation {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []api.Delegation{}
	for _, l := range d.lent {
		if d.o.Now().Before(l.Expires) {
			all = append(all, l.Delegation)
		}
	}
	return all
}

// Issued returns the delegations of this host that have not ended, by their end. To is empty: only the delegator knows its delegates.
func (d *Delegations) Issued() []api.Delegation {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []api.Delegation{}
	for _, i := range d.issued {
		if d.o.Now().Before(i.Expires) {
			all = append(all, d.described(i))
		}
	}
	slices.SortFunc(all, func(a, b api.Delegation) int {
		return cmp.Or(a.Expires.Compare(b.Expires), strings.Compare(a.ID, b.ID))
	})
	return all
}

func (d *Delegations) described(i *issued) api.Delegation {
	return api.Delegation{ID: i.Link.String(), By: i.was.ID(), Host: d.self, Agent: i.Thing, Thing: i.Thing, Op: string(i.Op), Name: i.Name, Expires: i.Expires}
}

// Revoke ends a delegation of a consumer of this node, or one of this host, by its id or the beginning of it. If the host cannot be reached, the
// delegation has Revoking set, and the host is asked again until the delegation ends.
func (d *Delegations) Revoke(ctx context.Context, id string) (*api.Delegation, error) {
	one, here, err := d.find(id)
	if err != nil {
		return nil, err
	}
	if here != nil {
		if err := d.end(here.Link); err != nil {
			return nil, err
		}
		out := d.described(here)
		return &out, nil
	}
	revoking := *one
	revoking.Revoking = true
	if err := d.replace(one.ID, &revoking); err != nil { // before the host is asked: what the answer says is stored
		return nil, err
	}
	d.o.Record("delegation revoked: " + one.ID)
	out := one.Delegation
	if out.Revoking = d.revokeAtHost(ctx, one) != nil; out.Revoking {
		return &out, nil
	}
	return &out, d.replace(one.ID, nil)
}

// find returns the delegation with an id: one that a consumer of this node gave away, or one of this host.
func (d *Delegations) find(id string) (one *lent, here *issued, err error) {
	matches := func(full string) bool { return full == id || len(id) >= minPrefix && strings.HasPrefix(full, id) }
	d.mu.Lock()
	defer d.mu.Unlock()
	found := 0
	for _, l := range d.lent {
		if matches(l.ID) {
			one, found = l, found+1
		}
	}
	for link, i := range d.issued {
		if id := link.String(); matches(id) && (one == nil || one.ID != id) { // a delegation of a local consumer is in both
			here, found = i, found+1
		}
	}
	switch found {
	case 1:
		return one, here, nil
	case 0:
		return nil, nil, interact.Errorf(interact.NotFound, "see the list of delegations", "no delegation of this node has the id %q", interact.Excerpt(id, 80))
	}
	return nil, nil, interact.Errorf(interact.Ambiguous, "give more of the id", "%d delegations of this node begin with %q", found, id)
}

// replace replaces the delegation with an id by another one, or removes it.
func (d *Delegations) replace(id string, by *lent) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.IndexFunc(d.lent, func(l *lent) bool { return l.ID == id })
	switch {
	case at < 0: // it ended meanwhile
		return nil
	case by == nil:
		d.lent = slices.Delete(d.lent, at, at+1)
	default:
		d.lent[at] = by
	}
	return d.saveLocked()
}

// revokeAtHost ends a delegation at its host.
func (d *Delegations) revokeAtHost(ctx context.Context, one *lent) error {
	if one.Host == d.self {
		return d.end(one.First)
	}
	_, err := d.ask(ctx, one.Host, &request{Op: opRevoke, Link: one.First[:]})
	return err
}

// Run repeats revocations that hosts have not received, until ctx ends.
func (d *Delegations) Run(ctx context.Context) error {
	loop := heartbeat.Start(ctx, "delegations", time.Minute) // with the time of a revocation
	for backoff.Sleep(ctx, backoff.Jitter(repeat, 0.2)) == nil {
		loop.Beat()
		d.mu.Lock()
		d.dropLocked()
		open := slices.DeleteFunc(slices.Clone(d.lent), func(l *lent) bool { return !l.Revoking })
		d.mu.Unlock()
		away := map[did.DID]bool{}
		for _, one := range open {
			if away[one.Host] {
				continue
			}
			loop.Beat()
			err := d.revokeSoon(ctx, one)
			if away[one.Host] = err != nil; err == nil {
				err = d.replace(one.ID, nil)
			}
			if err != nil {
				d.o.Log.Debug("delegation not revoked yet", "id", one.ID, "peer", one.Host.Short(), "err", err)
			}
		}
	}
	return nil
}

// end ends a delegation of this host, and what runs by it. After an error it has ended until the next start.
func (d *Delegations) end(link ucan.CID) error {
	d.mu.Lock()
	i := d.issued[link]
	delete(d.issued, link)
	var err error
	if i != nil || d.unsaved {
		err = d.saveLocked()
	}
	d.mu.Unlock()
	if i != nil {
		d.o.Record("delegation of " + i.was.ID() + " revoked: " + link.String())
		d.o.OnEnd(link.String())
	}
	return err
}

// Holds reports whether a delegation of this host has neither ended nor been revoked (policy.Delegations).
func (d *Delegations) Holds(link string) bool {
	id, err := ucan.ParseCID(link)
	return err == nil && d.holds(id)
}

func (d *Delegations) holds(link ucan.CID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.issued[link]
	return i != nil && d.o.Now().Before(i.Expires.Add(skew))
}

// conditions reads conditions such as "amount<=100".
func conditions(all []string) (ucan.Policy, error) {
	if len(all) > maxWhere {
		return ucan.Policy{}, interact.Errorf(interact.Usage, "", "a delegation has at most %d conditions", maxWhere)
	}
	var source []any
	for _, text := range all {
		if len(text) > maxCondition {
			return ucan.Policy{}, interact.Errorf(interact.Usage, "", "a condition has at most %d bytes, got %d", maxCondition, len(text))
		}
		at := strings.IndexAny(text, "<>=!")
		op := ""
		for _, one := range []string{"<=", ">=", "!=", "==", "<", ">"} {
			if at > 0 && op == "" && strings.HasPrefix(text[at:], one) {
				op = one
			}
		}
		name := strings.TrimSpace(text[:max(at, 0)])
		if op == "" || name == "" {
			return ucan.Policy{}, interact.Errorf(interact.Usage, "write it as amount<=100", "a condition is NAME, one of == != < <= > >=, and a value; got %q", interact.Excerpt(text, 80))
		}
		value := strings.TrimSpace(text[at+len(op):])
		args, err := ucan.Args([]byte(`{"value":` + value + `}`))
		v := args["value"]
		if err != nil || len(args) != 1 { // a word
			v = value
		}
		source = append(source, []any{op, "." + strings.TrimPrefix(name, "."), v})
	}
	p, err := ucan.NewPolicy(source)
	if err != nil {
		return p, interact.Errorf(interact.Usage, "write it as amount<=100", "%v", err)
	}
	return p, nil
}
