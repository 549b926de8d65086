package keystore

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

// ErrPermissions means that other users could read or replace the key file. The error is a [*PermissionError].
var ErrPermissions = errors.New("key file permissions")

// A PermissionError reports a file or directory with too wide permissions, and the remedy.
type PermissionError struct {
	Path   string
	Reason string // "mode 0644 lets other users read the key"
	Hint   string // a command that can be run, "chmod 600 PATH"
}

// Error returns path and reason.
func (e *PermissionError) Error() string { return fmt.Sprintf("%s: %s", e.Path, e.Reason) }

// Unwrap returns [ErrPermissions].
func (e *PermissionError) Unwrap() error { return ErrPermissions }

// maxFile limits the size of a key file, which has 119 bytes, or about 500 if it is encrypted.
const maxFile = 16 << 10

// blockType is the PEM type of an unencrypted PKCS#8 key.
const blockType = "PRIVATE KEY"

// Open returns the key in the file at path, PKCS#8 in PEM. If there is no file, Open creates a key, the file with mode 0600, and the
// directory with mode 0700, and returns after both are durable. An existing file is never changed: of several processes that start at the
// same time, one creates the key and all use it.
//
// The file must be regular, belong to this user or to root, and be inaccessible to other users. Other users must not be able to write to
// its directory, because they could replace the key. Otherwise the error wraps [ErrPermissions]. If the file is encrypted, it wraps
// [ErrLocked].
func Open(path string) (*Key, error) {
	k, err := Unlock(path, nil)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	fresh, err := New()
	if err != nil {
		return nil, err
	}
	if err := fresh.Save(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	// Also after Save, so that this start and the next one have the same key.
	return Unlock(path, nil)
}

// Ask returns the passphrase of an encrypted key file. wrong is the number of passphrases that were wrong before. An error gives up.
type Ask func(wrong int) (Passphrase, error)

// Unlock is [Open] for a file that exists and may be encrypted (an armored age file for a passphrase, with the PKCS#8 file in it); if it is, Unlock
// calls ask until the passphrase is right. A nil ask has none. Without a file, the error wraps fs.ErrNotExist.
func Unlock(path string, ask Ask) (*Key, error) { return unlock(path, ask, checkFile) }

// UnlockCredential is [Unlock] for a credential of systemd. The group may read such a file if it belongs to root: if the service has a
// user, systemd adds an ACL for it, and the mask of the ACL is in the bits of the group.
func UnlockCredential(path string, ask Ask) (*Key, error) { return unlock(path, ask, checkCredential) }

func unlock(path string, ask Ask, check func(string, fs.FileInfo) error) (*Key, error) {
	text, err := read(path, check)
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	private, err := decode(text, ask)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return fromPrivate(private)
}

// decode returns the key in the text of a file.
func decode(text []byte, ask Ask) (ed25519.PrivateKey, error) {
	if !isEncrypted(text) {
		return parse(text)
	}
	if ask == nil {
		return nil, ErrLocked
	}
	for wrong := 0; ; wrong++ {
		p, err := ask(wrong)
		if err != nil {
			return nil, err
		}
		plain, err := Decrypt(text, p)
		if err == nil {
			return parse(plain)
		}
		if !errors.Is(err, ErrPassphrase) {
			return nil, err
		}
	}
}

// Save writes the key to a new file at path, like [Open], and returns when it is durable. An existing file is not changed; the error then
// wraps fs.ErrExist.
func (k Key) Save(path string) error { return k.SaveEncrypted(path, Passphrase{}) }

// SaveEncrypted is [Key.Save] for a file that is encrypted, unless p is zero.
func (k Key) SaveEncrypted(path string, p Passphrase) error {
	text, err := k.encode(p)
	if err == nil {
		err = create(path, text)
	}
	if err != nil {
		return fmt.Errorf("create key file %s: %w", path, err)
	}
	return nil
}

// nextSuffix ends the name of the file of the key that is to replace the one in a file.
const nextSuffix = ".next"

// NextPath returns the path at which the key that is to replace the one at path waits: beside that file, also if path is a link to it.
func NextPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	return path + nextSuffix, err
}

// Promote replaces the key file at path by the one at its [NextPath], and returns when that is durable. After a crash, path has the old key or
// the new one. The old key is then lost.
func Promote(path string) error {
	next, err := NextPath(path)
	if err == nil {
		err = os.Rename(next, strings.TrimSuffix(next, nextSuffix))
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(next))
	}
	if err != nil {
		return fmt.Errorf("replace key file %s: %w", path, err)
	}
	return nil
}

// Export writes the key to a new file at path with mode 0600, encrypted unless p is zero, and returns when it is durable. The directory
// must exist. An existing file is not changed; the error then wraps fs.ErrExist. A file system that gives other users access to an
// unencrypted file is an error that wraps [ErrPermissions]; the file is removed.
func (k Key) Export(path string, p Passphrase) error {
	text, err := k.encode(p)
	if err == nil {
		err = write(path, text)
	}
	if err != nil {
		return fmt.Errorf("export the key: %w", err)
	}
	if p.IsZero() {
		info, err := os.Stat(path)
		if err == nil {
			err = checkFile(path, info)
		}
		if err != nil {
			return errors.Join(err, remove(path))
		}
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// replacing begins the names of the temporary files of [Key.Replace].
const replacing = ".key-replacing-"

// Replace replaces the key file at path by one with this key, encrypted unless p is zero, and returns when it is durable. After a crash or
// an error, path has the old file or the new one. Only one process at a time may replace a file.
func (k Key) Replace(path string, p Passphrase) error {
	text, err := k.encode(p)
	if err == nil {
		err = replace(path, text)
	}
	if err != nil {
		return fmt.Errorf("replace key file %s: %w", path, err)
	}
	return nil
}

// encode returns the text of the key file, encrypted unless p is zero. It checks that the text has the key.
func (k Key) encode(p Passphrase) ([]byte, error) {
	text, err := encode(k.private())
	if err != nil || p.IsZero() {
		return text, err
	}
	if text, err = Encrypt(text, p); err != nil {
		return nil, err
	}
	private, err := decode(text, func(int) (Passphrase, error) { return p, nil })
	if err != nil || !private.Equal(k.private()) {
		return nil, errors.Join(errors.New("the encrypted key cannot be read again"), err)
	}
	return text, nil
}

// replace replaces the existing file at path, or the file that a link at path leads to.
func replace(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	dir := filepath.Dir(path)
	if err := errors.Join(err, checkDir(dir)); err != nil {
		return err
	}
	if err := checkFile(path, info); err != nil {
		return err
	}
	// A crash leaves the temporary file behind, and its key may be unencrypted.
	if err := removeReplacing(dir); err != nil {
		return err
	}
	temporary := filepath.Join(dir, replacing+rand.Text())
	if err = write(temporary, text); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, remove(temporary))
	}
	return atomicfile.SyncDir(dir)
}

// removeReplacing removes the temporary files of earlier calls of replace.
func removeReplacing(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), replacing) {
			err = errors.Join(err, remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// read returns the text of a file that only this user can read and replace, by check.
func read(path string, check func(string, fs.FileInfo) error) ([]byte, error) {
	// Check before opening: opening a pipe would wait for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := check(path, info); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Check again: the file may have been replaced.
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if err := errors.Join(check(path, info), checkDir(filepath.Dir(path))); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

func checkFile(path string, info fs.FileInfo) error { return checkMode(path, info, 0o077) }

func checkCredential(path string, info fs.FileInfo) error {
	if isRoots(info) {
		return checkMode(path, info, 0o037)
	}
	return checkFile(path, info)
}

// checkMode checks that path is a file of this user or of root, and has none of the permissions forbidden.
func checkMode(path string, info fs.FileInfo, forbidden fs.FileMode) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); hasModes && mode&forbidden != 0 {
		return &PermissionError{path, fmt.Sprintf("mode %04o lets other users read the key", mode), "chmod 600 " + quote(path)}
	}
	return checkOwner(path, info)
}

// checkDir checks that other users cannot write to the directory. They may list it, as in directories that mkdir creates: the existence of
// the key is not secret.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("directory of the key file: %w", err)
	}
	if mode := info.Mode().Perm(); hasModes && mode&0o022 != 0 {
		hint := "chmod 700 " + quote(dir)
		if info.Mode()&fs.ModeSticky != 0 { // a shared directory, such as /tmp
			hint = "mkdir -m 700 " + quote(filepath.Join(dir, "lmosd"))
		}
		return &PermissionError{dir, fmt.Sprintf("mode %04o lets other users replace the key file", mode), hint}
	}
	return checkOwner(dir, info)
}

// quote returns path as one word of a shell.
func quote(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@%") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// parse reads one PEM block with an Ed25519 key, with only space around it. Errors never quote the text.
func parse(text []byte) (ed25519.PrivateKey, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxFile)
	}
	block, rest := pem.Decode(text)
	switch {
	case block == nil || !bytes.HasPrefix(bytes.TrimSpace(text), []byte("-----BEGIN ")):
		return nil, errors.New("expected PEM that begins with -----BEGIN PRIVATE KEY-----")
	case len(bytes.TrimSpace(rest)) != 0:
		return nil, errors.New("the file has more than one key")
	case block.Type == "ENCRYPTED PRIVATE KEY":
		return nil, errors.New("encrypted PKCS#8 is not supported: expected PKCS#8, encrypted by age or not at all")
	case block.Type != blockType || len(block.Headers) != 0:
		return nil, fmt.Errorf("expected PKCS#8 (%s), got PEM block %q", blockType, block.Type)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the PKCS#8 structure is damaged")
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("expected an Ed25519 key, got %T", key)
	}
	return private, nil
}

// create creates a key file, completely or not at all. If the file exists, the error wraps fs.ErrExist.
func create(path string, text []byte) error {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return err
	}
	if err := checkDir(dir); err != nil {
		return err
	}
	// A link, not a rename: a rename would replace the key of another process.
	temporary := filepath.Join(dir, ".key-"+rand.Text())
	if err := write(temporary, text); err != nil {
		return errors.Join(err, remove(temporary))
	}
	err := os.Link(temporary, path)
	if err := errors.Join(err, remove(temporary)); err != nil {
		return err
	}
	return atomicfile.SyncDir(dir)
}

// makeDir creates dir and its missing parents durably.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return atomicfile.SyncDir(parent)
}

func encode(private ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der}), nil
}

// write creates a file and returns when it is durable.
func write(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
