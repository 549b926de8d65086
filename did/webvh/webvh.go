// Package webvh creates, extends, verifies and resolves the logs of did:webvh 1.0.
//
// A log is the history of one DID, an entry per version. Each entry is signed by a key that the entry before it permits, and contains the
// hash of that entry. The identifier (SCID) is the hash of the first entry: a log proves itself, and any copy is as good as the one of the
// web server that the DID names. A copy can only be old. The domain in the DID is a claim.
//
// Source: did:webvh 1.0, Decentralized Identity Foundation.
package webvh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// The limits of a log, and of the proofs of its witnesses.
const (
	MaxLog       = 1 << 20   // bytes
	maxEntry     = 256 << 10 // bytes of one entry
	maxKeys      = 64        // of one list of keys or hashes
	maxWitnesses = 32
	maxSeen      = 64 // entries of did-witness.json that concern a log
)

// Skew is how far in the future the time of an entry may be.
const Skew = 5 * time.Minute

// ErrDeactivated means that the controller ended the DID.
var ErrDeactivated = errors.New("the DID is deactivated")

const (
	prefix      = "did:webvh:"
	version     = "did:webvh:1.0"
	placeholder = "{SCID}"
)

// SCID returns the self-certifying identifier of a did:webvh, 46 characters, or "" for other DIDs.
func SCID(id did.DID) string {
	rest, ok := strings.CutPrefix(string(id), prefix)
	scid, _, found := strings.Cut(rest, ":")
	if !ok || !found || !did.IsHash(scid) {
		return ""
	}
	return scid
}

// Location returns the domain of a did:webvh with its port and its path, as they stand in the DID: "example.com%3A8443:sales".
func Location(id did.DID) string {
	_, location, _ := strings.Cut(strings.TrimPrefix(string(id), prefix), ":")
	return location
}

// URL returns the URL of the log of a did:webvh. The error wraps [did.ErrInvalid], or [did.ErrMethod] for other methods.
func URL(id did.DID) (string, error) {
	if id.Method() != "webvh" {
		return "", fmt.Errorf("%w: %q is not a did:webvh", did.ErrMethod, id.Short())
	}
	if SCID(id) == "" {
		return "", fmt.Errorf("%w: %q has no SCID", did.ErrInvalid, id.Short())
	}
	address, err := weblocation.URL(Location(id), "did.jsonl")
	if err != nil {
		return "", fmt.Errorf("%w: %q: %w", did.ErrInvalid, id.Short(), err)
	}
	return address, nil
}

// Web returns the did:web at the same place as a did:webvh.
func Web(id did.DID) did.DID { return did.DID("did:web:" + Location(id)) }

// KeyHash returns the hash of a public key as nextKeyHashes has it. The key is the multikey "z6Mk…", as [did.DID.Multibase] returns it.
func KeyHash(multikey string) string { return did.Hash([]byte(multikey)) }

// Options of a [Resolver].
type Options = weblocation.Options

// A Resolver fetches logs over HTTPS. It follows no redirects, takes at most 10 s for each of its two requests, and caches nothing. It
// implements [did.Resolver] and is safe for concurrent use.
type Resolver struct{ client *weblocation.Client }

// New returns a resolver.
func New(o Options) *Resolver { return &Resolver{weblocation.NewClient(o)} }

// Resolve returns the newest document of a DID. The error wraps [did.ErrNotFound] if there is no log, and [ErrDeactivated] if the DID is
// deactivated.
func (r *Resolver) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	l, err := r.Log(ctx, id)
	if err != nil {
		return nil, err
	}
	return l.Document()
}

// Log fetches and verifies the log of a DID, and the proofs of its witnesses if it needs them. The errors are those of [Verify], and wrap
// [did.ErrNotFound] if there is no log.
func (r *Resolver) Log(ctx context.Context, id did.DID) (*Log, error) {
	if _, err := URL(id); err != nil {
		return nil, err
	}
	return r.log(ctx, Location(id), Check{DID: id})
}

// LogAt is [Resolver.Log] for the location in a DID whose SCID is not known: it returns the log that is served there. The DID of the log has
// the location.
func (r *Resolver) LogAt(ctx context.Context, location string) (*Log, error) {
	l, err := r.log(ctx, location, Check{})
	if err == nil && Location(l.DID()) != location {
		return nil, fmt.Errorf("%w: the log there is that of %s", did.ErrInvalid, l.DID())
	}
	return l, err
}

func (r *Resolver) log(ctx context.Context, location string, check Check) (*Log, error) {
	raw, err := r.fetch(ctx, location, "did.jsonl")
	if err != nil {
		return nil, err
	}
	l, err := Verify(raw, check)
	if !errors.Is(err, errUnwitnessed) {
		return l, err
	}
	if check.Witness, err = r.fetch(ctx, location, "did-witness.json"); err != nil {
		return nil, err
	}
	return Verify(raw, check)
}

func (r *Resolver) fetch(ctx context.Context, location, file string) ([]byte, error) {
	address, err := weblocation.URL(location, file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", did.ErrInvalid, err)
	}
	raw, err := r.client.Fetch(ctx, address, "text/jsonl, application/json;q=0.9", MaxLog)
	if errors.Is(err, weblocation.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", did.ErrNotFound, err)
	}
	if errors.Is(err, httpbody.ErrTooLarge) {
		return nil, fmt.Errorf("%w: %w", did.ErrInvalid, err)
	}
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", location, err)
	}
	return raw, nil
}

// decode reads one JSON object strictly.
func decode(raw []byte) (map[string]any, error) { return jcs.Object(raw, maxEntry) }
