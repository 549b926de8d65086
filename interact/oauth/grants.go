package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// Limits of the file of grants.
const (
	maxGrants  = 1024 // of all Things
	maxIssuers = 8    // of one Thing, because its server names the issuers
	// maxGrant limits one grant in the file, and maxFile the file, in bytes.
	maxGrant = 64 << 10
	maxFile  = 4 * credentials.MaxFile
	lockWait = 10 * time.Second
	lockPoll = 20 * time.Millisecond
)

// A Grant is a grant of an authorization server to this host for one Thing (RFC 6749 §1.4, §1.5). It is sent only to that server
// and that Thing. It contains secrets, and prints as its issuer.
type Grant struct {
	// Issuer is the issuer identifier in the metadata of the server (RFC 8414 §2).
	Issuer string `json:"issuer"`
	// TokenEndpoint is the endpoint for renewals, Resource the target of the grant (RFC 8707).
	TokenEndpoint string `json:"token_endpoint"`
	Resource      string `json:"resource,omitempty"`
	// ClientID, ClientSecret and Method are the registration of this host: client_secret_basic, client_secret_post, private_key_jwt
	// or none. Algorithm is that of the private key, which stays in the file of the operator.
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret,omitempty"`
	Method       string `json:"method"`
	Algorithm    string `json:"algorithm,omitempty"`
	// Scopes are the granted scopes.
	Scopes []string `json:"scopes,omitempty"`
	// Access is the access token, valid until Expires if that is not zero; Refresh is the refresh token.
	Access  string    `json:"access_token"`
	Refresh string    `json:"refresh_token,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	// Granted is the time of the grant. [Grants.Keep] sets it.
	Granted time.Time `json:"granted"`
}

// String returns the issuer.
func (g Grant) String() string { return "a grant of " + g.Issuer }

// GoString is String.
func (g Grant) GoString() string { return g.String() }

// LogValue is String.
func (g Grant) LogValue() slog.Value { return slog.StringValue(g.String()) }

// Grants is the file of the grants of this host, next to the credentials file: users write that one, programs this one. The zero
// value has no file.
type Grants struct{ path string }

// GrantsOf returns the grants next to the file of a credentials store.
func GrantsOf(c credentials.Store) Grants {
	if c.Path() == "" {
		return Grants{}
	}
	return Grants{filepath.Join(filepath.Dir(c.Path()), "oauth-tokens.json")}
}

// Path returns the path of the file, or "".
func (f Grants) Path() string { return f.path }

// Of returns the grants for a Thing, the latest first. An unusable file has none; [Grants.Keep] returns the reason.
func (f Grants) Of(thing string) []Grant {
	all, err := f.All()
	if err != nil {
		return nil
	}
	return all[thing]
}

// All returns the grants by Thing, the latest first. The error is an [*interact.Error]: ConfigFile, ConfigInvalid or
// KeyPermissions.
func (f Grants) All() (map[string][]Grant, error) {
	if f.path == "" {
		return nil, nil
	}
	return readGrants(f.path)
}

// Keep stores g for a Thing and replaces earlier grants of its issuer. It waits at most 10 s for other processes that write the
// file, and returns when the file is on disk. The error is an [*interact.Error]: ConfigFile or KeyPermissions, TooLarge for a grant
// of more than 64 KiB, or Overloaded if the file is full.
func (f Grants) Keep(ctx context.Context, thing string, g Grant) error {
	return f.change(ctx, func(all map[string][]Grant) (bool, error) { return true, put(all, thing, g) })
}

// Renew is Keep for a grant that replaces a stored one. It returns false, and stores nothing, if that was removed in between.
func (f Grants) Renew(ctx context.Context, thing string, g Grant) (kept bool, err error) {
	err = f.change(ctx, func(all map[string][]Grant) (bool, error) {
		if kept = slices.ContainsFunc(all[thing], func(o Grant) bool { return o.Issuer == g.Issuer }); !kept {
			return false, nil
		}
		return true, put(all, thing, g)
	})
	return kept && err == nil, err
}

// Forget removes the grants of a Thing and returns them. Waiting and errors are those of [Grants.Keep].
func (f Grants) Forget(ctx context.Context, thing string) (forgotten []Grant, err error) {
	err = f.change(ctx, func(all map[string][]Grant) (bool, error) {
		forgotten = all[thing]
		delete(all, thing)
		return len(forgotten) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return forgotten, nil
}

// put adds g to the grants of a Thing.
func put(all map[string][]Grant, thing string, g Grant) error {
	if raw, err := json.Marshal(g); err != nil || len(raw) > maxGrant {
		return interact.Errorf(interact.TooLarge, "contact the operator of the authorization server", "the grant has more than %d bytes", maxGrant)
	}
	g.Granted = time.Now().UTC().Truncate(time.Second)
	rest := slices.DeleteFunc(all[thing], func(o Grant) bool { return o.Issuer == g.Issuer })
	if all[thing] = append([]Grant{g}, rest...); len(all[thing]) > maxIssuers {
		all[thing] = all[thing][:maxIssuers]
	}
	return nil
}

// change edits the file under a lock. If edit reports no change, or an error, the file stays unchanged.
func (f Grants) change(ctx context.Context, edit func(all map[string][]Grant) (changed bool, err error)) error {
	path := f.path
	if path == "" {
		return interact.Errorf(interact.ConfigFile, "set interact.credentials to a file",
			"this node has no credentials file, and nothing is kept")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return unwritable(path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return unwritable(path, err)
	}
	defer lock.Unlock()
	all, err := readGrants(path)
	if err != nil {
		return err
	}
	before := len(all)
	if changed, err := edit(all); err != nil || !changed {
		return err
	}
	raw, err := json.MarshalIndent(all, "", "  ")
	if len(all) >= before && (len(all) > maxGrants || len(raw) >= maxFile) {
		return interact.Errorf(interact.Overloaded, "remove unused entries from "+interact.Quote(path),
			"grants for %d servers are kept already", len(all)-1)
	}
	if err == nil {
		err = atomicfile.Write(path, append(raw, '\n'), 0o600)
	}
	if err != nil {
		return unwritable(path, err)
	}
	return nil
}

// readGrants reads the file; a missing file is empty.
func readGrants(path string) (map[string][]Grant, error) {
	all := map[string][]Grant{}
	raw, err := credentials.ReadPrivate(path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return all, nil
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(bytes.TrimSpace(raw), &all); err != nil || all == nil { // the error could quote a secret
		return nil, interact.Errorf(interact.ConfigInvalid, "move it away and log in again",
			"%s is not what lmosd wrote", path).Then(interact.StepHelp, "login")
	}
	return all, nil
}

func unwritable(path string, err error) error {
	return &interact.Error{Code: interact.ConfigFile, Title: path + " cannot be written", Err: err,
		Hint: "ls -ld " + interact.Quote(filepath.Dir(path))}
}
