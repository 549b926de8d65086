package credentials

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/interacttest"
)

func TestCredentialsFileIsReadStrictly(t *testing.T) {
	t.Parallel()
	const good = `"origin": "http://127.0.0.1:9000"`
	tests := []struct{ name, text, says string }{
		{"empty object", `{}`, ""},
		{"token", `{"urn:x": {"sc": {` + good + `, "token": "hunter2"}}}`, ""},
		{"login", `{"urn:x": {"sc": {` + good + `, "username": "me", "password": "hunter2"}}}`, ""},
		{"not JSON", `{"urn:x": {"sc": {"token": hunter2}}}`, "line 1"},
		{"a name twice", `{"urn:x": {"sc": {` + good + `, "token": "hunter2", "token": "b"}}}`, "line 1"},
		{"unknown member", `{"urn:x": {"sc": {` + good + `, "hunter2": "x"}}}`, "unknown member"},
		{"wrong type", `{"urn:x": {"sc": {` + good + `, "token": 42}}}`, "wrong type"},
		{"wrong level", `{"urn:x": {"token": "hunter2"}}`, ""},
		{"an array", `["hunter2"]`, "unexpected structure"},
		{"no origin", `{"urn:x": {"sc": {"token": "hunter2"}}}`, "origin"},
		{"origin with a path", `{"urn:x": {"sc": {"origin": "http://h/hunter2", "token": "t"}}}`, "origin"},
		{"origin with a user", `{"urn:x": {"sc": {"origin": "http://hunter2@h", "token": "t"}}}`, "origin"},
		{"origin of another scheme", `{"urn:x": {"sc": {"origin": "ftp://h", "token": "t"}}}`, "origin"},
		{"no secret", `{"urn:x": {"sc": {` + good + `}}}`, "token"},
		{"control character", `{"urn:x": {"sc": {` + good + `, "token": "hunter2\n"}}}`, "control"},
		{"colon in the user name", `{"urn:x": {"sc": {` + good + `, "username": "a:b", "password": "hunter2"}}}`,
			"colon"},
		{"the key of a client", `{"urn:x": {"sc": {` + good + `, "username": "https://me/x", "private_key_file": "a.pem", "kid": "1", "aud": "https://as"}}}`, ""},
		{"a key without a client", `{"urn:x": {"sc": {` + good + `, "private_key_file": "hunter2.pem"}}}`, "the id of the client"},
		{"an id of no key", `{"urn:x": {"sc": {` + good + `, "username": "me", "password": "hunter2", "kid": "1"}}}`, "private_key_file"},
		{"a key in two lines", `{"urn:x": {"sc": {` + good + `, "username": "me", "private_key_file": "hunter2\n.pem"}}}`, "control"},
		{"too large", `{"a": "` + strings.Repeat("hunter2", 1<<18) + `"}`, "1 MiB"},
	}
	for _, tt := range tests {
		path := writeSecrets(t, tt.text)
		_, err := Load(path)
		wrong := tt.says != "" || tt.name == "wrong level"
		if !wrong {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		e := wantError(t, err, interact.ConfigInvalid)
		if !strings.Contains(e.Error(), tt.says) || !strings.Contains(e.Error(), path) {
			t.Errorf("%s: got %v", tt.name, e)
		}
		if strings.Contains(everything(e), "hunter2") || strings.Contains(everything(e), "42") &&
			tt.name == "wrong type" && !strings.Contains(path, "42") {
			t.Errorf("%s: the secret is shown: %s", tt.name, everything(e))
		}
	}
}

func TestCredentialsFileMustBePrivate(t *testing.T) {
	t.Parallel()
	path := writeSecrets(t, `{}`)
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o666: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if ok && err != nil {
			t.Errorf("%04o: %v", mode, err)
		}
		if !ok {
			if e := wantError(t, err, interact.KeyPermissions); e.Hint != "chmod 600 "+path {
				t.Errorf("hint %q", e.Hint)
			}
		}
	}
}

func TestCredentialsFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	if _, err := Load(filepath.Join(t.TempDir(), "absent.json")); err != nil {
		t.Errorf("absent: %v", err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir)
	wantError(t, err, interact.ConfigFile)
	_, err = Load(filepath.Join(writeSecrets(t, `{}`), "below.json"))
	wantError(t, err, interact.ConfigFile)
}

func TestCredentialsFollowTheFile(t *testing.T) {
	t.Parallel()
	const form = "http://127.0.0.1:9000/x"
	text := func(token string) string {
		return fmt.Sprintf(`{"urn:x": {"sc": {"origin": "HTTP://127.0.0.1:9000/", "token": %q}}}`, token)
	}
	path := writeSecrets(t, text("one"))
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	change := func(text string, at int64) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(step, want string) {
		t.Helper()
		if got, err := c.Lookup("urn:x", "sc", form); got.Token != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", step, got.Token, err, want)
		}
	}
	expect("at first", "one")
	change(text("two"), 1)
	expect("changed", "two")
	change("{", 2)
	expect("broken", "")
	change(text("two"), 3)
	expect("mended", "two")
	dir := filepath.Dir(path)
	if err := errors.Join(os.Rename(dir, dir+"2"), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	expect("where it cannot be read", "")
	if err := errors.Join(os.Remove(dir), os.Rename(dir+"2", dir)); err != nil {
		t.Fatal(err)
	}
	expect("as it was", "two")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("readable by all", "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("gone", "")
}

func TestLookup(t *testing.T) {
	t.Parallel()
	c, err := Load(writeSecrets(t, `{"urn:x": {"sc": {"origin": "https://H.example:443", "token": "t"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, thing, scheme, href string
		ok                        bool
	}{
		{"same origin", "urn:x", "sc", "https://h.example/a/{b}", true},
		{"same origin in another spelling", "urn:x", "sc", "HTTPS://h.Example:443?q", true},
		{"other thing", "urn:y", "sc", "https://h.example/", false},
		{"other scheme", "urn:x", "other", "https://h.example/", false},
		{"in the clear", "urn:x", "sc", "http://h.example/", false},
		{"other port", "urn:x", "sc", "https://h.example:444/", false},
		{"other host", "urn:x", "sc", "https://h.example.evil/", false},
		{"host as a user", "urn:x", "sc", "https://h.example@evil/", false},
		{"a template for a host", "urn:x", "sc", "https://{h}/", false},
	}
	for _, tt := range tests {
		if _, err := c.Lookup(tt.thing, tt.scheme, tt.href); (err == nil) != tt.ok {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	if _, err := (Store{}).Lookup("urn:x", "sc", "https://h.example"); err == nil {
		t.Error("the zero value has a secret")
	}
}

func TestCredentialsAreNotPrinted(t *testing.T) {
	t.Parallel()
	c, err := Load(writeSecrets(t, `{"urn:x": {"sc": {"origin": "http://h", "token": "hunter2",
		"key": "hunter2", "username": "hunter2"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(map[string]any{"c": c})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "c", c, "o", struct{ C Store }{c})
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%v %+v %#v %s %q", c, c, c, c, c), string(asJSON),
		log.String()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("shown: %s", text)
		}
	}
	if got := fmt.Sprint(c, Store{}); got != "credentials of 1 things no credentials" {
		t.Errorf("got %s", got)
	}
}

// A private key is read from the folder of the credentials, in each form that openssl writes, and is never part of an error.
func TestPrivateKeys(t *testing.T) {
	t.Parallel()
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	exchange, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	pkcs8 := func(key any) string {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return block("PRIVATE KEY", der, err)
	}
	der, err := x509.MarshalECPrivateKey(curve)
	sec1 := block("EC PRIVATE KEY", der, err)
	path := writeSecrets(t, `{"urn:x": {"sc": {"origin": "https://as", "username": "me", "private_key_file": "keys/me.pem"}}}`)
	file := filepath.Join(filepath.Dir(path), "keys", "me.pem")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ text, says string }{
		"PKCS #8":           {pkcs8(curve), ""},
		"SEC 1, parameters": {block("EC PARAMETERS", []byte{6, 0}, nil) + sec1, ""},
		"PKCS #1":           {block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(big), nil), ""},
		"encrypted":         {block("ENCRYPTED PRIVATE KEY", der, nil), "encrypted"},
		"damaged":           {block("PRIVATE KEY", der[:40], nil), "damaged"},
		"for exchange":      {pkcs8(exchange), "not a signing key"},
		"a certificate":     {block("CERTIFICATE", der, nil), "no PEM private key"},
		"no PEM":            {"hunter2", "no PEM private key"},
		"too large":         {strings.Repeat("\n", maxKey) + sec1, "no PEM private key"},
		"not there":         {"", "does not exist"},
		"for all to read":   {sec1, "can be read by others"},
	} {
		mode := os.FileMode(0o600)
		if strings.Contains(test.says, "others") {
			mode = 0o644
		}
		_ = os.Remove(file)
		if test.text != "" {
			if err := os.WriteFile(file, []byte(test.text), mode); err != nil {
				t.Fatal(err)
			}
		}
		c, err := store.Lookup("urn:x", "sc", "https://as/token")
		if err != nil || !c.Confidential() {
			t.Fatalf("%s: %v", name, err)
		}
		key, err := c.PrivateKey()
		if (err == nil) != (test.says == "") || err == nil && key.Public() == nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "me.pem") || strings.Contains(err.Error(), filepath.Dir(file)) ||
			strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"urn:x": {"sc": {"origin": "http://127.0.0.1:9000", "token": "t"}}}`))
	f.Add([]byte(`{"urn:x": {"sc": {"origin": "http://[::1]", "username": "u", "password": "p"}}}`))
	f.Add([]byte(`{"urn:x": null}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"":{"":{"origin":"x"}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parseCredentials(raw)
		if err != nil {
			return
		}
		for thing, schemes := range all {
			for scheme, c := range schemes {
				if c.Origin != OriginOf(c.Origin) || c.Origin == "" {
					t.Errorf("%q %q has the origin %q", thing, scheme, c.Origin)
				}
				if strings.IndexFunc(c.Token+c.Key+c.Username+c.Password, isControl) >= 0 {
					t.Errorf("%q %q cannot go into a header", thing, scheme)
				}
			}
		}
	})
}

func writeSecrets(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// everything is all that an error can show.
func everything(e *interact.Error) string { return fmt.Sprintf("%v %+v %s", e, *e, e.Hint) }

var wantError = interacttest.WantError
