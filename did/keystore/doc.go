// Package keystore stores the Ed25519 key of the node in a file that only its owner can read, and signs with it.
//
// A [Key] signs only for the purposes that [Key.Sign] lists. Formats: PKCS#8 in PEM (RFC 5958, RFC 8410); libp2p's protobuf for the
// transport handshake; age with a passphrase (C2SP age v1, scrypt) around the PEM.
package keystore
