// Package aries reads legacy DID documents and did:keys of other types than Ed25519, and verifies credentials of the data model 1.1, with
// aries-framework-go.
//
// That module is archived and only imported here. Every call has a size limit and a time limit, and recovers from panics. Its results are
// converted to the current form and checked by did.ParseDocument. Of credentials it canonicalizes the statements. What must hold besides is
// checked here, because the module accepts an empty list of proofs and members that are not signed. With the build tag noaries the module is
// not built in, and every call returns did.ErrLegacyUnsupported.
package aries
