// Package aries reads legacy DID documents, and did:keys of other types than Ed25519, with aries-framework-go.
//
// That module is archived and only imported here. Every call has a size limit and a time limit, and recovers from panics. Its results are
// converted to the current form and checked by did.ParseDocument. With the build tag noaries the module is not built in, and every call
// returns did.ErrLegacyUnsupported.
package aries
