package gateway

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

// TokenPath returns the file of the API token in a data directory, or "" without a data directory.
func TokenPath(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "api.token")
}

// OpenToken returns the API token, which permits changes of the node over TCP: 32 random bytes in base64url. It is created once, in a file
// that only its owner can read. Without a data directory each start creates one. The error is of code KeyPermissions, or that of a read or
// write.
func OpenToken(dir string) (string, error) {
	path := TokenPath(dir)
	if path != "" {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			return "", interact.Errorf(interact.KeyPermissions, "chmod 600 "+interact.Quote(path),
				"%s has mode %04o: other users of this machine could change the node with it", path, info.Mode().Perm())
		}
		b, err := os.ReadFile(path)
		if err == nil && len(strings.TrimSpace(string(b))) >= 32 {
			return strings.TrimSpace(string(b)), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	var raw [32]byte
	rand.Read(raw[:])
	token := base64.RawURLEncoding.EncodeToString(raw[:])
	if path == "" {
		return token, nil
	}
	if err := atomicfile.Write(path, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	return token, nil
}
