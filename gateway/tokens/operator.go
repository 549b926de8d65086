package tokens

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// OperatorPath returns the file of the operator's token in a data directory, or "" without a data directory.
func OperatorPath(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "api.token")
}

// openOperator returns the operator's token: 32 random bytes in base64url. It is created once, in a file that only its owner can read. Without
// a data directory each start creates one. The error is of code KeyPermissions, or that of a read or write.
func openOperator(dir string) (string, error) {
	path := OperatorPath(dir)
	if path != "" {
		if err := checkMode(path); err != nil {
			return "", err
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

// checkMode returns an error if others than its owner can use a file. A missing file is correct.
func checkMode(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 || runtime.GOOS == "windows" { // Windows makes up the mode.
		return nil // reading it reports its errors
	}
	return interact.Errorf(interact.KeyPermissions, "chmod 600 "+interact.Quote(path),
		"%s has mode %04o: other users of this machine could change the node with it", path, info.Mode().Perm())
}
