// Package rotation has the statement by which a node replaces its key, and keeps the state of a replacement in the data directory.
//
// A [Statement] is signed by both keys: the old key names its successor, and the new key proves that it exists. An issuer of the organization
// gives the new key the membership of the old one for it (package trust), and the audit log accepts the new key as its signer (package
// audit). Without either, the two keys are two nodes.
//
// A [Pending] replacement passes three states: requested, confirmed by an issuer, and completed. The key file is replaced between the last two;
// a process that finds a confirmed one finishes it.
package rotation

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
)

// Limits of a statement.
const (
	// Life is the time in which an issuer accepts a statement about a new key that it does not know yet.
	Life = 24 * time.Hour
	// Skew is the permitted difference of clocks.
	Skew = 5 * time.Minute
	// MaxSize limits the encoded form, in bytes.
	MaxSize    = 1024
	maxNetwork = 64
	maxSCID    = 64
)

// A Statement states that the node with the key From replaces it by the key To.
type Statement struct {
	Network  string  // the name of the mesh
	SCID     string  // the organization of the node; empty: none
	From, To did.DID // did:keys
	Created  time.Time
}

// wire is the CBOR map. Both keys sign it without the signatures.
type wire struct {
	Version uint64 `cbor:"0,keyasint"` // 1
	Network string `cbor:"1,keyasint"`
	SCID    string `cbor:"2,keyasint,omitempty"`
	From    string `cbor:"3,keyasint"`
	To      string `cbor:"4,keyasint"`
	Created int64  `cbor:"5,keyasint"` // Unix seconds
	Old     []byte `cbor:"6,keyasint,omitempty"`
	New     []byte `cbor:"7,keyasint,omitempty"`
}

// Sign returns the encoded statement with the signatures of both keys. It sets From and To, which are theirs.
func Sign(s Statement, from, to did.Signer) ([]byte, error) {
	w := wire{1, s.Network, s.SCID, string(from.DID()), string(to.DID()), s.Created.Unix(), nil, nil}
	signed, err := cbor.Marshal(w)
	if err != nil {
		return nil, err
	}
	if w.Old, err = from.Sign(did.PurposeRotation, signed); err != nil {
		return nil, err
	}
	if w.New, err = to.Sign(did.PurposeRotation, signed); err != nil {
		return nil, err
	}
	raw, err := cbor.Marshal(w)
	if err != nil {
		return nil, err
	}
	_, err = Parse(raw) // what readers reject is not made
	return raw, err
}

// Parse reads a statement, and verifies both signatures. There is one encoding of a statement. Parse does not check the time, the network and
// the organization.
func Parse(raw []byte) (*Statement, error) {
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("a rotation has at most %d bytes, got %d", MaxSize, len(raw))
	}
	var w wire
	if err := cbor.Unmarshal(raw, &w); err != nil {
		return nil, fmt.Errorf("not a rotation: %w", err)
	}
	if again, err := cbor.Marshal(w); err != nil || !bytes.Equal(again, raw) {
		return nil, errors.New("not a rotation: it is not deterministic CBOR")
	}
	s := &Statement{Network: w.Network, SCID: w.SCID, From: did.DID(w.From), To: did.DID(w.To), Created: time.Unix(w.Created, 0).UTC()}
	switch {
	case w.Version != 1:
		return nil, fmt.Errorf("the rotation has the version %d, which this program does not support", w.Version)
	case w.Network == "" || len(w.Network) > maxNetwork || len(w.SCID) > maxSCID || w.Created <= 0 || w.Created > 1<<40:
		return nil, errors.New("a member of the rotation is beyond its limits")
	case s.From == s.To:
		return nil, errors.New("the rotation names one key twice")
	}
	old, fresh := w.Old, w.New
	w.Old, w.New = nil, nil
	signed, err := cbor.Marshal(w)
	if err != nil {
		return nil, err
	}
	signed = append([]byte(did.PurposeRotation), signed...)
	for _, k := range []struct {
		name string
		id   did.DID
		sig  []byte
	}{{"old", s.From, old}, {"new", s.To, fresh}} {
		key, err := k.id.Key()
		if err != nil {
			return nil, fmt.Errorf("the %s key of the rotation: %w", k.name, err)
		}
		if !ed25519.Verify(key, signed, k.sig) {
			return nil, fmt.Errorf("the rotation is not signed by its %s key", k.name)
		}
	}
	return s, nil
}

// IsCurrent reports whether an issuer accepts the statement at this time.
func (s *Statement) IsCurrent(now time.Time) bool {
	age := now.Sub(s.Created)
	return age >= -Skew && age <= Life+Skew
}
