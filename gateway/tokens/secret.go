package tokens

import (
	"crypto/rand"
	"hash/crc32"
	"math/big"
	"strings"
)

// The form of a token: the prefix, 32 random bytes in 43 digits of base 62, and the CRC-32 (IEEE) of all that in 6 digits. Scanners of
// secrets recognize it, and a typing error is detected without the list of tokens.
const (
	prefix    = "lmos_"
	payload   = 43 // digits of 32 bytes: 62^43 > 2^256
	checksum  = 6  // digits of 4 bytes: 62^6 > 2^32
	secretLen = len(prefix) + payload + checksum
	digits    = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" // those of [big.Int.Text]
)

// newSecret returns a new token.
func newSecret() string {
	var raw [32]byte
	rand.Read(raw[:])
	return withChecksum(prefix + base62(new(big.Int).SetBytes(raw[:]), payload))
}

func withChecksum(text string) string {
	return text + base62(big.NewInt(int64(crc32.ChecksumIEEE([]byte(text)))), checksum)
}

// base62 returns n in at least width digits.
func base62(n *big.Int, width int) string {
	text := n.Text(62)
	return strings.Repeat("0", max(width-len(text), 0)) + text
}

// Is reports whether text has the form of an access token, with a correct checksum. Such a text is a secret, of this node or another one.
func Is(text string) bool {
	body, ok := strings.CutPrefix(text, prefix)
	return ok && len(text) == secretLen && strings.Trim(body, digits) == "" && withChecksum(text[:secretLen-checksum]) == text
}
