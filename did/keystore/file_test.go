package keystore

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
)

// openAndPrint is an environment variable: with it, the test program opens the key at that path, prints its DID and exits.
const openAndPrint = "LMOSD_TEST_OPEN_KEY"

func TestMain(m *testing.M) {
	if path := os.Getenv(openAndPrint); path != "" {
		k, err := Open(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(k)
		return
	}
	if path := os.Getenv(replaceForever); path != "" {
		fmt.Fprintln(os.Stderr, replaceUntilKilled(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// keyPath returns a path in a directory that does not exist yet.
func keyPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "data", "node", "identity.pem")
}

func TestOpenCreatesTheKeyOnce(t *testing.T) {
	t.Parallel()
	path := keyPath(t)
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) != 119 || !bytes.HasPrefix(text, []byte("-----BEGIN PRIVATE KEY-----\n")) {
		t.Errorf("%d bytes", len(text))
	}
	for name, want := range map[string]fs.FileMode{
		path: 0o600, filepath.Dir(path): 0o700 | fs.ModeDir, filepath.Dir(filepath.Dir(path)): 0o700 | fs.ModeDir,
	} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	second, err := Open(path)
	if err != nil || second.DID() != first.DID() {
		t.Errorf("opened again: %v, %v; want %v", second, err, first)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, text) {
		t.Errorf("the file was changed, %v", err)
	}
	onlyFile(t, path)
}

// onlyFile checks that no other file is next to path.
func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("directory has %v, %v", entries, err)
	}
}

func TestTwoKeysDiffer(t *testing.T) {
	t.Parallel()
	a, err := Open(keyPath(t))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Open(keyPath(t)); err != nil || a.DID() == b.DID() {
		t.Errorf("%v and %v, %v", a, b, err)
	}
}

func TestConcurrentOpensGetOneKey(t *testing.T) {
	t.Parallel()
	path := keyPath(t)
	keys := make([]*Key, 32)
	var g errgroup.Group
	for i := range keys {
		g.Go(func() (err error) {
			keys[i], err = Open(path)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if k.DID() != keys[0].DID() {
			t.Errorf("%v and %v", k, keys[0])
		}
	}
	onlyFile(t, path)
}

func TestManyProcessesGetOneKey(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := keyPath(t)
	printed := make([]string, 4)
	var g errgroup.Group
	for i := range printed {
		g.Go(func() error {
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), openAndPrint+"="+path)
			out, err := cmd.Output()
			printed[i] = string(out)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	k, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range printed {
		if text != string(k.DID())+"\n" {
			t.Errorf("a process has %q, the file %v", text, k)
		}
	}
	onlyFile(t, path)
}

func TestPermissiveModesAreRejected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		file, dir fs.FileMode
		hint      string // empty: accepted
	}{
		{"closed", 0o600, 0o700, ""},
		{"read-only", 0o400, 0o500, ""},
		{"directory that can be listed", 0o600, 0o755, ""},
		{"others read the file", 0o644, 0o700, "chmod 600"},
		{"the group reads the file", 0o640, 0o700, "chmod 600"},
		{"others write the file", 0o602, 0o700, "chmod 600"},
		{"others execute the file", 0o601, 0o700, "chmod 600"},
		{"the group writes the directory", 0o600, 0o770, "chmod 700"},
		{"others write the directory", 0o600, 0o702, "chmod 700"},
		{"a directory for all users", 0o600, 0o777 | fs.ModeSticky, "mkdir -m 700"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := keyPath(t)
			if _, err := Open(path); err != nil {
				t.Fatal(err)
			}
			chmod(t, path, c.file)
			chmod(t, filepath.Dir(path), c.dir)
			_, err := Open(path)
			if c.hint == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e, ok := errors.AsType[*PermissionError](err)
			if !ok || !errors.Is(err, ErrPermissions) || !strings.HasPrefix(e.Hint, c.hint+" "+filepath.Dir(path)) {
				t.Fatalf("%v", err)
			}
			if !strings.Contains(err.Error(), e.Path) || !strings.Contains(err.Error(), "mode 0") {
				t.Errorf("the message has no cause: %v", err)
			}
		})
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	// The temporary directory is removed at the end.
	t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
}

func TestOpenRejectsWorldWritableDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's open")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	chmod(t, dir, 0o777)
	_, err := Open(filepath.Join(dir, "identity.pem"))
	e, ok := errors.AsType[*PermissionError](err)
	if !ok || !strings.HasSuffix(e.Hint, `/it'\''s open'`) || !strings.HasPrefix(e.Hint, "chmod 700 '/") {
		t.Errorf("%v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestOpenRejectsOtherFiles(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(path string) error{
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"dangling link": func(path string) error { return os.Symlink("nowhere", path) },
		"pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device":        func(path string) error { return os.Symlink(os.DevNull, path) },
		"empty file":    func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"large file":    func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), maxFile+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "identity.pem")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if k, err := Open(path); err == nil {
				t.Errorf("opened %v", k)
			}
		})
	}
}

func TestOpenFollowsALink(t *testing.T) {
	t.Parallel()
	path := keyPath(t)
	k, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.pem")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if other, err := Open(link); err != nil || other.DID() != k.DID() {
		t.Errorf("%v, %v; want %v", other, err, k)
	}
}

func TestDiskErrors(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "identity.pem")); err == nil {
		t.Error("a file was taken for a directory")
	}
	if os.Geteuid() == 0 || runtime.GOOS == "windows" {
		return // root may write to every directory
	}
	closed := filepath.Join(root, "closed")
	if err := os.Mkdir(closed, 0o500); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(closed, "identity.pem"))
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrPermissions) {
		t.Errorf("read-only directory: %v", err)
	}
}

func pemOf(t testing.TB, typ string, der []byte) []byte {
	t.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der})
}

func ownDER(t testing.TB) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	good := pemOf(t, blockType, ownDER(t))
	for name, text := range map[string][]byte{
		"as written":          good,
		"space around":        append(append([]byte("\n \n"), good...), "\n\n "...),
		"lines of Windows":    bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n")),
		"without a last line": bytes.TrimSpace(good),
	} {
		if private, err := parse(text); err != nil || !bytes.Equal(private.Seed(), seed[:]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRejects(t *testing.T) {
	t.Parallel()
	der := ownDER(t)
	good := pemOf(t, blockType, der)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecDER, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		text []byte
		want string
	}{
		{"empty", nil, "expected PEM"},
		{"raw seed", seed[:], "expected PEM"},
		{"DER without PEM", der, "expected PEM"},
		{"text before", append([]byte("key:\n"), good...), "expected PEM"},
		{"text behind", append(bytes.Clone(good), "end"...), "more than one"},
		{"two keys", append(bytes.Clone(good), good...), "more than one"},
		{"cut", good[:60], "expected PEM"},
		{"encrypted", pemOf(t, "ENCRYPTED PRIVATE KEY", der), "encrypted"},
		{"OpenSSH", pemOf(t, "OPENSSH PRIVATE KEY", der), "PKCS#8"},
		{"certificate", pemOf(t, "CERTIFICATE", der), "PKCS#8"},
		{"headers", pem.EncodeToMemory(&pem.Block{Type: blockType, Headers: map[string]string{"A": "b"}, Bytes: der}), "PKCS#8"},
		{"damaged", pemOf(t, blockType, der[:40]), "damaged"},
		{"P-256", pemOf(t, blockType, ecDER), "Ed25519"},
		{"too large", bytes.Repeat([]byte("x"), maxFile+1), "larger than"},
	} {
		_, err := parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
			continue
		}
		checkHidesKey(t, err.Error())
	}
}

func FuzzParse(f *testing.F) {
	der := ownDER(f)
	f.Add(pemOf(f, blockType, der))
	f.Add(pemOf(f, blockType, der[:20]))
	f.Add(pemOf(f, "CERTIFICATE", der))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----"))
	f.Fuzz(func(t *testing.T, text []byte) {
		private, err := parse(text)
		if err != nil {
			return
		}
		again, err := encode(private)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parse(again); err != nil || !back.Equal(private) {
			t.Fatalf("got another key, %v", err)
		}
	})
}

// The next key waits beside the present one, also if that is reached by a link, and replaces it as a whole.
func TestPromote(t *testing.T) {
	t.Parallel()
	path := keyPath(t)
	old, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.pem")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	p, err := NewPassphrase("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	if err := Promote(link); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a next key: %v", err)
	}
	next, err := NextPath(link)
	if err != nil || filepath.Dir(next) != filepath.Dir(path) {
		t.Fatalf("the next key is at %s, %v", next, err)
	}
	fresh, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.SaveEncrypted(next, p); err != nil {
		t.Fatal(err)
	}
	if err := fresh.SaveEncrypted(next, p); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing file was replaced: %v", err)
	}
	if k, err := Open(path); err != nil || k.DID() != old.DID() {
		t.Errorf("before: %v, %v", k, err)
	}
	if err := Promote(link); err != nil {
		t.Fatal(err)
	}
	if k, err := Unlock(path, func(int) (Passphrase, error) { return p, nil }); err != nil || k.DID() != fresh.DID() {
		t.Errorf("after: %v, %v", k, err)
	}
	onlyFile(t, path)
}
