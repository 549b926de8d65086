// Package delegation issues delegations (UCAN 1.0): a caller that has a right on a Thing lets another caller use it for a while.
//
// The host of the Thing signs the first link, for the node of the delegator, and stores with it what the delegator was then. That node signs the
// second one, for the delegate. The two are a token, which is valid at that host only. At each use the host asks the policy whether the delegator
// still has the right: who is locked out has lent nothing. Sources: UCAN 1.0.0; docs/decisions/0054-ucan-commands.md.
package delegation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// Limits of a node.
const (
	maxIssued    = 4096 // delegations that have not ended
	maxPerLender = 256
	maxLent      = 1024 // that consumers of this node lent
	maxWhere     = 16
	skew         = time.Minute
)

// Options configure [Delegations]. All but Dir, Now and Log are required.
type Options struct {
	Dir    string // the data directory; empty: nothing is stored
	Signer did.Signer
	// May returns nil if a caller may delegate an operation on an affordance, which it must have itself (policy.Policy.MayDelegate).
	May func(who *did.Principal, t *access.Target, op access.Op, name string) error
	// Things returns the description of a Thing.
	Things func(ctx context.Context, ref string) (*td.Description, error)
	// Principal returns the current principal of a node, and As the statement for whom this node speaks.
	Principal func(node did.DID) *did.Principal
	As        func(*did.Principal) frame.As
	// Ask sends a request to a host, and returns its response.
	Ask func(ctx context.Context, host did.DID, body []byte) ([]byte, error)
	// OnEnd is called after a delegation has ended before its time.
	OnEnd  func()
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
	issued map[string]*issued // by the CID of the first link; those of this host
	lent   []*lent            // oldest first; those of consumers of this node
}

// An issued delegation is a first link of this host.
type issued struct {
	Link    string    `json:"link"`
	Node    did.DID   `json:"node,omitempty"` // of the delegator; empty: a consumer of this host
	As      frame.As  `json:"as"`             // the consumer of that node
	Via     did.Via   `json:"via,omitempty"`  // of a consumer of this host
	Thing   string    `json:"thing"`
	Op      access.Op `json:"op"`
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
	// was is the principal of the delegator when the link was issued; after a restart, the most that it can be.
	was *did.Principal
}

// lent is a delegation that a consumer of this node gave away.
type lent struct {
	api.Delegation
	Path []ucan.CID `json:"path"` // the links
}

// file is the content of delegations.json.
type file struct {
	Version int       `json:"version"` // 1
	Issued  []*issued `json:"issued"`
	Lent    []*lent   `json:"lent"`
}

// Open opens the delegations of a node.
func Open(o Options) (*Delegations, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Delegations{o: o, self: o.Signer.DID(), issued: map[string]*issued{}}
	d.verifier = ucan.NewVerifier(ucan.Options{Host: d.self, Skew: skew, Revoked: func(id ucan.CID, issuers []did.DID) bool {
		return len(issuers) == 1 && !d.Holds(id.String())
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
	if err != nil || f.Version != 1 {
		return nil, interact.Errorf(interact.StoreCorrupt, "remove delegations.json: what was delegated ends", "delegations.json cannot be read: %v", err)
	}
	d.lent = f.Lent
	for _, i := range f.Issued {
		i.was = i.most()
		d.issued[i.Link] = i
	}
	return d, nil
}

func (d *Delegations) path() string { return filepath.Join(d.o.Dir, "delegations.json") }

// most returns the principal of the delegator with all rights that its node may have: those of now limit it.
func (i *issued) most() *did.Principal {
	if i.Node == "" {
		return did.Consumer(i.Via, i.As.Name)
	}
	node := did.NodePrincipal(i.Node, "")
	node.Relation = did.Own
	return i.As.Of(node)
}

// saveLocked writes the delegations that have not ended.
func (d *Delegations) saveLocked() error {
	now := d.o.Now()
	for link, i := range d.issued {
		if now.After(i.Expires.Add(skew)) {
			delete(d.issued, link)
		}
	}
	d.lent = slices.DeleteFunc(d.lent, func(l *lent) bool { return now.After(l.Expires.Add(skew)) })
	if d.o.Dir == "" {
		return nil
	}
	f := file{Version: 1, Lent: d.lent}
	for _, i := range d.issued {
		f.Issued = append(f.Issued, i)
	}
	slices.SortFunc(f.Issued, func(a, b *issued) int { return strings.Compare(a.Link, b.Link) })
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(d.path(), raw, 0o600)
}

// Delegate lets another caller use a right of the caller of ctx.
func (d *Delegations) Delegate(ctx context.Context, q api.DelegationRequest) (*api.Delegation, error) {
	life, err := time.ParseDuration(q.Life)
	if err != nil || life < time.Second || life > ucan.MaxDelegation-time.Minute {
		return nil, interact.Errorf(interact.Usage, "write it as 10m", "a delegation lasts from a second to 30 days, got %q", interact.Excerpt(q.Life, 40))
	}
	to, err := did.Parse(string(q.To))
	if err == nil && to.Method() != "key" {
		err = errors.New("expected a did:key")
	}
	if err != nil {
		return nil, interact.Errorf(interact.Usage, "name the DID of the other node", "the delegate: %v", err)
	}
	where, err := conditions(q.Where)
	if err != nil {
		return nil, err
	}
	desc, err := d.o.Things(ctx, q.Agent)
	if err != nil {
		return nil, err
	}
	thing, host := desc.ID, d.hostOf(desc)
	if host == "" {
		return nil, interact.Errorf(interact.NotAllowed, "delegate an agent of a node", "%s is at no node", interact.Excerpt(q.Agent, 80))
	}
	op := access.Op(cmp.Or(q.Op, string(access.Invoke)))
	who := did.PrincipalOf(ctx)
	expires := d.o.Now().Add(life).UTC().Truncate(time.Second)
	var path []ucan.CID
	var tokens [][]byte
	if host == d.self {
		link, err := d.issue(ctx, who, frame.As{IsConsumer: true, Name: nameOf(who)}, to, where, terms{thing, op, q.Name, expires})
		if err != nil {
			return nil, err
		}
		path, tokens = []ucan.CID{link.CID()}, [][]byte{link.Bytes()}
	} else if path, tokens, err = d.delegateAt(ctx, host, who, to, where, terms{thing, op, q.Name, expires}); err != nil {
		return nil, err
	}
	text, err := ucan.Pack(ucan.Base64URL, tokens...)
	if err != nil {
		return nil, err
	}
	out := api.Delegation{ID: path[len(path)-1].String(), By: nameOf(who), To: to, Host: host, Thing: thing, Agent: q.Agent, Op: string(op), Name: q.Name, Where: q.Where, Expires: expires}
	d.mu.Lock()
	if len(d.lent) >= maxLent {
		d.mu.Unlock()
		return nil, interact.Errorf(interact.Overloaded, "revoke those that are not needed", "%d delegations of this node have not ended", maxLent)
	}
	d.lent = append(d.lent, &lent{out, path})
	err = d.saveLocked()
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d.o.Record(fmt.Sprintf("delegated %s of %s at %s to %s until %s", op, thing, host.Short(), to, expires.Format(time.RFC3339)))
	out.Token = string(text)
	return &out, nil
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

func nameOf(p *did.Principal) string {
	if p == nil {
		return ""
	}
	return p.Name
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

// delegateAt gets the first link from the host, and signs the second one.
func (d *Delegations) delegateAt(ctx context.Context, host did.DID, who *did.Principal, to did.DID, where ucan.Policy, t terms) ([]ucan.CID, [][]byte, error) {
	r, err := d.ask(ctx, host, &request{Op: opIssue, As: statementOf(d.o.As(who)), Thing: t.thing, Operation: string(t.op), Name: t.name, Expires: t.expires.Unix()})
	if err != nil {
		return nil, nil, err
	}
	first, err := ucan.Parse(r.Token)
	command, wrong := t.command()
	if err = errors.Join(err, wrong); err != nil {
		return nil, nil, err
	}
	if l := first.Delegation(); l == nil || l.Issuer != host || l.Subject != host || l.Audience != d.self || l.Command != command {
		return nil, nil, interact.Errorf(interact.DelegationInvalid, "", "the host answered with another delegation")
	}
	second, err := ucan.Delegation{Audience: to, Subject: host, Command: command, Policy: where, Expires: t.expires}.Sign(d.o.Signer)
	if err != nil {
		return nil, nil, err
	}
	return []ucan.CID{first.CID(), second.CID()}, [][]byte{first.Bytes(), second.Bytes()}, nil
}

// issue signs a first link for a caller that has the right and may delegate it.
func (d *Delegations) issue(ctx context.Context, who *did.Principal, as frame.As, to did.DID, where ucan.Policy, t terms) (*ucan.Token, error) {
	now := d.o.Now()
	if !t.expires.After(now) || t.expires.After(now.Add(ucan.MaxDelegation)) {
		return nil, interact.Errorf(interact.ClockSkew, "compare the clocks", "the end of the delegation, %s, is not within 30 days from now", t.expires.Format(time.RFC3339))
	}
	desc, err := d.o.Things(ctx, t.thing)
	if err != nil || d.hostOf(desc) != d.self || desc.ID != t.thing {
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
	i := &issued{Link: link.CID().String(), Node: who.Node, As: as, Via: who.Via, Thing: t.thing, Op: t.op, Name: t.name, Expires: t.expires, was: who}
	d.mu.Lock()
	defer d.mu.Unlock()
	same := 0
	for _, other := range d.issued {
		if other.Node == i.Node && now.Before(other.Expires) {
			same++
		}
	}
	if len(d.issued) >= maxIssued || same >= maxPerLender {
		return nil, interact.Errorf(interact.Overloaded, "wait until some have ended", "too many delegations have not ended: %d, of which %d by this caller", len(d.issued), same)
	}
	d.issued[i.Link] = i
	return link, d.saveLocked()
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

// Revoke ends a delegation of a consumer of this node, by its id or its token. It needs the host.
func (d *Delegations) Revoke(ctx context.Context, id string) (*api.Delegation, error) {
	d.mu.Lock()
	at := slices.IndexFunc(d.lent, func(l *lent) bool { return l.ID == id || len(id) >= 12 && strings.HasPrefix(l.ID, id) })
	if at < 0 {
		d.mu.Unlock()
		return nil, interact.Errorf(interact.NotFound, "see the list of delegations", "no delegation of this node has the id %q", interact.Excerpt(id, 80))
	}
	one := d.lent[at]
	d.mu.Unlock()
	if one.Host == d.self {
		d.end(one.Path[0].String())
	} else {
		r, err := ucan.Revoke(d.o.Signer, one.Path[len(one.Path)-1:], one.Expires)
		if err != nil {
			return nil, err
		}
		if _, err := d.ask(ctx, one.Host, &request{Op: opRevoke, Link: one.Path[0].String(), Token: r.Bytes()}); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	d.lent = slices.DeleteFunc(d.lent, func(l *lent) bool { return l == one })
	err := d.saveLocked()
	d.mu.Unlock()
	d.o.Record("delegation revoked: " + one.ID)
	return &one.Delegation, err
}

// end ends a delegation of this host, and what runs by it.
func (d *Delegations) end(link string) {
	d.mu.Lock()
	_, known := d.issued[link]
	delete(d.issued, link)
	err := d.saveLocked()
	d.mu.Unlock()
	if err != nil {
		d.o.Log.Error("delegations not stored", "err", err)
	}
	if known {
		d.o.OnEnd()
	}
}

// Holds reports whether a delegation of this host has neither ended nor been revoked (policy.Delegations).
func (d *Delegations) Holds(link string) bool {
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
		op := ""
		for _, one := range []string{"<=", ">=", "!=", "==", "<", ">"} {
			if strings.Contains(text, one) {
				op = one
				break
			}
		}
		name, value, _ := strings.Cut(text, op)
		if name = strings.TrimSpace(name); op == "" || name == "" {
			return ucan.Policy{}, interact.Errorf(interact.Usage, "write it as amount<=100", "a condition is NAME, one of == != < <= > >=, and a value; got %q", interact.Excerpt(text, 80))
		}
		args, err := ucan.Args([]byte(strings.TrimSpace(value)))
		v, ok := args["value"]
		if err != nil || !ok { // a word
			v = strings.TrimSpace(value)
		}
		source = append(source, []any{op, "." + strings.TrimPrefix(name, "."), v})
	}
	p, err := ucan.NewPolicy(source)
	if err != nil {
		return p, interact.Errorf(interact.Usage, "write it as amount<=100", "%v", err)
	}
	return p, nil
}
