package invitation

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"strings"
	"sync"
)

// wordCount is the number of words in words.txt: each word stands for 11 bits.
const wordCount = 1 << wordBits

const wordBits = 11

//go:embed words.txt
var wordText string

var wordList = sync.OnceValue(func() []string { return strings.Fields(wordText) })

// checkRounds makes the search for identifiers with the same words slow: about 10 ms for each pair.
const checkRounds = 1 << 16

// CheckWords returns six words that stand for two organizations, by their SCIDs in any order. People compare the words on both screens: if they
// differ, one side has another organization. The words have 66 bits of a repeated SHA-256 of "lmos-check-v1:", the lesser SCID, "|" and
// the greater one.
func CheckWords(a, b string) [6]string {
	if b < a {
		a, b = b, a
	}
	sum := sha256.Sum256([]byte("lmos-check-v1:" + a + "|" + b))
	for range checkRounds {
		sum = sha256.Sum256(sum[:])
	}
	var words [6]string
	high, low := binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])
	for i := range words {
		n := high >> (64 - wordBits)
		words[i] = wordList()[n]
		high, low = high<<wordBits|low>>(64-wordBits), low<<wordBits
	}
	return words
}
