// Package credentials stores the secrets that a node presents to agents, of all bindings.
package credentials

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td/scheme"
)

// MaxFile is the limit of a credentials file in bytes.
const MaxFile = 1 << 20

// A Store holds the secrets that agents require, from one file of the node:
//
//	{
//	  "urn:example:billing": {
//	    "basic_sc": {"origin": "http://127.0.0.1:9000", "username": "lmosd", "password": "…"}
//	  },
//	  "urn:example:crm": {
//	    "bearer_sc": {"origin": "https://crm.example", "token": "…"},
//	    "key_sc":    {"origin": "https://crm.example", "key": "…"},
//	    "oauth2_sc": {"origin": "https://login.example", "username": "client id", "password": "client secret"},
//	    "other_sc":  {"origin": "https://login.example", "username": "client id", "private_key_file": "client.pem", "kid": "…"}
//	  }
//	}
//
// The first level is the id of a Thing, the second the name of one of its securityDefinitions. A secret is sent only to its origin
// (scheme, host, port), so that a changed description cannot redirect it. The file is read again after changes. Errors, logs and
// messages contain no secrets.
//
// The zero value has no secrets. Copies share their state; they are safe for concurrent use.
type Store struct{ file *credentialsFile }

// A Credential is one secret; unused fields are empty. For an OAuth client, Username is its id, Password its secret or
// PrivateKeyFile its private key, and Origin that of the token endpoint.
type Credential struct {
	Origin   string `json:"origin"`
	Username string `json:"username"`
	Password string `json:"password"`
	Token    string `json:"token"`
	Key      string `json:"key"`
	// PrivateKeyFile is a file for [Credential.PrivateKey]. A relative path is relative to the credentials file.
	PrivateKeyFile string `json:"private_key_file"`
	// Kid is the key id at the authorization server, and Aud the audience of assertions, if that is not the issuer identifier (RFC
	// 7515 §4.1.4, RFC 7519 §4.1.3).
	Kid string `json:"kid"`
	Aud string `json:"aud"`
}

// A credentialsFile is a file with its parsed content.
type credentialsFile struct {
	path string

	mu      sync.Mutex // guards the rest
	seen    stamp
	err     error
	byThing map[string]map[string]Credential
}

// A stamp identifies a state of a file.
type stamp struct {
	modified time.Time
	size     int64
	mode     fs.FileMode
}

// Load reads the credentials file at path. A missing file is read when it exists. The error is an [*interact.Error]: KeyPermissions
// if others than the owner can read the file, ConfigInvalid or ConfigFile if it is unusable.
func Load(path string) (Store, error) {
	c := Store{file: &credentialsFile{path: path}}
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	c.file.refreshLocked()
	return c, c.file.err
}

// Lookup returns the secret of a security scheme of a Thing for a form at href. The error contains no secret.
func (c Store) Lookup(thing, scheme, href string) (Credential, error) {
	if c.file == nil {
		return Credential{}, errors.New("this node has no credentials file")
	}
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	c.file.refreshLocked()
	if c.file.err != nil {
		return Credential{}, errors.New("the credentials file cannot be used")
	}
	found, ok := c.file.byThing[thing][scheme]
	switch {
	case !ok:
		return Credential{}, errors.New("no credentials")
	case found.Origin != OriginOf(href):
		return Credential{}, fmt.Errorf("the credentials are for another origin than %s", OriginOf(href))
	}
	return found, nil
}

// refreshLocked reads the file again if it has changed.
func (f *credentialsFile) refreshLocked() {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.seen, f.byThing, f.err = stamp{}, nil, nil
		return
	}
	if err != nil {
		f.seen, f.byThing, f.err = stamp{}, nil, unreadable(f.path, err)
		return
	}
	now := stamp{info.ModTime(), info.Size(), info.Mode()}
	if now == f.seen {
		return
	}
	f.seen = now
	f.byThing, f.err = readCredentials(f.path)
	if f.err != nil && interact.AsError(f.err).Code == interact.ConfigFile {
		f.seen = stamp{} // retry at the next lookup
	}
}

// ReadPrivate returns at most limit bytes of a file that only its owner can read. It checks the mode of the open file, so that the
// file cannot be swapped in between.
func ReadPrivate(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, unreadable(path, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, interact.Errorf(interact.KeyPermissions, "chmod 600 "+interact.Quote(path),
			"%s can be read by others (mode %04o)", path, info.Mode().Perm())
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, unreadable(path, err)
	}
	return raw, nil
}

func readCredentials(path string) (map[string]map[string]Credential, error) {
	raw, err := ReadPrivate(path, MaxFile+1)
	if err != nil {
		return nil, err
	}
	all, err := parseCredentials(raw)
	if err != nil {
		return nil, interact.Errorf(interact.ConfigInvalid,
			`its form is {"THING ID": {"SCHEME": {"origin": "http://HOST:PORT", "token": "…"}}}`, "%s: %s", path, err)
	}
	for _, schemes := range all {
		for scheme, c := range schemes {
			if c.PrivateKeyFile != "" && !filepath.IsAbs(c.PrivateKeyFile) {
				c.PrivateKeyFile = filepath.Join(filepath.Dir(path), c.PrivateKeyFile)
				schemes[scheme] = c
			}
		}
	}
	return all, nil
}

func unreadable(path string, err error) error {
	return &interact.Error{Code: interact.ConfigFile, Title: "credentials file " + path + " cannot be read",
		Hint: "ls -l " + interact.Quote(path), Err: err}
}

// parseCredentials parses the file strictly: no duplicate and no unknown members. Its errors contain no secrets.
func parseCredentials(raw []byte) (map[string]map[string]Credential, error) {
	if _, err := jcs.Decode(raw, MaxFile); err != nil {
		return nil, safeSyntax(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var all map[string]map[string]Credential
	if err := d.Decode(&all); err != nil {
		return nil, safeShape(err)
	}
	for thing, schemes := range all {
		for scheme, c := range schemes {
			if err := c.check(); err != nil {
				return nil, fmt.Errorf("/%s/%s: %w", escapePointer.Replace(thing), escapePointer.Replace(scheme), err)
			}
			c.Origin = OriginOf(c.Origin)
			schemes[scheme] = c
		}
	}
	return all, nil
}

// safeSyntax returns the position of a syntax error without its text, which may quote a secret.
func safeSyntax(err error) error {
	var s *jcs.SyntaxError
	if errors.As(err, &s) {
		return fmt.Errorf("line %d, column %d: invalid JSON", s.Line, s.Column)
	}
	return errors.New("is larger than 1 MiB")
}

func safeShape(err error) error {
	var t *json.UnmarshalTypeError
	switch {
	case errors.As(err, &t) && t.Field != "":
		return fmt.Errorf("the member at %s has the wrong type", t.Field)
	case strings.HasPrefix(err.Error(), "json: unknown field"):
		return errors.New("unknown member: expected origin, username, password, token, key, private_key_file, kid or aud")
	}
	return errors.New("unexpected structure")
}

func (c Credential) check() error {
	u, err := url.Parse(c.Origin)
	if err != nil || u.Host == "" || scheme.Lookup(strings.ToLower(u.Scheme)).Name == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errors.New(`"origin" must be scheme, host and port, e.g. "http://127.0.0.1:9000"`)
	}
	for _, v := range []string{c.Username, c.Password, c.Token, c.Key, c.PrivateKeyFile, c.Kid, c.Aud} {
		if strings.IndexFunc(v, isControl) >= 0 {
			return errors.New("a value has control characters")
		}
	}
	switch {
	case c.PrivateKeyFile != "" && c.Username == "":
		return errors.New(`"private_key_file" needs a "username", the id of the client`)
	case c.PrivateKeyFile == "" && c.Kid+c.Aud != "":
		return errors.New(`"kid" and "aud" require a "private_key_file"`)
	case c.PrivateKeyFile == "" && strings.Contains(c.Username, ":"): // RFC 7617 §2; the id of a client may be an address
		return errors.New(`"username" may not contain a colon`)
	case c.Username+c.Password+c.Token+c.Key == "":
		return errors.New(`expected "username" with "password" or "private_key_file", or "token", or "key"`)
	}
	return nil
}

// OriginOf returns the origin of an address or template, or "" if it has none.
func OriginOf(href string) string {
	base, _, _ := strings.Cut(href, "{")
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return ""
	}
	return Origin(u)
}

// Origin returns scheme, host and port of u in normal form (RFC 6454 §4), without the default port of the scheme.
func Origin(u *url.URL) string {
	name, host, port := strings.ToLower(u.Scheme), strings.ToLower(u.Hostname()), u.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == "" || port == scheme.Lookup(name).Port {
		return name + "://" + host
	}
	return name + "://" + host + ":" + port
}

// escapePointer escapes a member name in a JSON pointer (RFC 6901 §3).
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func (c Store) Path() string {
	if c.file == nil {
		return ""
	}
	return c.file.path
}

// Name is the name of the file in errors: its path is private.
func (c Store) Name() string {
	if c.file == nil {
		return "its credentials file (the node has none configured)"
	}
	return filepath.Base(c.file.path)
}

// String returns the number of Things with credentials.
func (c Store) String() string {
	if c.file == nil {
		return "no credentials"
	}
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	return fmt.Sprintf("credentials of %d things", len(c.file.byThing))
}

// GoString implements [fmt.GoStringer].
func (c Store) GoString() string { return c.String() }

// MarshalJSON encodes the text of String.
func (c Store) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// LogValue implements [slog.LogValuer].
func (c Store) LogValue() slog.Value { return slog.StringValue(c.String()) }
