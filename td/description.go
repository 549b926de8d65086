package td

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/td/schema"
)

// Verify verifies s at the time now and returns the description. For a tombstone, a moved record, or the last record of a host it returns a
// Description whose Thing is nil. The TD is s.TD, or else that inside the record; without both, the error wraps [ErrNoTD].
//
// The order is: the record ([Verifier.Record]); size and hash of the TD; strict JSON; the proof, which must be of the owner of the
// record; the owner in the id, if there is one; the id, which must be that of the record; the rules of [Parse]; the audience. The error wraps one of the
// Err values of this package, and also a [*ValidationError] if the TD is invalid, or [proof.ErrProof] if the proof is. The description
// keeps s, which must not be changed.
func (s *Signed) Verify(ctx context.Context, v *Verifier, now time.Time) (*Description, error) {
	d, _, err := s.VerifyNew(ctx, v, now, func(*Record) bool { return true })
	return d, err
}

// VerifyNew is [Signed.Verify] with a condition: if wanted returns false for the verified record, it returns only the record. It returns
// the verified record with an error, too.
func (s *Signed) VerifyNew(ctx context.Context, v *Verifier, now time.Time, wanted func(*Record) bool) (*Description, *Record, error) {
	r, td, err := v.record(s.Record, now)
	if err != nil || !wanted(r) {
		return nil, r, err
	}
	d, err := s.describe(ctx, v, r, td, now)
	return d, r, err
}

// describe verifies the TD of s, whose record r is verified. td is the TD inside the record if it was decompressed already.
func (s *Signed) describe(ctx context.Context, v *Verifier, r *Record, td []byte, now time.Time) (*Description, error) {
	var err error
	if r.Kind != KindTD || r.State == Ended {
		return &Description{Record: r, Signed: &Signed{Record: s.Record}}, nil
	}
	switch {
	case s.TD != nil:
		td, err = s.TD, r.checkTD(s.TD)
	case td == nil && len(r.Inline) > 0:
		td, err = r.decompressTD()
	case td == nil:
		err = fmt.Errorf("record of %s: %w", r.Thing, ErrNoTD)
	}
	if err != nil {
		return nil, err
	}
	return v.describe(ctx, r, td, now)
}

// describe verifies the TD, whose hash is that of the verified record r. The JSON is decoded once.
func (v *Verifier) describe(ctx context.Context, r *Record, td []byte, now time.Time) (*Description, error) {
	doc, err := decode(td)
	if err != nil {
		return nil, fmt.Errorf("TD of %s: %w: %w", r.Thing, ErrMalformed, err)
	}
	if _, ok := doc["registration"]; ok {
		return nil, fmt.Errorf("TD of %s: %w: it has a registration, which only a directory adds", r.Thing, ErrMalformed)
	}
	// Before the proof is verified: a proof of another signer is rejected without resolving its key.
	if signer := proofSigner(doc); signer != r.Owner {
		return nil, r.notBy(signer)
	}
	verified, err := proof.Verify(ctx, doc, proof.Check{Resolver: v.keys, Now: now})
	if err != nil {
		return nil, fmt.Errorf("TD of %s: %w: %w", r.Thing, proofError(err), err)
	}
	if verified.Owner != r.Owner {
		return nil, r.notBy(verified.Owner)
	}
	if id := text(verified.Document["id"]); id != r.Thing {
		return nil, fmt.Errorf("TD of %s: %w: its id is %s", r.Thing, ErrHash, schema.Show(id))
	}
	// From here on, only the verified document is used.
	if err := checkDocument(verified.Document); err != nil {
		return nil, fmt.Errorf("TD of %s: %w: %w", r.Thing, ErrMalformed, err)
	}
	t := view(td, verified.Document)
	if t.Visibility != r.Audience {
		return nil, fmt.Errorf("TD of %s: %w: %s, %s", r.Thing, ErrAudience, r.Audience, t.Visibility)
	}
	return &Description{
		Thing: t, Record: r, Signed: &Signed{Record: r.Raw, TD: td},
		ProofMethod: verified.Method, ProofCreated: verified.Created, ProofExpires: verified.Expires,
	}, nil
}

func (r *Record) notBy(signer did.DID) error {
	return fmt.Errorf("TD of %s: %w: the owner is %s, the proof is of %s", r.Thing, ErrOwner, r.Owner, schema.Show(string(signer)))
}

func proofError(err error) error {
	if errors.Is(err, proof.ErrTime) {
		return ErrExpired
	}
	return ErrSignature
}

// proofSigner returns the claimed signer of the proof, or of the first of several; "" without a proof.
func proofSigner(doc map[string]any) did.DID {
	p := object(doc["proof"])
	if list := array(doc["proof"]); len(list) > 0 {
		p = object(list[0])
	}
	id, _, _ := strings.Cut(text(p["verificationMethod"]), "#")
	return did.DID(id)
}

// Refresh verifies a newer record of the same Thing and TD, and returns the description with it. It is cheaper than [Signed.Verify],
// because the TD is not verified again. The error wraps [ErrHash] if the record is of another TD, or an error of [Verifier.Record]. d is not
// changed.
func (d *Description) Refresh(v *Verifier, record []byte, now time.Time) (*Description, error) {
	r, err := v.Record(record, now)
	if err != nil {
		return nil, err
	}
	old := d.Record
	if d.Thing == nil || r.Kind != KindTD || r.Owner != old.Owner || r.Thing != old.Thing || r.Hash != old.Hash {
		return nil, fmt.Errorf("record of %s: %w", r.Thing, ErrHash)
	}
	if r.Audience != old.Audience {
		return nil, fmt.Errorf("record of %s: %w: %s, %s", r.Thing, ErrAudience, r.Audience, old.Audience)
	}
	switch {
	case !d.ProofExpires.IsZero() && now.After(d.ProofExpires.Add(proof.Skew)):
		return nil, fmt.Errorf("TD of %s: %w: %w: it ended %s", r.Thing, ErrExpired, proof.ErrTime, d.ProofExpires.Format(time.RFC3339))
	case d.ProofCreated.After(now.Add(proof.Skew)):
		return nil, fmt.Errorf("TD of %s: %w: %w: it is of %s", r.Thing, ErrExpired, proof.ErrTime, d.ProofCreated.Format(time.RFC3339))
	}
	fresh := *d
	fresh.Record = r
	fresh.Signed = &Signed{Record: r.Raw, TD: d.Signed.TD}
	return &fresh, nil
}
