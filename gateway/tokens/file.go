package tokens

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// The file of the tokens in the data directory. Only the node writes it, and it reads it at the start only: the process that has locked the
// data directory owns it, commands ask that process, and so no second writer can undo a revocation. The secrets are not in it.
const (
	fileName    = "tokens.json"
	fileVersion = 1
	maxFile     = 1 << 20 // bytes
	maxTokens   = 1000
)

// A digest is the SHA-256 of a secret, in hexadecimal digits in JSON.
type digest [sha256.Size]byte

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// MarshalText implements [encoding.TextMarshaler].
func (d digest) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(d[:])), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *digest) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(d) {
		return fmt.Errorf("expected the SHA-256 of a token in %d hexadecimal digits", 2*len(d))
	}
	copy(d[:], b)
	return nil
}

// A document is the content of the file.
type document struct {
	Version int     `json:"version"`
	Tokens  []entry `json:"tokens"`
}

// An entry is a token in the file.
type entry struct {
	Token
	Digest digest `json:"sha256"`
}

// load reads the file. A missing one has no tokens. The error is an [*interact.Error] of code KeyPermissions or StoreCorrupt, or that of the
// read.
func load(dir string) ([]entry, error) {
	if dir == "" {
		return nil, nil
	}
	path := filepath.Join(dir, fileName)
	if err := checkMode(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	all, err := parse(raw)
	if err != nil {
		return nil, &interact.Error{Code: interact.StoreCorrupt, Title: "the access tokens in " + path + " cannot be read", Err: err,
			Hint: "restore the file; or remove it, which revokes all access tokens"}
	}
	return all, nil
}

// parse decodes and checks the content of the file.
func parse(raw []byte) ([]entry, error) {
	if len(raw) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	var doc document
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("expected one JSON value")
	}
	switch {
	case doc.Version != fileVersion:
		return nil, fmt.Errorf("expected version %d, got %d", fileVersion, doc.Version)
	case len(doc.Tokens) > maxTokens:
		return nil, fmt.Errorf("expected at most %d tokens, got %d", maxTokens, len(doc.Tokens))
	}
	names, digests := map[string]bool{}, map[digest]bool{}
	for _, e := range doc.Tokens {
		switch err := e.check(); {
		case err != nil:
			return nil, fmt.Errorf("token %q: %w", e.Name, err)
		case names[e.Name]:
			return nil, fmt.Errorf("two tokens have the name %q", e.Name)
		case digests[e.Digest]:
			return nil, fmt.Errorf("two tokens have the secret of %q", e.Name)
		}
		names[e.Name], digests[e.Digest] = true, true
	}
	return doc.Tokens, nil
}

// save replaces the file.
func save(dir string, all []entry) error {
	if dir == "" {
		return nil
	}
	raw, err := json.MarshalIndent(document{fileVersion, all}, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) > maxFile {
		return interact.Errorf(interact.TooLarge, "revoke tokens that are not used, or give fewer scopes", "the tokens would need more than %d bytes", maxFile)
	}
	return atomicfile.Write(filepath.Join(dir, fileName), append(raw, '\n'), 0o600)
}

// check returns the error of a token, an [*interact.Error] of code Usage.
func (t *Token) check() error {
	switch {
	case !did.ValidPrincipalName(t.Name):
		return interact.Errorf(interact.Usage, "use lower-case letters, digits, dots, hyphens and underscores, at most 64", "invalid name of a token: %q", t.Name)
	case t.Name == did.Operator:
		return interact.Errorf(interact.Usage, "choose another name", "%q is the name of the node's own token", t.Name)
	case len(t.Scopes) == 0 || len(t.Scopes) > maxScopes:
		return interact.Errorf(interact.Usage, "give one or more scopes", "expected 1 to %d scopes, got %d", maxScopes, len(t.Scopes))
	}
	if life := t.Expires.Sub(t.Created); life < MinLife || life > MaxLife+time.Second {
		return interact.Errorf(interact.Usage, "for example 90d", "expected a lifetime of %s to %s, got %s", textOf(MinLife), textOf(MaxLife), textOf(life))
	}
	return CheckRoles(t.Roles)
}
