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

// Verify verifies s at the time now and returns the description. For a tombstone or a moved record it returns a
// Description whose Thing is nil. The TD comes from s.TD, else from inside the record; with neither the error wraps
// [ErrNoTD].
//
// In this order: the record ([Verifier.Record]); size and hash of the TD; strict JSON; the proof, which must be by the
// owner of the record; the owner that the id names, if it names one; the id, which must be that of the record; the
// rules of [Parse]. The error wraps one of the Err values of this package; beside it a [*ValidationError] if the TD is
// invalid, or [proof.ErrProof] if the proof is. s is kept and must not be changed.
func (s *Signed) Verify(ctx context.Context, v *Verifier, now time.Time) (*Description, error) {
	d, _, err := s.VerifyNew(ctx, v, now, func(*Record) bool { return true })
	return d, err
}

// VerifyNew is [Signed.Verify], but that it stops after the record if wanted says that it is no news: then it returns the record
// alone. It returns the verified record with an error, too.
func (s *Signed) VerifyNew(ctx context.Context, v *Verifier, now time.Time, wanted func(*Record) bool) (*Description, *Record, error) {
	r, td, err := v.record(s.Record, now)
	if err != nil || !wanted(r) {
		return nil, r, err
	}
	d, err := s.describe(ctx, v, r, td, now)
	return d, r, err
}

// describe verifies the TD of s, whose record r is verified; td is what was inside, if it was unpacked on the way.
func (s *Signed) describe(ctx context.Context, v *Verifier, r *Record, td []byte, now time.Time) (*Description, error) {
	var err error
	if r.Kind != KindTD {
		return &Description{Record: r, Signed: &Signed{Record: s.Record}}, nil
	}
	switch {
	case s.TD != nil:
		td, err = s.TD, r.checkBody(s.TD)
	case td == nil && len(r.Inline) > 0:
		td, err = r.body()
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
	// Before the proof: a proof by another is refused whatever it is, and nobody need be asked for that other's key.
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
	// Only the verified document is used from here on.
	t, err := parse(td, verified.Document, false)
	if err != nil {
		return nil, fmt.Errorf("TD of %s: %w: %w", r.Thing, ErrMalformed, err)
	}
	return &Description{
		Thing: t, Record: r, Signed: &Signed{Record: r.Raw, TD: td},
		ProofMethod: verified.Method, ProofCreated: verified.Created, ProofExpires: verified.Expires,
	}, nil
}

func (r *Record) notBy(signer did.DID) error {
	return fmt.Errorf("TD of %s: %w: the owner is %s, the proof is by %s", r.Thing, ErrOwner, r.Owner, schema.Show(string(signer)))
}

func proofError(err error) error {
	if errors.Is(err, proof.ErrTime) {
		return ErrExpired
	}
	return ErrSignature
}

// proofSigner returns the DID that the proof, or the first of several, claims to be by; "" without a proof.
func proofSigner(doc map[string]any) did.DID {
	p := object(doc["proof"])
	if list := array(doc["proof"]); len(list) > 0 {
		p = object(list[0])
	}
	id, _, _ := strings.Cut(text(p["verificationMethod"]), "#")
	return did.DID(id)
}

// Refresh verifies a newer record of the same thing and the same TD, and returns the description with it: what a
// refresh costs when the TD has not changed. The error wraps [ErrHash] if the record is of another TD, which must then
// be fetched and verified, and the errors of [Verifier.Record]. d is not changed.
func (d *Description) Refresh(v *Verifier, record []byte, now time.Time) (*Description, error) {
	r, err := v.Record(record, now)
	if err != nil {
		return nil, err
	}
	old := d.Record
	if d.Thing == nil || r.Kind != KindTD || r.Owner != old.Owner || r.Thing != old.Thing || r.Hash != old.Hash {
		return nil, fmt.Errorf("record of %s: %w that is known", r.Thing, ErrHash)
	}
	if !d.ProofExpires.IsZero() && now.After(d.ProofExpires.Add(proof.Skew)) {
		return nil, fmt.Errorf("TD of %s: %w: its proof ended %s", r.Thing, ErrExpired, d.ProofExpires.Format(time.RFC3339))
	}
	fresh := *d
	fresh.Record = r
	fresh.Signed = &Signed{Record: r.Raw, TD: d.Signed.TD}
	return &fresh, nil
}
