package td

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td/schema"
)

// A Lease is the validity and the hosts of a record.
type Lease struct {
	// Seq is higher than that of all earlier records of the Thing. The publisher stores it before it publishes.
	Seq      uint64
	Now      time.Time     // truncated to seconds
	Lifetime time.Duration // whole seconds; at most 24 h, and 30 days of a tombstone or a move
	Hosts    []Host        // at most MaxHosts; ignored for tombstones and moves
	// Audience is that of a tombstone or a move. The audience of a TD is its visibility.
	Audience Visibility
	State    HostState // only of [Grant.Sign]
}

// Sign signs a completed Thing for the mesh. It adds a Data Integrity proof to the TD, unless the TD has a valid one of the same owner, and
// creates and signs the record. The record includes the compressed TD if it fits. The error wraps [ErrOwner] if the TD or its id belongs to
// another owner than s, [ErrSignature] if the TD has an invalid proof, or [ErrTooLarge] if the TD or the record is too large; it is a
// [*ValidationError] if the TD is not complete.
func Sign(t *Thing, s did.Signer, l Lease) (*Signed, error) {
	signed, _, err := signThing(t, s, l)
	return signed, err
}

// Sign is the function [Sign], and returns the description of what it signs, as [Signed.Verify] does. It verifies the signature of the record. It does not
// verify again the proof that it has just made.
func (v *Verifier) Sign(ctx context.Context, t *Thing, s did.Signer, l Lease) (*Description, error) {
	signed, made, err := signThing(t, s, l)
	if err != nil {
		return nil, err
	}
	if made == nil { // the TD came with its proof
		d, err := signed.Verify(ctx, v, l.Now)
		if err != nil {
			err = fmt.Errorf("verify the new signature: %w", err)
		}
		return d, err
	}
	r, err := v.Record(signed.Record, l.Now)
	if err != nil {
		return nil, fmt.Errorf("verify the new signature: %w", err)
	}
	created, err := time.Parse(time.RFC3339, text(made["created"]))
	if err != nil {
		return nil, fmt.Errorf("verify the new proof: %w", err)
	}
	r.shareText()
	// The view of t would keep the memory of its TD without the proof.
	doc, err := decode(signed.TD)
	if err != nil {
		return nil, fmt.Errorf("read the signed TD of %s: %w", t.ID, err)
	}
	return &Description{Thing: view(signed.TD, doc), Record: r, Signed: &Signed{Record: r.Raw, TD: signed.TD}, ProofMethod: text(made["verificationMethod"]),
		ProofCreated: created}, nil
}

// signThing is Sign. It returns the proof that it made, or nil if the TD had one.
func signThing(t *Thing, s did.Signer, l Lease) (signed *Signed, made map[string]any, err error) {
	if t.ID == "" {
		return nil, nil, invalid("", `"id" is missing: complete the TD before it is signed`)
	}
	raw, made, err := prove(t, s, l.Now)
	if err != nil {
		return nil, nil, err
	}
	hash := sha256.Sum256(raw)
	w := &wireRecord{
		Thing: t.ID, Hash: hash[:], Size: uint64(len(raw)), Capabilities: t.Terms(),
		Title: summarize(t.Title, MaxTitle), Summary: summarize(t.Description, MaxDescription), Audience: t.Visibility.audience(),
	}
	signed, err = w.sign(s, l, raw)
	return signed, made, err
}

// prove returns the TD with its proof, and the proof if it was made now.
func prove(t *Thing, s did.Signer, now time.Time) (raw []byte, made map[string]any, err error) {
	doc := t.doc
	if doc == nil {
		if doc, err = decode(t.Raw); err != nil {
			return nil, nil, err
		}
	}
	if _, ok := doc["proof"]; ok {
		return t.Raw, nil, checkProof(doc, s.DID(), now)
	}
	if front, middle, last := missingContexts(doc); len(front)+len(middle)+len(last) > 0 {
		return nil, nil, invalid("/@context", "lacks contexts: complete the TD before it is signed")
	}
	if made, err = proof.Sign(doc, s, proof.Options{Created: now}); err != nil {
		return nil, nil, fmt.Errorf("sign the TD of %s: %w", t.ID, err)
	}
	raw = addMember(t.Raw, "proof", bytesOf(made))
	if len(raw) > MaxTD {
		return nil, nil, fmt.Errorf("the signed TD of %s: %w: %d bytes, %d are allowed", t.ID, ErrTooLarge, len(raw), MaxTD)
	}
	return raw, made, nil
}

// checkProof checks that a signed TD has a valid proof of owner.
func checkProof(doc map[string]any, owner did.DID, now time.Time) error {
	if signer := proofSigner(doc); signer != owner {
		return fmt.Errorf(`%w: the TD is signed by %s; remove "proof" to sign it as %s`, ErrOwner, signer, owner)
	}
	if _, err := proof.Verify(context.Background(), doc, proof.Check{Now: now}); err != nil {
		return fmt.Errorf(`%w: %w; remove "proof" to have the TD signed again`, ErrSignature, err)
	}
	return nil
}

// summarize returns s on one line without control characters, cut to n code points.
func summarize(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	return schema.Cut(strings.Join(strings.Fields(s), " "), n)
}

// sign sets the owner and the lease, and signs the record. It includes td, which may be nil, if it fits.
func (w *wireRecord) sign(s did.Signer, l Lease, td []byte) (*Signed, error) {
	if l.Now.IsZero() || l.Lifetime < time.Second {
		return nil, errors.New("sign a record: expected a lease with a time and at least 1 s")
	}
	w.Seq = l.Seq
	if Kind(w.Kind) != KindTD {
		w.Audience = l.Audience.audience()
	}
	switch {
	case w.Version == hostVersion:
	case w.Audience != uint64(Public):
		w.Version, w.Owner = restrictedVersion, string(s.DID())
	default:
		w.Version, w.Owner = recordVersion, string(s.DID())
	}
	w.Issued = uint64(l.Now.Unix())
	w.Expires = w.Issued + uint64(l.Lifetime/time.Second)
	w.Hosts = nil
	if Kind(w.Kind) == KindTD {
		for _, h := range l.Hosts {
			w.Hosts = append(w.Hosts, wireHost{Node: string(h.Node), Addrs: h.Addrs})
		}
	}
	message, err := w.signed()
	if err != nil {
		return nil, err
	}
	if w.Signature, err = s.Sign(did.PurposeRecord, message); err != nil {
		return nil, fmt.Errorf("sign the record of %s: %w", w.Thing, err)
	}
	if len(w.Signature) != ed25519.SignatureSize {
		return nil, fmt.Errorf("sign the record of %s: the signer returned a signature of %d bytes", w.Thing, len(w.Signature))
	}
	return w.encode(td)
}

// encode encodes the record, with the TD inside if it fits, and decodes it like a receiver, so that no invalid record is published.
func (w *wireRecord) encode(td []byte) (*Signed, error) {
	w.Inline = nil
	raw, err := cbor.Marshal(w)
	if err != nil {
		return nil, err
	}
	if len(raw) > MaxRecord {
		return nil, fmt.Errorf("the record of %s: %w: %d bytes, %d are allowed; use fewer or shorter capability ids and "+
			"addresses", w.Thing, ErrTooLarge, len(raw), MaxRecord)
	}
	const overhead = 4 // the key and the length of the TD inside
	if td != nil {
		if w.Inline = compressTD(td); len(w.Inline) > 0 && len(raw)+len(w.Inline)+overhead <= MaxRecord {
			if raw, err = cbor.Marshal(w); err != nil {
				return nil, err
			}
		}
	}
	if _, _, err := decodeRecord(raw); err != nil {
		return nil, fmt.Errorf("sign the record of %s: %w", w.Thing, err)
	}
	return &Signed{Record: raw, TD: td}, nil
}

// Renew signs a new record for a signed TD, whose proof is unchanged. The error wraps [ErrOwner] if s is neither the owner, nor a host that the
// grant names.
func Renew(d *Description, s did.Signer, l Lease) (*Signed, error) {
	r := d.Record
	if r.Grant != nil {
		return r.Grant.Sign(d.Signed.TD, s, l)
	}
	if s.DID() != r.Owner {
		return nil, fmt.Errorf("renew %s: %w: it belongs to %s, not to %s", r.Thing, ErrOwner, r.Owner, s.DID())
	}
	if r.Kind != KindTD {
		return nil, fmt.Errorf("renew %s: it was withdrawn or moved", r.Thing)
	}
	w := &wireRecord{Thing: r.Thing, Hash: r.Hash[:], Size: uint64(r.Size), Capabilities: r.Capabilities,
		Title: r.Title, Summary: r.Summary, Audience: r.Audience.audience()}
	return w.sign(s, l, d.Signed.TD)
}

// SignTombstone signs the tombstone of a Thing. With final its seq is 2^64-1 instead of the Seq of the lease, so that no later record is
// accepted. The capabilities are those of the withdrawn record, in normal form. They determine the gossip topics.
func SignTombstone(owner did.Signer, thing string, l Lease, final bool, capabilities ...string) (*Signed, error) {
	w := &wireRecord{Kind: uint64(KindTombstone), Thing: thing, Capabilities: capabilities}
	if final {
		l.Seq = finalSeq
	}
	return w.sign(owner, l, nil)
}

// Move signs the record of the move of a Thing to another owner; see [Record.SuccessorRef]. For the capabilities see [SignTombstone].
func Move(owner did.Signer, thing string, successor did.DID, l Lease, capabilities ...string) (*Signed, error) {
	w := &wireRecord{Kind: uint64(KindMoved), Thing: thing, Successor: string(successor), Capabilities: capabilities}
	return w.sign(owner, l, nil)
}

// SuccessorRef returns the reference of a moved Thing at its new owner: the same id, or, if the id contains its owner, the id with the new
// owner. It is undefined for other records.
func (r *Record) SuccessorRef() Ref {
	id := r.Thing
	if owner := ownerInID(id); owner != "" {
		id = strings.Replace(id, string(owner), string(r.Successor), 1)
	}
	return Ref{Name: id, Owner: string(r.Successor)}
}

// WithoutTD returns the record of s without its inline TD, the form of refreshes. The signature is valid for both forms.
func (s *Signed) WithoutTD() (*Signed, error) {
	r, _, err := decodeRecord(s.Record)
	if err != nil {
		return nil, err
	}
	return &Signed{Record: r.WithoutTD(), TD: s.TD}, nil
}

// WithInlineTD returns the record of s with its TD inside, if there is one and it fits.
func (s *Signed) WithInlineTD() (*Signed, error) {
	_, w, err := decodeRecord(s.Record)
	if err != nil {
		return nil, err
	}
	if s.TD == nil {
		return s, nil
	}
	return w.encode(s.TD)
}
