// Package opaque issues and opens opaque tokens: encrypted, expiring, and bound to a caller and a purpose. A word says what it
// stands for to the process that made it, and nothing to anybody else. It is good for one caller, one purpose and one request, and
// for a while; what was changed or made up is refused.
//
// Words are sealed with AES-256-GCM (NIST SP 800-38D) under a key that is made with the process and never written: a word ends with
// it, as does what waits for it. Nonces are random, which is safe for 2^32 words of one key (§8.3). That a word is used once is for
// whoever made it to see to: it names something that is then gone.
//
// A word says in the clear which node made it, so that another can tell its client where to go (spec: a retry may arrive at another
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
	maxWord = 256 << 10
	maxNode = 255
)

// A For says what a word is good for. All of it must be the same when the word is opened.
type For struct {
	// Purpose tells kinds of words apart: "call", "cursor tools/list".
	Purpose string
	// Caller is whose it is.
	Caller string
	// Request is a digest of the request that it belongs to; zero: of any.
	Request [32]byte
}

// Why a word is not opened.
var (
	ErrExpired = errors.New("it is too old")
	// ErrForged is of a word that was changed, made up, given to another caller, or for another request, or made before a restart:
	// they cannot be told apart.
	ErrForged = errors.New("it is not of this request")
)

// An ElsewhereError says that another node made a word.
type ElsewhereError struct {
	// Node is what that node calls itself; nobody has verified it.
	Node string
}

func (e *ElsewhereError) Error() string { return "it was given by another node" }

// A Sealer makes words and opens its own. It is safe for concurrent use.
type Sealer struct {
	node string
	aead cipher.AEAD
}

// New returns a sealer with a key of its own. Node is what words say of where they were made, at most 255 bytes; empty is a name that
// nobody else has.
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

// Seal makes a word of v, which JSON can hold. It is good for life; 0: as long as the process.
func (s *Sealer) Seal(f For, life time.Duration, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake of the caller's
	}
	end := int64(0)
	if life > 0 {
		end = time.Now().Add(life).UnixMilli()
	}
	text = append(binary.BigEndian.AppendUint64(nil, uint64(end)), text...)
	word := append([]byte{byte(len(s.node))}, s.node...)
	return base64.RawURLEncoding.EncodeToString(append(word, s.aead.Seal(nil, nil, text, s.bound(f))...))
}

// bound is what is authenticated beside the text. Each part has its length before it, so that no two are spelled alike.
func (s *Sealer) bound(f For) []byte {
	var all []byte
	for _, part := range []string{s.node, f.Purpose, f.Caller, string(f.Request[:])} {
		all = append(binary.BigEndian.AppendUint32(all, uint32(len(part))), part...)
	}
	return all
}

// Open reads a word of [Sealer.Seal] into v. The error is ErrForged, ErrExpired or an [*ElsewhereError]; v is not changed then.
func (s *Sealer) Open(f For, word string, v any) error {
	if len(word) > maxWord || strings.ContainsAny(word, "\r\n") { // the decoder skips line ends
		return ErrForged
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(word)
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
		return ErrForged // it was made for something else
	}
	return nil
}
