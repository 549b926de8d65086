// Package opaque issues and opens opaque tokens: encrypted, expiring, and bound to a caller and a purpose. A token is
// valid for one caller, one purpose and one request; modified and forged tokens are rejected.
//
// Tokens are encrypted with AES-256-GCM (NIST SP 800-38D) under a key that is created with the process and never stored: no token is
// valid after a restart. Nonces are random, which is safe for 2^32 tokens of one key (§8.3). Replay is prevented by the issuer: a token
// names an operation that ends with its use.
//
// The name of the issuing node is not encrypted, so that another node can redirect the client (spec: a retry may arrive at another
// node).
//
// Sources: MCP 2026-07-28, "Multi round-trip requests", "Security"; "Pagination"; extension "Tasks"; A2A 1.0 §3.1.4, §13.1.
package opaque

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// Bounds, in bytes.
const (
	maxToken = 256 << 10
	maxNode  = 255
)

// A For is the context to which a token is bound. Open requires an equal one.
type For struct {
	// Purpose is the kind of token: "call", "cursor tools/list".
	Purpose string
	// Caller is the owner of the token.
	Caller string
	// Request is a digest of the request; zero means any.
	Request [32]byte
}

// Errors of Open.
var (
	ErrExpired = errors.New("the token has expired")
	// ErrForged means a modified or forged token, one of another caller or request, or one from before a restart: the cases are
	// indistinguishable.
	ErrForged = errors.New("the token is not valid for this request")
)

// An ElsewhereError means that another node issued the token.
type ElsewhereError struct {
	// Node is the unverified name of that node.
	Node string
}

func (e *ElsewhereError) Error() string { return "another node issued the token" }

// A Sealer issues tokens and opens its own. It is safe for concurrent use.
type Sealer struct {
	node string
	aead cipher.AEAD
}

// New returns a sealer with a new key. Node is the name of the issuer in its tokens, at most 255 bytes; empty means a random
// one.
func New(node string) *Sealer {
	if node == "" || len(node) > maxNode {
		node = rand.Text()
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has the right length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return &Sealer{node, aead}
}

// Seal returns a token for v, which must have a JSON form. It is valid for life; 0 means until the process ends.
func (s *Sealer) Seal(f For, life time.Duration, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a bug of the caller
	}
	end := int64(0)
	if life > 0 {
		end = time.Now().Add(life).UnixMilli()
	}
	text = append(binary.BigEndian.AppendUint64(nil, uint64(end)), text...)
	token := append([]byte{byte(len(s.node))}, s.node...)
	return base64.RawURLEncoding.EncodeToString(append(token, s.aead.Seal(nil, nil, text, s.bound(f))...))
}

// bound returns the additional authenticated data. Each part has a length prefix, so that the encoding is unambiguous.
func (s *Sealer) bound(f For) []byte {
	var all []byte
	for _, part := range []string{s.node, f.Purpose, f.Caller, string(f.Request[:])} {
		all = append(binary.BigEndian.AppendUint32(all, uint32(len(part))), part...)
	}
	return all
}

// Open decodes a token of [Sealer.Seal] into v. The error is ErrForged, ErrExpired or an [*ElsewhereError]; v is not changed then.
func (s *Sealer) Open(f For, token string, v any) error {
	if len(token) > maxToken || strings.ContainsAny(token, "\r\n") { // the decoder skips line ends
		return ErrForged
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) == 0 || len(raw) < 1+int(raw[0]) {
		return ErrForged
	}
	node, sealed := string(raw[1:1+int(raw[0])]), raw[1+int(raw[0]):]
	if node != s.node {
		return &ElsewhereError{node}
	}
	text, err := s.aead.Open(nil, nil, sealed, s.bound(f))
	if err != nil {
		return ErrForged
	}
	end := int64(binary.BigEndian.Uint64(text))
	if end != 0 && time.Now().UnixMilli() >= end {
		return ErrExpired
	}
	if json.Unmarshal(text[8:], v) != nil {
		return ErrForged // issued for another context
	}
	return nil
}
