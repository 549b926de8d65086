// Package foreign has credentials of issuers that are no organization: it verifies them (Verifiable Credentials Data Model 1.1), determines the
// roles that they give, and keeps those that this node holds.
package foreign

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/interact"
)

// MaxCredential limits a credential, in bytes.
const MaxCredential = aries.MaxCredential

// ErrIssuer is what a resolver returns for issuers that do not count here.
var ErrIssuer = errors.New("the issuer is not in the trust store")

// A Credential is a verified credential. It is immutable.
type Credential struct {
	*aries.Credential
	Hash string          // of Raw: SHA-256, as hex
	Raw  json.RawMessage // as received
}

// Hash returns the name of a credential.
func Hash(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Verify verifies a credential. One whose status would have to be looked up in a list is refused. The error is an [*interact.Error]:
// CredentialInvalid, CredentialExpired, IssuerUntrusted if the resolver returned [ErrIssuer], StatusUnknown, or Unreachable if the document of
// the issuer could not be read now.
func Verify(ctx context.Context, raw []byte, check aries.Check) (*Credential, error) {
	c, err := aries.VerifyCredential(ctx, raw, check)
	if err != nil {
		return nil, refusal(err)
	}
	if c.Status != nil {
		return nil, interact.Errorf(interact.StatusUnknown, "ask the issuer for a credential without credentialStatus, for a short time",
			"the credential names a status list, which is not read: it may be revoked")
	}
	return &Credential{c, Hash(raw), slices.Clone(raw)}, nil
}

// refusal returns an error with its code.
func refusal(err error) error {
	text := strings.ToUpper(err.Error()[:1]) + err.Error()[1:]
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return interact.AsError(err)
	case errors.Is(err, did.ErrLegacyUnsupported):
		return interact.Errorf(interact.CredentialInvalid, "use a build without the tag noaries", "this build of lmosd has no support for credentials of the data model 1.1")
	case errors.Is(err, ErrIssuer):
		return interact.Errorf(interact.IssuerUntrusted, "add the issuer to the trust store", "%v", ErrIssuer)
	case errors.Is(err, aries.ErrExpired), errors.Is(err, aries.ErrNotYet):
		return interact.Errorf(interact.CredentialExpired, "ask the issuer for a new one, and compare the clocks", "%s", text)
	case errors.Is(err, aries.ErrCredential), errors.Is(err, did.ErrInvalid), errors.Is(err, did.ErrMethod), errors.Is(err, did.ErrNotFound):
		return interact.Errorf(interact.CredentialInvalid, "ask the issuer for a new one", "%s", text)
	}
	return interact.Errorf(interact.Unreachable, "try again", "%s", text)
}

// Roles returns those of the permitted roles that the credential gives. A permitted role is "adjuster", which the subject has as role or in
// roles, or "adjuster=TYPE", which each credential of the type gives.
func (c *Credential) Roles(permitted []string) (all []string) {
	stated := append(texts(c.Claims["role"]), texts(c.Claims["roles"])...)
	for _, one := range permitted {
		role, typ, hasType := strings.Cut(one, "=")
		if has := !hasType && slices.Contains(stated, role) || hasType && slices.Contains(c.Types, typ); has && !slices.Contains(all, role) {
			all = append(all, role)
		}
	}
	return all
}

// texts returns the texts of a claim, which is one or several.
func texts(v any) (all []string) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, entry := range list {
		if s, ok := entry.(string); ok {
			all = append(all, s)
		}
	}
	return all
}
