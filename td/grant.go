package td

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td/schema"
)

// Bounds of a grant.
const (
	MaxGrant    = 6 << 10            // bytes, encoded
	GrantLife   = 7 * 24 * time.Hour // at most
	grantFormat = 1
)

// A wireGrant is the encoding of a [Grant]: a deterministic CBOR map of at most [MaxGrant] bytes. Empty members are absent.
//
//	 0  version      uint, 1
//	 1  owner        text, a did:key of an Ed25519 key
//	 2  thing        text, the Thing id
//	 3  number       uint from 1, strictly increasing; below 2^64-1
//	 4  issued       uint, Unix seconds
//	 5  expires      uint, Unix seconds, at most 7 d after issued
//	 7  hash         32 bytes, SHA-256 of the TD
//	 8  size         uint, bytes of the TD
//	 9  nodes        array of text, 1 to 8 did:keys of nodes
//	10  capabilities as in a record, as the next two
//	11  title
//	12  summary
//	15  signature    64 bytes, Ed25519
//	16  audience     uint, as in a record
//
// The signature covers "lmos-grant-v1:" and the encoding of the map without key 15.
type wireGrant struct {
	Version      uint64   `cbor:"0,keyasint"`
	Owner        string   `cbor:"1,keyasint"`
	Thing        string   `cbor:"2,keyasint"`
	Number       uint64   `cbor:"3,keyasint"`
	Issued       uint64   `cbor:"4,keyasint"`
	Expires      uint64   `cbor:"5,keyasint"`
	Hash         []byte   `cbor:"7,keyasint"`
	Size         uint64   `cbor:"8,keyasint"`
	Nodes        []string `cbor:"9,keyasint"`
	Capabilities []string `cbor:"10,keyasint,omitempty"`
	Title        string   `cbor:"11,keyasint,omitempty"`
	Summary      string   `cbor:"12,keyasint,omitempty"`
	Signature    []byte   `cbor:"15,keyasint,omitempty"`
	Audience     uint64   `cbor:"16,keyasint,omitempty"`
}

// A Grant is the statement of the owner of a Thing that nodes may host it. A node that does signs a record of its own (version 3), which contains the
// grant: no key is copied to the nodes, and no two nodes share a sequence number. Times are UTC in whole seconds. It is read-only.
type Grant struct {
	Owner           did.DID // a did:key
	Thing           string
	Number          uint64 // of two grants the one with the higher number is in force; it shares the numbers with the records that the owner signs
	Issued, Expires time.Time
	Hash            [32]byte  // SHA-256 of the TD's bytes
	Size            int       // of the TD in bytes
	Nodes           []did.DID // that may host the Thing
	Capabilities    []string
	Title, Summary  string
	Audience        Visibility
	Raw             []byte // encoded
}

// A GrantLease is what an owner decides with each grant.
type GrantLease struct {
	Number   uint64 // higher than that of all earlier grants and records of the Thing
	Now      time.Time
	Lifetime time.Duration // whole seconds, at most [GrantLife]
	Nodes    []did.DID     // 1 to [MaxGranted]
}

// SignGrant signs the grant of a completed Thing, and its TD, unless that has a valid proof of the same owner. It returns both. The errors are those
// of [Sign].
func SignGrant(t *Thing, s did.Signer, l GrantLease) (*Grant, []byte, error) {
	if t.ID == "" {
		return nil, nil, invalid("", `"id" is missing: complete the TD before it is signed`)
	}
	raw, _, err := prove(t, s, l.Now)
	if err != nil {
		return nil, nil, err
	}
	hash := sha256.Sum256(raw)
	w := &wireGrant{Version: grantFormat, Owner: string(s.DID()), Thing: t.ID, Number: l.Number, Issued: uint64(l.Now.Unix()),
		Expires: uint64(l.Now.Add(l.Lifetime).Unix()), Hash: hash[:], Size: uint64(len(raw)), Capabilities: t.Terms(),
		Title: summarize(t.Title, MaxTitle), Summary: summarize(t.Description, MaxDescription), Audience: t.Visibility.audience()}
	for _, n := range l.Nodes {
		w.Nodes = append(w.Nodes, string(n))
	}
	message, err := cbor.Marshal(w)
	if err != nil {
		return nil, nil, err
	}
	if w.Signature, err = s.Sign(did.PurposeGrant, message); err != nil {
		return nil, nil, fmt.Errorf("sign the grant of %s: %w", t.ID, err)
	}
	encoded, err := cbor.Marshal(w)
	if err != nil {
		return nil, nil, err
	}
	g, err := ParseGrant(encoded)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the grant of %s: %w", t.ID, err)
	}
	return g, raw, nil
}

// ParseGrant decodes a grant and verifies its signature, but not its times. It keeps raw. The error wraps one of the Err values of this package.
func ParseGrant(raw []byte) (*Grant, error) {
	g, err := decodeGrant(raw)
	if err != nil {
		return nil, err
	}
	return g, g.verify()
}

// Names reports whether a node may host the Thing.
func (g *Grant) Names(node did.DID) bool { return slices.Contains(g.Nodes, node) }

// Check verifies that td is the TD of the grant, with a valid proof of the owner at now, and that the grant repeats its title, summary, capabilities and
// audience. Receivers do not compare these: the terms of a TD may differ by the version of the program. The error wraps one of the Err values of this
// package.
func (g *Grant) Check(ctx context.Context, v *Verifier, td []byte, now time.Time) error {
	r := &Record{Owner: g.Owner, Thing: g.Thing, Hash: g.Hash, Size: g.Size, Audience: g.Audience}
	if err := r.checkTD(td); err != nil {
		return err
	}
	d, err := v.describe(ctx, r, td, now)
	if err != nil {
		return err
	}
	if g.Title != summarize(d.Title, MaxTitle) || g.Summary != summarize(d.Thing.Description, MaxDescription) || !slices.Equal(g.Capabilities, d.Terms()) {
		return fmt.Errorf("grant %d of %s: %w: its title, summary or capabilities differ", g.Number, g.Thing, ErrHash)
	}
	return nil
}

// Sign signs the record of a node that the grant names, as long as the grant is valid. Of the hosts of the lease only the node is in it. The error wraps
// [ErrOwner] if the grant does not name the node, or [ErrExpired].
func (g *Grant) Sign(td []byte, node did.Signer, l Lease) (*Signed, error) {
	left := g.Expires.Sub(l.Now.Truncate(time.Second))
	switch {
	case !g.Names(node.DID()):
		return nil, fmt.Errorf("%w: its grant %d does not name %s", ErrOwner, g.Number, node.DID())
	case left < time.Second:
		return nil, fmt.Errorf("grant %d of %s: %w at %s", g.Number, g.Thing, ErrExpired, g.Expires.Format(time.RFC3339))
	}
	l.Lifetime = min(l.Lifetime, left)
	l.Hosts = slices.DeleteFunc(slices.Clone(l.Hosts), func(h Host) bool { return h.Node != node.DID() })
	w := &wireRecord{Version: hostVersion, Owner: string(g.Owner), Thing: g.Thing, Grant: g.Raw, State: uint64(l.State)}
	return w.sign(node, l, td)
}

// decodeGrant decodes a grant and checks its form, but not its signature.
func decodeGrant(raw []byte) (*Grant, error) {
	if len(raw) > MaxGrant {
		return nil, fmt.Errorf("grant: %w: %d bytes, %d are allowed", ErrTooLarge, len(raw), MaxGrant)
	}
	var head struct {
		Version uint64 `cbor:"0,keyasint"`
	}
	if err := cbor.Peek(raw, &head); err != nil {
		return nil, fmt.Errorf("grant: %w: %w", ErrMalformed, err)
	}
	if head.Version > grantFormat {
		return nil, fmt.Errorf("grant: %w %d; the highest supported version is %d", ErrVersion, head.Version, grantFormat)
	}
	w := new(wireGrant)
	if err := cbor.Unmarshal(raw, w); err != nil {
		return nil, fmt.Errorf("grant: %w: %w", ErrMalformed, err)
	}
	if again, err := cbor.Marshal(w); err != nil || !bytes.Equal(again, raw) {
		return nil, malformed("a grant that is not in canonical form")
	}
	as := wireRecord{Version: recordVersion, Owner: w.Owner, Thing: w.Thing, Capabilities: w.Capabilities, Title: w.Title, Summary: w.Summary}
	owner, err := as.owner()
	if err = errors.Join(err, as.checkThing(), as.checkText(), as.checkCapabilities()); err != nil {
		return nil, fmt.Errorf("grant: %w", err)
	}
	switch life := w.Expires - w.Issued; {
	case w.Version != grantFormat:
		return nil, malformed("a grant of version %d", w.Version)
	case w.Issued == 0 || w.Expires > latest || w.Expires <= w.Issued:
		return nil, malformed("a grant issued at %d, which expires at %d", w.Issued, w.Expires)
	case life > uint64(GrantLife/time.Second):
		return nil, malformed("a grant for %d s, the limit is %v", life, GrantLife)
	case w.Number == 0 || w.Number == finalSeq:
		return nil, malformed("a grant with the number %d", w.Number)
	case len(w.Hash) != sha256.Size || w.Size == 0 || w.Size > MaxTD:
		return nil, malformed("a grant with a hash of %d bytes, a TD of %d bytes", len(w.Hash), w.Size)
	case w.Audience > maxAudience:
		return nil, malformed("a grant with the audience %d", w.Audience)
	case len(w.Nodes) == 0 || len(w.Nodes) > MaxGranted:
		return nil, malformed("a grant for %d nodes; expected 1 to %d", len(w.Nodes), MaxGranted)
	case len(w.Signature) != ed25519.SignatureSize:
		return nil, malformed("a grant with a signature of %d bytes", len(w.Signature))
	}
	g := &Grant{Owner: owner, Thing: w.Thing, Number: w.Number, Issued: time.Unix(int64(w.Issued), 0).UTC(), Expires: time.Unix(int64(w.Expires), 0).UTC(),
		Hash: [32]byte(w.Hash), Size: int(w.Size), Capabilities: w.Capabilities, Title: w.Title, Summary: w.Summary, Audience: visibilityOf(w.Audience), Raw: raw}
	for _, n := range w.Nodes {
		node, err := did.Parse(n)
		if err != nil || node.Method() != "key" || g.Names(node) {
			return nil, malformed("node %s of a grant is not a did:key of an Ed25519 key, or is listed twice", schema.Show(n))
		}
		g.Nodes = append(g.Nodes, node)
	}
	return g, nil
}

// verify checks the signature.
func (g *Grant) verify() error {
	w := new(wireGrant)
	if err := cbor.Unmarshal(g.Raw, w); err != nil {
		return fmt.Errorf("grant: %w: %w", ErrMalformed, err)
	}
	signature := w.Signature
	w.Signature = nil
	message, err := cbor.Marshal(w)
	if err != nil {
		return err
	}
	key, err := g.Owner.Key()
	if err != nil {
		return fmt.Errorf("grant: %w: owner: %w", ErrMalformed, err)
	}
	if !ed25519.Verify(key, append([]byte(did.PurposeGrant), message...), signature) {
		return fmt.Errorf("grant %d of %s: %w", g.Number, g.Thing, ErrSignature)
	}
	return nil
}

// HostKey returns the key of a Thing at one of its hosts: SHA-256 of owner, a zero byte, thing, a zero byte, node.
func HostKey(owner did.DID, thing string, node did.DID) [32]byte {
	return sha256.Sum256(slices.Concat([]byte(owner), []byte{0}, []byte(thing), []byte{0}, []byte(node)))
}

// Signer returns who signed the record: the owner, or the host.
func (r *Record) Signer() did.DID {
	if r.Host != "" {
		return r.Host
	}
	return r.Owner
}

// setHost sets the fields of a record of version 3, which a host has signed, from its grant.
func (r *Record) setHost(w *wireRecord) error {
	switch {
	case len(r.Hosts) != 1:
		return malformed("%d hosts in the record of a host", len(r.Hosts))
	case r.Kind != KindTD || r.Seq == finalSeq:
		return malformed("the record of a host is of kind %d, with the seq %d", w.Kind, w.Seq)
	case len(w.Hash) > 0 || w.Size > 0 || len(w.Capabilities) > 0 || w.Title != "" || w.Summary != "":
		return malformed("the record of a host repeats its grant")
	case w.State > uint64(Ended):
		return fmt.Errorf("record of %s: %w: a state %d of its host", r.Thing, ErrVersion, w.State)
	}
	r.Host, r.State = r.Hosts[0].Node, HostState(w.State)
	g, err := decodeGrant(w.Grant)
	if err != nil {
		return err
	}
	switch {
	case g.Owner != r.Owner || g.Thing != r.Thing:
		return malformed("the grant of another Thing")
	case !g.Names(r.Host):
		return fmt.Errorf("record of %s: %w: its grant %d does not name %s", r.Thing, ErrOwner, g.Number, r.Host.Short())
	case r.Expires.After(g.Expires):
		return malformed("it outlives its grant")
	}
	r.Grant, r.Hash, r.Size, r.Capabilities, r.Title, r.Summary, r.Audience = g, g.Hash, g.Size, g.Capabilities, g.Title, g.Summary, g.Audience
	return nil
}

// Responsible yields the nodes whose standing the Thing has: its owner, or, if the owner has granted it to nodes, those that host it. A key that is on no
// node has no standing of its own.
func (r *Record) Responsible() iter.Seq[did.DID] {
	return func(yield func(did.DID) bool) {
		if r.Grant == nil {
			yield(r.Owner)
			return
		}
		for _, h := range r.Hosts {
			if !yield(h.Node) {
				return
			}
		}
	}
}

// Number is the place of the record among the statements of the owner about the Thing: the number of the grant, or the seq of its own record.
func (r *Record) Number() uint64 {
	if r.Grant != nil {
		return r.Grant.Number
	}
	return r.Seq
}

// AtHosts returns d, of which a host signed the record, with a record of the whole Thing: with the grant in force and its number instead of the sequence
// number of the host, and with all hosts. Raw and Signed stay those of the one host. d is not changed.
func (d *Description) AtHosts(g *Grant, hosts []Host, expires time.Time) *Description {
	r := *d.Record
	r.Host, r.State, r.Grant, r.Seq, r.Hosts, r.Expires = "", Hosting, g, g.Number, hosts, expires
	whole := *d
	whole.Record = &r
	return &whole
}
