package webvh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// A Log is a verified log. It is immutable and safe for concurrent use.
type Log struct {
	entries []*entry
	raw     []byte
}

// An entry is one version of a DID.
type entry struct {
	versionID string
	time      time.Time
	id        did.DID
	state     map[string]any
	active    parameters // after this entry
}

// parameters are the active parameters of a log.
type parameters struct {
	updateKeys    []string
	nextKeyHashes []string
	witness       witness
	portable      bool
	deactivated   bool
	ttl           time.Duration
}

// A witness is the rule of the witnesses of a log; without a threshold there is none.
type witness struct {
	threshold int
	ids       []did.DID
}

// Bytes returns the log as its file did.jsonl: one canonical JSON object per line. The caller must not change it.
func (l *Log) Bytes() []byte { return l.raw }

// Len returns the number of versions, at least 1.
func (l *Log) Len() int { return len(l.entries) }

// Head returns the versionId of the newest version, for example "3-QmX…".
func (l *Log) Head() string { return l.head().versionID }

func (l *Log) head() *entry { return l.entries[len(l.entries)-1] }

// DID returns the DID of the newest version. Earlier versions of a portable DID may have other domains, but the same SCID.
func (l *Log) DID() did.DID { return l.head().id }

// SCID returns the identifier of the log, which never changes.
func (l *Log) SCID() string { return SCID(l.DID()) }

// Created and Updated return the times of the oldest and of the newest version, as the controller states them.
func (l *Log) Created() time.Time { return l.entries[0].time }

// Updated returns the time of the newest version.
func (l *Log) Updated() time.Time { return l.head().time }

// TTL returns how long the document may be cached.
func (l *Log) TTL() time.Duration { return l.head().active.ttl }

// Deactivated reports whether the controller ended the DID.
func (l *Log) Deactivated() bool { return l.head().active.deactivated }

// UpdateKeys returns the multikeys of the newest version, and the hashes of those that may sign the next one. Without hashes, the multikeys
// sign the next version.
func (l *Log) UpdateKeys() (keys, nextHashes []string) {
	a := l.head().active
	return slices.Clone(a.updateKeys), slices.Clone(a.nextKeyHashes)
}

// Document returns the newest document. The error wraps [ErrDeactivated], or [did.ErrInvalid] if the document is malformed.
func (l *Log) Document() (*did.Document, error) {
	if l.Deactivated() {
		return nil, fmt.Errorf("%w: %s", ErrDeactivated, l.DID().Short())
	}
	return did.ParseDocument(canonical(l.head().state), l.DID())
}

// State returns the newest document as decoded JSON, which the caller may change.
func (l *Log) State() map[string]any {
	copied, err := decode(canonical(l.head().state))
	if err != nil {
		panic(err) // the bytes come from the encoder
	}
	return copied
}

// Has reports whether the log has the version. A log that lacks a version that its controller has shown is old, or forked.
func (l *Log) Has(versionID string) bool {
	return slices.ContainsFunc(l.entries, func(e *entry) bool { return e.versionID == versionID })
}

// Forked reports whether two logs of one SCID contradict each other: neither is the beginning of the other. Both have valid signatures, so
// that they are evidence against the holder of the keys.
func (l *Log) Forked(other *Log) bool {
	n := min(len(l.entries), len(other.entries)) - 1
	return l.SCID() == other.SCID() && l.entries[n].versionID != other.entries[n].versionID
}

// WebDocument returns the document of the did:web at the same place, with the did:webvh in alsoKnownAs (did:webvh 1.0, Publishing a
// Parallel did:web DID).
func (l *Log) WebDocument() (json.RawMessage, error) {
	state := l.State()
	if err := addServices(state, l.DID()); err != nil {
		return nil, err
	}
	web := string(Web(l.DID()))
	text := strings.ReplaceAll(string(canonical(state)), prefix+l.SCID()+":", "did:web:")
	doc, err := decode([]byte(text))
	if err != nil {
		return nil, err
	}
	known := []any{string(l.DID())}
	for _, one := range list(doc["alsoKnownAs"]) {
		if one != web && !slices.Contains(known, one) {
			known = append(known, one)
		}
	}
	doc["alsoKnownAs"] = known
	return canonical(doc), nil
}

// addServices adds the services that each did:webvh has without listing them: the files at its location.
func addServices(state map[string]any, id did.DID) error {
	base, err := weblocation.URL(Location(id), "")
	if err != nil {
		return err
	}
	base = strings.TrimSuffix(base, "/.well-known/")
	base = strings.TrimSuffix(base, "/")
	services := list(state["service"])
	for fragment, s := range map[string]map[string]any{
		"#files": {"type": "relativeRef", "serviceEndpoint": base},
		"#whois": {"type": "LinkedVerifiablePresentation", "serviceEndpoint": base + "/whois.vp", "@context": "https://identity.foundation/linked-vp/contexts/v1"},
	} {
		if !slices.ContainsFunc(services, func(v any) bool {
			m, _ := v.(map[string]any)
			return m["id"] == fragment || m["id"] == string(id)+fragment
		}) {
			s["id"] = string(id) + fragment
			services = append(services, s)
		}
	}
	slices.SortStableFunc(services, func(a, b any) int { return bytes.Compare(canonical(a), canonical(b)) })
	state["service"] = services
	return nil
}

func list(v any) []any {
	all, _ := v.([]any)
	return slices.Clone(all)
}

// canonical returns the canonical JSON of decoded JSON.
func canonical(v any) []byte {
	b, err := jcs.Append(nil, v)
	if err != nil {
		panic(err) // jcs decoded the value, or it consists of strings
	}
	return b
}

// hashOf returns the hash of an entry without its proof and with another versionId.
func hashOf(e map[string]any, versionID string) string {
	return did.Hash(canonical(unsigned(e, versionID)))
}

// unsigned returns an entry without its proof and with another versionId.
func unsigned(e map[string]any, versionID string) map[string]any {
	return map[string]any{"versionId": versionID, "versionTime": e["versionTime"], "parameters": e["parameters"], "state": e["state"]}
}

// scidOf returns the identifier that a first entry must have, given the one that it claims.
func scidOf(e map[string]any, claimed string) (string, error) {
	text := bytes.ReplaceAll(canonical(unsigned(e, placeholder)), []byte(claimed), []byte(placeholder))
	replaced, err := decode(text) // a name with the SCID moves
	if err != nil {
		return "", errors.New("the SCID divides an escape sequence")
	}
	return did.Hash(canonical(replaced)), nil
}
