package proof

import "errors"

// ErrProof is wrapped by every error of this package.
var ErrProof = errors.New("proof rejected")

// ErrTime means that the proof is not valid at the time of the check; its signature may be valid.
var ErrTime = errors.New("outside of its validity period")

// An Error is the reason why a document was not signed or not verified.
type Error struct {
	kind string
	err  error
}

// Error returns the reason.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns [ErrProof] and the cause.
func (e *Error) Unwrap() []error { return []error{ErrProof, e.err} }

// Type returns the URL of the error's type, for problem details (Data Integrity §4.7):
// https://w3id.org/security#PROOF_VERIFICATION_ERROR, or …#PROOF_GENERATION_ERROR, #INVALID_DOMAIN_ERROR or
// #INVALID_CHALLENGE_ERROR.
func (e *Error) Type() string { return "https://w3id.org/security#" + e.kind }
