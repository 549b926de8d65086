// Package jcs decodes JSON strictly and encodes it in canonical form (RFC 8785).
//
// The decoder refuses everything that two honest readers could understand differently: duplicate names, bad UTF-8, lone
// surrogates, numbers that a binary64 cannot hold. The writer follows RFC 8785 (JSON Canonicalization Scheme). Sources:
// RFC 8259, RFC 7493 (I-JSON), RFC 8785.
package jcs
