package webvh

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// An Update is the content of a new version.
type Update struct {
	// Document returns the document for the DID, as JSON of maps, slices, strings, booleans and float64. Nil: the document of the version
	// before.
	Document func(id did.DID) map[string]any
	// UpdateKeys are the multikeys that may sign: the next version, or this one if the version before has NextKeyHashes. Nil: unchanged.
	UpdateKeys []string
	// NextKeyHashes are the hashes of the keys that may sign the next version; see [KeyHash]. A log that has them keeps having them.
	NextKeyHashes []string
	// Deactivate ends the DID.
	Deactivate bool
	// TTL is how long readers may cache the document, in whole seconds; it is only set in a first version. Zero: one hour.
	TTL time.Duration
	// Now is the time of the version. Zero: the current time.
	Now time.Time
}

// Create makes the log of a new DID at a location ("example.com%3A8443:sales", see [Location]), signed by the key of s, which is the first
// of its update keys. It needs no network. The error wraps [did.ErrInvalid] if the location is not one.
func Create(location string, s did.Signer, u Update) (*Log, error) {
	id := did.DID(prefix + placeholder + ":" + location)
	valid := did.DID(prefix + KeyHash("") + ":" + location)
	if _, err := URL(valid); err != nil {
		return nil, err
	}
	if _, err := did.Parse(string(valid)); err != nil {
		return nil, err
	}
	if u.Document == nil {
		return nil, errors.New("create a did:webvh: there is no document")
	}
	p := u.parameters()
	p["method"], p["scid"], p["portable"] = version, placeholder, false
	if p["updateKeys"] == nil {
		p["updateKeys"] = []any{s.DID().Multibase()}
	}
	if u.TTL > 0 {
		p["ttl"] = u.TTL.Seconds()
	}
	e := map[string]any{"versionId": placeholder, "versionTime": u.time().Format(time.RFC3339), "parameters": p, "state": u.Document(id)}
	line, err := firstLine(e, s, u.time())
	if err != nil {
		return nil, fmt.Errorf("create a did:webvh: %w", err)
	}
	return Verify(line, Check{Now: u.time()})
}

// firstLine returns the signed first entry of a log, with its SCID in place of the placeholder.
func firstLine(e map[string]any, s did.Signer, now time.Time) ([]byte, error) {
	text, err := jcs.Append(nil, e)
	if err != nil {
		return nil, err
	}
	scid := did.Hash(text)
	if e, err = decode(bytes.ReplaceAll(text, []byte(placeholder), []byte(scid))); err != nil {
		return nil, err
	}
	return nextLine(e, 1, scid, s, now)
}

// Append returns the log with one version more, signed by the key of s. l does not change. An update that the log does not permit is an
// error: of a key that may not sign, of a deactivated DID, or of a clock that is before the last version.
func (l *Log) Append(s did.Signer, u Update) (*Log, error) {
	now := u.time()
	if last := l.Updated(); !now.After(last) {
		if now.Before(last.Add(-Skew)) {
			return nil, fmt.Errorf("extend %s: the last version is of %s, the clock is at %s: set the clock", l.DID().Short(),
				last.Format(time.RFC3339), now.Format(time.RFC3339))
		}
		now = last.Truncate(time.Second).Add(time.Second)
	}
	state := l.State()
	if u.Document != nil {
		state = u.Document(l.DID())
	}
	e := map[string]any{"versionTime": now.Format(time.RFC3339), "parameters": u.parameters(), "state": state}
	line, err := nextLine(e, l.Len()+1, l.Head(), s, now)
	if err != nil {
		return nil, fmt.Errorf("extend %s: %w", l.DID().Short(), err)
	}
	return Verify(slices.Concat(l.raw, line), Check{Now: now})
}

// nextLine returns an entry with its hash and its proof. before is the versionId of the entry before.
func nextLine(e map[string]any, n int, before string, s did.Signer, now time.Time) ([]byte, error) {
	text, err := jcs.Append(nil, unsigned(e, before))
	if err != nil {
		return nil, err
	}
	e["versionId"] = fmt.Sprintf("%d-%s", n, did.Hash(text))
	p, err := proof.Sign(e, s, proof.Options{Created: now})
	if err != nil {
		return nil, err
	}
	e["proof"] = []any{p}
	return append(canonical(e), '\n'), nil
}

func (u Update) time() time.Time {
	if u.Now.IsZero() {
		u.Now = time.Now()
	}
	return u.Now.UTC().Truncate(time.Second)
}

func (u Update) parameters() map[string]any {
	p := map[string]any{}
	if u.UpdateKeys != nil {
		p["updateKeys"] = anys(u.UpdateKeys)
	}
	if u.NextKeyHashes != nil {
		p["nextKeyHashes"] = anys(u.NextKeyHashes)
	}
	if u.Deactivate {
		p["deactivated"] = true
	}
	return p
}

func anys(all []string) []any {
	out := make([]any, len(all))
	for i, s := range all {
		out[i] = s
	}
	return out
}
