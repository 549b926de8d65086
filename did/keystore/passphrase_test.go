package keystore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
)

func passphrase(t testing.TB, text string) Passphrase {
	t.Helper()
	p, err := NewPassphrase(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// always answers each call with one passphrase, up to three times.
func always(p Passphrase) Ask {
	return func(wrong int) (Passphrase, error) {
		if wrong == 3 {
			return Passphrase{}, ErrPassphrase
		}
		return p, nil
	}
}

// sealed returns plain encrypted for recipients, in armor.
func sealed(t testing.TB, plain []byte, recipients ...age.Recipient) []byte {
	t.Helper()
	var b bytes.Buffer
	a := armor.NewWriter(&b)
	w, err := age.Encrypt(a, recipients...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// scrypt returns a recipient with a work factor that is not that of lmosd.
func scrypt(t testing.TB, text string, work int) age.Recipient {
	t.Helper()
	r, err := age.NewScryptRecipient(text)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(work)
	return r
}

func TestEncrypt(t *testing.T) {
	t.Parallel()
	p := passphrase(t, "correct horse")
	text, err := Encrypt([]byte("plain"), p)
	if err != nil || !bytes.HasPrefix(text, []byte("-----BEGIN AGE ENCRYPTED FILE-----\n")) || !isEncrypted(text) {
		t.Fatalf("%s, %v", text, err)
	}
	if plain, err := Decrypt(text, p); err != nil || string(plain) != "plain" {
		t.Errorf("%q, %v", plain, err)
	}
	if again, _ := Encrypt([]byte("plain"), p); bytes.Equal(again, text) {
		t.Error("two files are equal")
	}
	if _, err := Decrypt(text, passphrase(t, "wrong horse")); err != ErrPassphrase {
		t.Errorf("wrong passphrase: %v", err)
	}
	if _, err := Decrypt(text, Passphrase{}); err != ErrLocked {
		t.Errorf("no passphrase: %v", err)
	}
	if _, err := Encrypt([]byte("plain"), Passphrase{}); err == nil {
		t.Error("encrypted without a passphrase")
	}
	// The work factor is in the header, which is in the armor.
	r, err := age.ExtractHeader(armor.NewReader(bytes.NewReader(text)))
	if err != nil || !strings.Contains(string(r), " 15\n") {
		t.Errorf("header %q, %v", r, err)
	}
}

func TestDecryptReadsAge(t *testing.T) {
	t.Parallel()
	for _, work := range []int{1, 10, maxWorkFactor} {
		text := sealed(t, []byte("plain"), scrypt(t, "a", work))
		for name, text := range map[string][]byte{"as written": text, "space around": append([]byte("\n "), append(bytes.Clone(text), " \n\n"...)...),
			"lines of Windows": bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))} {
			if plain, err := Decrypt(text, passphrase(t, "a")); err != nil || string(plain) != "plain" {
				t.Errorf("work factor %d, %s: %q, %v", work, name, plain, err)
			}
			if work == maxWorkFactor {
				break
			}
		}
	}
}

func TestDecryptRejects(t *testing.T) {
	t.Parallel()
	good := sealed(t, []byte("plain"), scrypt(t, "a", 1))
	x, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(good)
	body := bytes.LastIndex(bytes.TrimSpace(changed), []byte("\n")) - 6
	changed[body] ^= 1
	for name, c := range map[string]struct {
		text []byte
		want error
	}{
		"empty":              {nil, errDamaged},
		"text":               {[]byte("swordfish"), errDamaged},
		"armor only":         {[]byte(armor.Header + "\n" + armor.Footer + "\n"), errDamaged},
		"cut":                {good[:len(good)/2], errDamaged},
		"text behind":        {append(bytes.Clone(good), "swordfish"...), errDamaged},
		"a changed byte":     {changed, errDamaged},
		"for a key":          {sealed(t, []byte("plain"), x.Recipient()), errDamaged},
		"much work":          {sealed(t, nil, scrypt(t, "a", maxWorkFactor+1)), errDamaged},
		"another passphrase": {sealed(t, []byte("plain"), scrypt(t, "b", 1)), ErrPassphrase},
	} {
		if plain, err := Decrypt(c.text, passphrase(t, "a")); err != c.want || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: %q, %v; want %v", name, plain, err, c.want)
		}
	}
	if _, err := Decrypt(bytes.Repeat([]byte("x"), maxFile+1), passphrase(t, "a")); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("large text: %v", err)
	}
}

func TestPassphrasesAreChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "empty", "\xff\xfeswordfish": "UTF-8", strings.Repeat("swordfish", 200): "1024 bytes"} {
		if _, err := NewPassphrase(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPassphraseIsNotPrinted(t *testing.T) {
	t.Parallel()
	p := passphrase(t, "swordfish")
	var out bytes.Buffer
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, format, p)
		fmt.Fprintf(&out, format, &p)
	}
	b, err := json.Marshal(map[string]any{"p": p})
	out.Write(b)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "p", p)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "p", p)
	if err != nil || strings.Contains(out.String(), "swordfish") || strings.Contains(out.String(), "73776f7264") {
		t.Errorf("%s, %v", out.String(), err)
	}
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	path, k := keyPath(t), newKey(t)
	if _, err := Unlock(path, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	never := func(int) (Passphrase, error) { return Passphrase{}, errors.New("asked") }
	if got, err := Unlock(path, never); err != nil || got.DID() != k.DID() {
		t.Errorf("not encrypted: %v, %v", got, err)
	}
	p := passphrase(t, "correct horse")
	if err := k.Replace(path, p); err != nil {
		t.Fatal(err)
	}
	onlyFile(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("no passphrase: %v", err)
	}
	second := func(wrong int) (Passphrase, error) {
		if wrong == 0 {
			return passphrase(t, "wrong horse"), nil
		}
		return p, nil
	}
	if got, err := Unlock(path, second); err != nil || got.DID() != k.DID() {
		t.Errorf("second attempt: %v, %v", got, err)
	}
	if _, err := Unlock(path, always(passphrase(t, "wrong"))); !errors.Is(err, ErrPassphrase) {
		t.Errorf("wrong passphrase: %v", err)
	}
	if _, err := Unlock(path, never); err == nil || !strings.HasSuffix(err.Error(), "asked") {
		t.Errorf("no passphrase given: %v", err)
	}
	if err := os.WriteFile(path, sealed(t, []byte("no key"), scrypt(t, "correct horse", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Unlock(path, always(p)); err == nil || !strings.Contains(err.Error(), "expected PEM") {
		t.Errorf("another content: %v", err)
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	path, k := keyPath(t), newKey(t)
	if err := k.Replace(path, Passphrase{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	// A crash of an earlier process left a file.
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), replacing+"x"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.pem")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	p := passphrase(t, "correct horse")
	if err := k.Replace(link, p); err != nil {
		t.Fatal(err)
	}
	onlyFile(t, path)
	if got, err := Unlock(path, always(p)); err != nil || got.DID() != k.DID() {
		t.Errorf("behind the link: %v, %v", got, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is a file now, %v", err)
	}
	if err := k.Replace(path, Passphrase{}); err != nil {
		t.Fatal(err)
	}
	if got, err := Open(path); err != nil || got.DID() != k.DID() {
		t.Errorf("without a passphrase again: %v, %v", got, err)
	}
	chmod(t, filepath.Dir(path), 0o777)
	if err := k.Replace(path, p); !errors.Is(err, ErrPermissions) {
		t.Errorf("directory that others can write: %v", err)
	}
}

// replaceForever is an environment variable: with it, the test program replaces the file at that path by two texts in turn.
const replaceForever = "LMOSD_TEST_REPLACE_KEY"

func replaceUntilKilled(path string) error {
	plain, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	locked, err := os.ReadFile(path + ".locked")
	if err != nil {
		return err
	}
	for {
		if err := errors.Join(replace(path, locked), replace(path, plain)); err != nil {
			return err
		}
	}
}

func TestAKilledReplaceKeepsTheKey(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path, k := keyPath(t), newKey(t)
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".locked", sealed(t, plain, scrypt(t, "a", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	plainSeen, lockedSeen := 0, 0
	for range 40 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), replaceForever+"="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+mathrand.IntN(60)) * time.Millisecond) // the time of the kill is the subject of the test
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		asked := 0
		got, err := Unlock(path, func(wrong int) (Passphrase, error) {
			if asked++; wrong > 0 {
				return Passphrase{}, ErrPassphrase
			}
			return passphrase(t, "a"), nil
		})
		if err != nil || got.DID() != k.DID() {
			t.Fatalf("the key is lost: %v, %v", got, err)
		}
		plainSeen, lockedSeen = plainSeen+1-asked, lockedSeen+asked
		// The next process begins with the unencrypted file.
		if err := k.Replace(path, Passphrase{}); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), replacing+"*")); err != nil || len(left) > 0 {
			t.Fatalf("left behind: %v, %v", left, err)
		}
	}
	t.Logf("old file %d times, new file %d times", plainSeen, lockedSeen)
}

func TestExport(t *testing.T) {
	t.Parallel()
	dir, k := t.TempDir(), newKey(t)
	p := passphrase(t, "correct horse")
	for name, p := range map[string]Passphrase{"plain": {}, "encrypted": p} {
		path := filepath.Join(dir, name)
		if err := k.Export(path, p); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
		before, err := os.ReadFile(path)
		if err != nil || isEncrypted(before) == p.IsZero() {
			t.Errorf("%s: %s, %v", name, before, err)
		}
		if got, err := decode(before, always(p)); err != nil || !got.Equal(k.private()) {
			t.Errorf("%s: %v", name, err)
		}
		other, err := New()
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Export(path, p); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s, again: %v", name, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}
	if err := k.Export(filepath.Join(dir, "missing", "key"), p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestCredentialModes(t *testing.T) {
	t.Parallel()
	for mode, accepted := range map[fs.FileMode]bool{0o400: true, 0o440: os.Geteuid() == 0, 0o444: false, 0o640: os.Geteuid() == 0, 0o660: false, 0o450: false} {
		path, k := keyPath(t), newKey(t)
		if err := k.Save(path); err != nil {
			t.Fatal(err)
		}
		chmod(t, path, mode)
		// A file of root has the bits of an ACL; one of another user has those of a group.
		if got, err := UnlockCredential(path, nil); (err == nil) != accepted || err != nil && !errors.Is(err, ErrPermissions) {
			t.Errorf("mode %v: %v, %v", mode, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	plain := pemOf(f, blockType, ownDER(f))
	good := sealed(f, plain, scrypt(f, "a", 1))
	f.Add(plain)
	f.Add(good)
	f.Add(good[:len(good)-20])
	f.Add(sealed(f, []byte("no key"), scrypt(f, "a", 1)))
	f.Add([]byte(armor.Header + "\n" + armor.Footer))
	p := passphrase(f, "a")
	f.Fuzz(func(t *testing.T, text []byte) {
		private, err := decode(text, func(wrong int) (Passphrase, error) {
			if wrong > 0 {
				return Passphrase{}, ErrPassphrase
			}
			return p, nil
		})
		if err != nil {
			if private != nil {
				t.Fatal("a key and an error")
			}
			return
		}
		if _, err := encode(private); err != nil {
			t.Fatal(err)
		}
	})
}
