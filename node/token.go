package node

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
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
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			return "", interact.Errorf(interact.KeyPermissions, "chmod 600 "+interact.Quote(path),
				"%s has mode %04o: others on this machine could change the node with it", path, info.Mode().Perm())
		}
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
	if err := atomicfile.Write(path, []byte(token+"\n"), 0o600); err != nil {
		return "", dirError(dir, err)
	}
	return token, nil
}
