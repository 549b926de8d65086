// Package aries reads legacy DID documents, and did:keys of other types than Ed25519, with aries-framework-go.
//
// That module is archived, so it is fenced in. It is imported here and nowhere else. Every call has a size limit and a
// time limit and survives a panic. Nothing it reads is trusted as it comes: the document is translated to today's form
// and goes through did.ParseDocument, with all its rules about keys. It writes nothing. The build tag noaries leaves it
// out of the program; then every call here returns did.ErrLegacyUnsupported.
package aries
