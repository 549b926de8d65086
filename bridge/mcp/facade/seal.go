package facade

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
)

// maxSealed bounds what is opened, in bytes.
const maxSealed = 8 << 10

// A sealer makes words that only this process reads and nobody can change: what it has to remember of a caller is the caller's to keep.
// They end with the process.
type sealer struct{ aead cipher.AEAD }

func newSealer() *sealer {
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
	return &sealer{aead}
}

// seal makes a word of v, which JSON can hold, for one caller and one purpose.
func (s *sealer) seal(purpose, caller string, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, []byte(purpose+"\x00"+caller)))
}

// open reads a word of seal, and reports whether it is one for that caller and purpose.
func (s *sealer) open(purpose, caller, word string, v any) bool {
	if len(word) > maxSealed {
		return false
	}
	sealed, err := base64.RawURLEncoding.DecodeString(word)
	if err != nil {
		return false
	}
	text, err := s.aead.Open(nil, nil, sealed, []byte(purpose+"\x00"+caller))
	return err == nil && json.Unmarshal(text, v) == nil
}
