package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/publication"
)

// A secretForm is a text or bytes that show a secret.
type secretForm struct {
	name string
	form []byte
}

// formsOf returns the forms in which a secret could leak. Each is shorter than the whole secret, because neighbors change the digits at its ends.
func formsOf(secret []byte) (all []secretForm) {
	add := func(name, form string) { all = append(all, secretForm{name, []byte(form)}) }
	add("bytes", string(secret))
	add("hex", hex.EncodeToString(secret))
	add("HEX", strings.ToUpper(hex.EncodeToString(secret)))
	add("base58", did.EncodeBase58(secret)[1:])
	for offset := range 3 { // of the secret in the encoded bytes
		padded := append(make([]byte, offset), secret...)
		inner := func(text string) string { return text[4 : len(text)-4] }
		add("base64", inner(base64.RawStdEncoding.EncodeToString(padded)))
		add("base64url", inner(base64.RawURLEncoding.EncodeToString(padded)))
	}
	return all
}

// leaks returns the forms of a secret that text has.
func leaks(text []byte, forms []secretForm) (found []string) {
	for _, f := range forms {
		if bytes.Contains(text, f.form) {
			found = append(found, f.name)
		}
	}
	return found
}

func TestLeaksAreFound(t *testing.T) {
	t.Parallel()
	seed := bytes.Repeat([]byte{0xa7, 0x31, 0xfe, 0x04}, 8)
	forms := formsOf(seed)
	for name, text := range map[string]string{"bytes": "x" + string(seed), "hex": hex.EncodeToString(seed), "HEX": strings.ToUpper(hex.EncodeToString(seed)),
		"base58": "z" + did.EncodeBase58(seed), "base64": base64.StdEncoding.EncodeToString(append([]byte("PKCS#8 "), seed...)),
		"base64url": base64.URLEncoding.EncodeToString(append([]byte("12345"), seed...))} {
		if found := leaks([]byte(text), forms); len(found) == 0 || found[0] != name {
			t.Errorf("%s: found %v", name, found)
		}
	}
}

// Neither the seed of the key nor its passphrase is in an output, a log, an answer of the API, a crash dump, or a file other than the key. A caller secret
// is in the output of the command that made it, in its own file, and nowhere else.
func TestKeysDoNotLeak(t *testing.T) {
	t.Parallel()
	seed := [32]byte([]byte("0123456789abcdefGHIJKLMNOPQRSTUV"))
	const passphrase = "correct horse battery staple"
	k, err := keystore.FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	x := newUser(t)
	if err := k.Save(filepath.Join(x.home, "n", "identity.pem")); err != nil {
		t.Fatal(err)
	}
	source := x.file("passphrase", passphrase+"\n")
	var texts []string
	shell := func(line string, want int) {
		t.Helper()
		r := x.typed(line)
		if r.code != want {
			t.Errorf("%s: exit code %d, want %d: %s%s", line, r.code, want, r.out, r.errors)
		}
		texts = append(texts, r.out, r.errors)
	}
	shell("lmosd keys passphrase -v --data-dir n --new fd:3 3< "+source, 0)
	shell("lmosd id -v --data-dir n", cli.ExitRefused)
	shell("LMOSD_NODE__PASSPHRASE=fd:3 lmosd id -v -o json --data-dir n 3< "+source, 0)
	shell("LMOSD_NODE__PASSPHRASE=fd:3 lmosd keys export x.age -v --data-dir n --passphrase fd:4 3< "+source+" 4< "+source, 0)
	shell("echo wrong | LMOSD_NODE__PASSPHRASE=fd:0 lmosd keys passphrase -v --data-dir n --remove", cli.ExitRefused)

	p := x.typing("exec lmosd run --profile test --data-dir n --ready-file r --telemetry.log.level debug --node.passphrase fd:3 3< " + source)
	eventually(t, "the node serves", func() bool { return !gone(filepath.Join(x.home, "r")) })
	at := *x
	at.env = append(append([]string{}, x.env...), "LMOSD_DATA_DIR="+filepath.Join(x.home, "n"))
	weather := at.weather()
	var made api.Publication
	if err := json.Unmarshal([]byte(at.ok("publish", "--caller-secret", "-o", "json", weather)), &made); err != nil || made.CallerSecret == "" {
		t.Fatalf("%+v, %v", made, err)
	}
	shown := at.ok("publish", "--caller-secret", weather)
	before := made.CallerSecret
	made.CallerSecret = regexp.MustCompile("lmos_caller_[A-Z2-7]+").FindString(shown)
	contains(t, shown, "caller secret")
	if made.CallerSecret == "" || made.CallerSecret == before {
		t.Errorf("the secrets are %q and %q", before, made.CallerSecret)
	}
	contains(t, at.fails(cli.ExitUsage, "expose", "--caller-secret", "exec:cat"), "--caller-secret is for a web server")
	texts = append(texts, at.ok("publish", weather), at.ok("publish", "-o", "json", weather), at.ok("show", "-o", "json", "weather"),
		at.ok("show", "--td", "weather"), at.ok("audit", "ls", "-o", "json"), at.ok("status", "-o", "json"), at.ok("id", "-o", "json"), at.ok("config", "show", "-o", "json"))
	contains(t, at.fails(cli.ExitConflict, "keys", "passphrase", "--remove"), "LMOS-3011", "stop the node first")
	shell("curl -s --unix-socket n/lmosd.sock http://x/metrics", 0)
	for _, file := range []string{"cmdline", "environ"} {
		if text, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(pidOf(t, x)), file)); err == nil { // only Linux has it
			texts = append(texts, string(text))
		}
	}
	p.signal(syscall.SIGABRT) // its goroutines go to standard error
	p.wait()
	contains(t, p.talk.String(), "goroutine 1 ", "published")
	texts = append(texts, p.out.String(), p.talk.String())

	secrets := map[string][]secretForm{"caller secret": formsOf([]byte(made.CallerSecret)), "seed": formsOf(seed[:]), "passphrase": formsOf([]byte(passphrase))}
	for what, forms := range secrets {
		for i, text := range texts {
			if found := leaks([]byte(text), forms); len(found) > 0 {
				t.Errorf("output %d has the %s as %v", i, what, found)
			}
		}
		err := filepath.WalkDir(x.home, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || path == source || what == "caller secret" && d.Name() == publication.CallerSecretsFile {
				return err
			}
			text, err := os.ReadFile(path)
			if found := leaks(text, forms); len(found) > 0 {
				t.Errorf("%s has the %s as %v", path, what, found)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// keyFiles are the names of files that have a private key: of a node, of the root and of the issuers of an organization, and for its recovery.
var keyFiles = regexp.MustCompile(`^(identity|root|issuer)\.pem$|\.recovery$`)

// noSeedLeaks reports the files below a folder of nodes, other than key files, and the outputs that have the seed of a key of these nodes.
func noSeedLeaks(t *testing.T, folder string, outputs ...string) {
	t.Helper()
	texts, seeds := map[string][]byte{}, map[string][]secretForm{}
	for i, text := range outputs {
		texts[fmt.Sprintf("output %d", i)] = []byte(text)
	}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if block, _ := pem.Decode(text); err == nil && block != nil && block.Type == "PRIVATE KEY" && keyFiles.MatchString(d.Name()) {
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			seeds[path] = formsOf(key.(ed25519.PrivateKey).Seed())
			text = bytes.ReplaceAll(text, pem.EncodeToMemory(block), nil) // what is beside the key
		}
		texts[path] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, forms := range seeds {
		for where, text := range texts {
			if found := leaks(text, forms); len(found) > 0 {
				t.Errorf("%s has the seed of %s as %v", where, key, found)
			}
		}
	}
	const nodes, organizations = 7, 2 // each organization has a root key, a recovery key and an issuing key
	if len(seeds) < nodes+3*organizations || len(texts) < 5*nodes {
		t.Errorf("%d keys and %d texts were found: %q", len(seeds), len(texts), slices.Sorted(maps.Keys(seeds)))
	}
}

// pidOf returns the process of the node in the folder n.
func pidOf(t *testing.T, x *user) string {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(x.home, "n", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	return string(pid)
}
