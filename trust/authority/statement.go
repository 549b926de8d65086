package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/jcs"
)

// maxDocument limits the signed documents, in bytes.
const maxDocument = 4 << 20

// Verify verifies a JSON document that an issuing key in a log signed (organization.Organization.Sign), decodes it into v and returns the DID
// URL of the key. The error wraps [proof.ErrProof] if the log has no such key.
func Verify(ctx context.Context, raw []byte, l *webvh.Log, now time.Time, v any) (method string, err error) {
	doc, err := jcs.Object(raw, maxDocument)
	if err != nil {
		return "", err
	}
	p, err := verify(ctx, doc, l, now)
	if err != nil {
		return "", err
	}
	return p.Method, decode(p.Document, v)
}

// verify verifies the proof of a document.
func verify(ctx context.Context, doc map[string]any, l *webvh.Log, now time.Time) (*proof.Verified, error) {
	p, err := proof.Verify(ctx, doc, proof.Check{Resolver: resolver{l}, Now: now})
	if err != nil {
		return nil, err
	}
	if p.Owner != l.DID() {
		return nil, fmt.Errorf("%w: signed by %s", proof.ErrProof, p.Owner.Short())
	}
	return p, nil
}

func decode(doc map[string]any, v any) error {
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// A resolver resolves the DID of one log.
type resolver struct{ log *webvh.Log }

func (r resolver) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	if id != r.log.DID() {
		return nil, fmt.Errorf("%w: %s is another organization", did.ErrNotFound, id.Short())
	}
	return r.log.Document()
}

// StatementType is the type of a [Statement].
const StatementType = "OrganizationStatus"

const maxVersions = 400

// A Statement is what a node states about an organization. That of an issuer has a proof by its issuing key, for one question of one node;
// that of a member has none, because the connection proves the member.
type Statement struct {
	Type         string            `json:"type"`
	Organization did.DID           `json:"organization"`
	Node         did.DID           `json:"node"`     // the node that answers
	Audience     did.DID           `json:"audience"` // the node that asks
	Nonce        string            `json:"nonce"`
	Head         string            `json:"head"`
	Length       uint64            `json:"length"` // of the log
	Versions     map[string]uint64 `json:"versions"`
	Settled      bool              `json:"settled"` // the node knows what others revoked

	Created time.Time `json:"-"` // when the issuer signed it, by its clock; zero without a proof
}

// ReadStatement reads a statement about the organization of a log, and verifies its proof if it has one. method is the issuing key, or "".
func ReadStatement(ctx context.Context, raw []byte, l *webvh.Log, now time.Time) (st *Statement, method string, err error) {
	doc, err := jcs.Object(raw, maxDocument)
	if err != nil {
		return nil, "", err
	}
	st = &Statement{}
	if doc["proof"] != nil {
		p, err := verify(ctx, doc, l, now)
		if err != nil {
			return nil, "", err
		}
		doc, method, st.Created = p.Document, p.Method, p.Created
	}
	if err := decode(doc, st); err != nil {
		return nil, "", err
	}
	if st.Type != StatementType || len(st.Versions) > maxVersions {
		return nil, "", errors.New("not a status statement")
	}
	return st, method, nil
}
