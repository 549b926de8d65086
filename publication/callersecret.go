package publication

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// CallerSecrets are the secrets by which HTTP agents of this node recognize the requests of the node, so that they need not accept the caller in the
// requests of other programs. Each belongs to a Thing and to the origin of its server. The file has mode 0600:
//
//	{"urn:example:billing": {"origin": "http://127.0.0.1:9000", "secret": "…"}}
//
// Errors, logs and messages contain no secrets. It is safe for concurrent use. A nil CallerSecrets has none.
type CallerSecrets struct {
	path string // empty: in memory only

	mu      sync.RWMutex
	byThing map[string]callerSecret // replaced by each change; owned by mu
}

type callerSecret struct {
	Origin string `json:"origin"`
	Secret string `json:"secret"`
}

// CallerSecretsFile is the name of the file in the data directory.
const CallerSecretsFile = "caller-secrets.json"

// LoadCallerSecrets reads the file in the data directory, which need not exist; without a directory the secrets are in memory. The error is an
// [*interact.Error]: KeyPermissions if others than the owner can read the file, ConfigInvalid or ConfigFile if it is unusable.
func LoadCallerSecrets(dir string) (*CallerSecrets, error) {
	c := &CallerSecrets{byThing: map[string]callerSecret{}}
	if dir == "" {
		return c, nil
	}
	c.path = filepath.Join(dir, CallerSecretsFile)
	if _, err := os.Stat(c.path); errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	raw, err := credentials.ReadPrivate(c.path, credentials.MaxFile+1)
	if err != nil {
		return nil, err
	}
	if c.byThing, err = parseCallerSecrets(raw); err != nil {
		return nil, interact.Errorf(interact.ConfigInvalid, "remove the file, and make the secrets again", "%s: %s", c.path, err)
	}
	return c, nil
}

// parseCallerSecrets parses the file. Its errors contain no text of the file, which may be a secret.
func parseCallerSecrets(raw []byte) (map[string]callerSecret, error) {
	if _, err := jcs.Decode(raw, credentials.MaxFile); err != nil {
		return nil, errors.New("expected JSON of at most 1 MiB without duplicate members")
	}
	all := map[string]callerSecret{}
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return nil, errors.New("expected an object with an origin and a secret for each Thing")
	}
	for _, s := range all {
		if s.Secret == "" || s.Origin == "" || credentials.OriginOf(s.Origin) != s.Origin {
			return nil, errors.New("expected an origin and a secret for each Thing")
		}
	}
	return all, nil
}

// make makes the secret of a Thing whose server has an origin, in place of an earlier one.
func (c *CallerSecrets) make(thing, origin string) (string, error) {
	s := callerSecret{origin, "lmos_caller_" + rand.Text()}
	return s.Secret, c.change(func(all map[string]callerSecret) { all[thing] = s })
}

// rename moves the secret of a Thing, if it has one, to another id of the Thing.
func (c *CallerSecrets) rename(from, to string) error {
	if c == nil || from == to {
		return nil
	}
	c.mu.RLock()
	s, has := c.byThing[from]
	c.mu.RUnlock()
	if !has {
		return nil
	}
	return c.change(func(all map[string]callerSecret) {
		all[to] = s
		delete(all, from)
	})
}

// remove removes the secret of a Thing.
func (c *CallerSecrets) remove(thing string) error {
	if c == nil {
		return nil
	}
	c.mu.RLock()
	_, has := c.byThing[thing]
	c.mu.RUnlock()
	if !has {
		return nil
	}
	return c.change(func(all map[string]callerSecret) { delete(all, thing) })
}

func (c *CallerSecrets) change(change func(map[string]callerSecret)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(c.byThing)
	change(all)
	if c.path != "" {
		raw, err := json.Marshal(all)
		if err == nil && len(raw) > credentials.MaxFile {
			err = errors.New("it would be larger than 1 MiB")
		}
		if err == nil {
			err = atomicfile.Write(c.path, raw, 0o600)
		}
		if err != nil {
			return &interact.Error{Code: interact.ConfigFile, Title: "the file of the caller secrets cannot be written",
				Hint: "ls -l " + interact.Quote(c.path), Err: err}
		}
	}
	c.byThing = all
	return nil
}

// Of returns the secret of a Thing for a request to u; empty if it has none for the origin of u.
func (c *CallerSecrets) Of(thing string, u *url.URL) string {
	if c == nil {
		return ""
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if s, ok := c.byThing[thing]; ok && s.Origin == credentials.Origin(u) {
		return s.Secret
	}
	return ""
}

// String returns the number of secrets.
func (c *CallerSecrets) String() string {
	if c == nil {
		return "no caller secrets"
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return fmt.Sprintf("caller secrets of %d things", len(c.byThing))
}

// GoString implements [fmt.GoStringer].
func (c *CallerSecrets) GoString() string { return c.String() }

// LogValue implements [slog.LogValuer].
func (c *CallerSecrets) LogValue() slog.Value { return slog.StringValue(c.String()) }

type callerSecretKey struct{}

// WithCallerSecret returns a context in which [Publisher.Publish] makes a caller secret for the agent, in place of an earlier one. The agent must
// be called over HTTP, at one origin. A Thing that is published again without such a context keeps its secret. It ends with the publication.
func WithCallerSecret(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerSecretKey{}, true)
}

// makeCallerSecret makes the caller secret of a TD if the context requests one. isInside reports that the agent is not called over its forms.
func (p *Publisher) makeCallerSecret(ctx context.Context, raw []byte, isInside bool) (string, error) {
	if wanted, _ := ctx.Value(callerSecretKey{}).(bool); !wanted {
		return "", nil
	}
	t, err := td.Complete(raw, p.o.Signer.DID())
	if err != nil {
		return "", err
	}
	var origins []string
	for href := range t.Hrefs() {
		origin := credentials.OriginOf(href)
		if name, _, _ := strings.Cut(origin, ":"); scheme.Lookup(name).Protocol == "http" && !slices.Contains(origins, origin) {
			origins = append(origins, origin)
		}
	}
	const hint = "publish it without a caller secret"
	switch {
	case p.o.CallerSecrets == nil:
		return "", interact.Errorf(interact.Invalid, hint, "this node has no caller secrets")
	case isInside || len(origins) == 0:
		return "", interact.Errorf(interact.Invalid, hint, "a caller secret is for an agent that the node calls over HTTP, and %s is not one", t.Name())
	case len(origins) > 1:
		return "", interact.Errorf(interact.Invalid, "describe it with forms at one origin, or "+hint,
			"a caller secret is for one origin, and %s has forms at %d", t.Name(), len(origins))
	}
	return p.o.CallerSecrets.make(t.ID, origins[0])
}
