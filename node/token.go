package node

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

func tokenPath(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "api.token")
}

// apiToken returns the bearer token that changes the node over TCP: 32 random bytes in base64url, made once and kept in a
// file that only its owner reads. A node without a directory gets a new one at each start.
func apiToken(dir string) (string, error) {
	path := tokenPath(dir)
	if path != "" {
		b, err := os.ReadFile(path)
		if err == nil && len(strings.TrimSpace(string(b))) >= 32 {
			return strings.TrimSpace(string(b)), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", dirError(dir, err)
		}
	}
	var raw [32]byte
	rand.Read(raw[:])
	token := base64.RawURLEncoding.EncodeToString(raw[:])
	if path == "" {
		return token, nil
	}
	if err := renameio.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", dirError(dir, err)
	}
	return token, nil
}
