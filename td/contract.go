package td

import (
	"context"
	"errors"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Parse reads and validates a TD: size, strict JSON, the TD 1.1 schema, and the checks beyond the schema. The error is a
// [*ValidationError]. Raw is kept as given; the caller must not change it.
func Parse(raw []byte) (*Thing, error) { panic("td") }

// A ValidationError lists everything that is wrong with a TD or an input.
type ValidationError struct {
	// NotJSON tells that the bytes are no (strict) JSON; Issues then has one entry with line and column in its reason.
	NotJSON bool
	// TooLarge tells that the limit was passed before anything was read.
	TooLarge bool
	Issues   []Issue
}

// An Issue is one thing that is wrong: where (JSON pointer, RFC 6901) and what, in plain words.
type Issue struct {
	Pointer string `json:"field"`
	Reason  string `json:"description"`
}

func (e *ValidationError) Error() string { panic("td") }

// Schema is a data schema of TD 1.1 §5.3.2. A nil *Schema accepts everything.
type Schema struct{}

// Check reports what in value (decoded JSON: nil, bool, float64, string, []any, map[string]any) does not fit the schema.
func (s *Schema) Check(value any) []Issue { panic("td") }

// Complete makes a TD ready to be signed by owner: it adds the contexts that a signed TD has, and, if the TD has no id, the
// id "urn:lmos:<owner>:<slug of the title>". A TD that has all of it is returned unchanged. The order of members stays.
func Complete(raw []byte, owner did.DID) (*Thing, error) { panic("td") }

// A Lease says when, for how long and from where a thing is offered.
type Lease struct {
	Seq      uint64
	Now      time.Time
	Lifetime time.Duration // at most 24 h; a tombstone at most 30 days
	Hosts    []Host
}

// Sign signs a completed thing for the mesh: it adds the Data Integrity proof to the TD (unless it has a proof by the same
// owner that verifies), and makes and signs its record.
func Sign(t *Thing, s did.Signer, l Lease) (*Signed, error) { panic("td") }

// Renew makes a new record with l for a signed TD whose proof stays as it is.
func Renew(d *Description, s did.Signer, l Lease) (*Signed, error) { panic("td") }

// Bury makes the tombstone of a thing. final makes it the last word: seq 2^64-1.
func Bury(owner did.Signer, thing string, l Lease, final bool) (*Signed, error) { panic("td") }

// Without returns the record of s without its inline TD: the form that refreshes travel in. The signature holds for both.
func (s *Signed) Without() (*Signed, error) { panic("td") }

// A Verifier verifies records and descriptions and remembers verdicts. It is safe for concurrent use.
type Verifier struct{}

// NewVerifier returns a verifier that resolves keys with r.
func NewVerifier(r did.Resolver) *Verifier { panic("td") }

// Record decodes and verifies an encoded record at the time now: size, strict deterministic CBOR, signature, bounds, times.
// The error wraps one of the Err values below.
func (v *Verifier) Record(raw []byte, now time.Time) (*Record, error) { panic("td") }

// Verify verifies s at the time now and returns the description. For a tombstone or a moved record it returns a Description
// whose Thing is nil. The TD comes from s.TD, else from inside the record; with neither the error wraps ErrNoTD.
func (s *Signed) Verify(ctx context.Context, v *Verifier, now time.Time) (*Description, error) {
	panic("td")
}

// What may be wrong with a record. The gossip validators ignore what honest nodes may disagree on, and reject the rest.
var (
	ErrTooLarge  = errors.New("too large")
	ErrMalformed = errors.New("malformed")
	ErrVersion   = errors.New("unknown version")
	ErrSignature = errors.New("signature does not verify")
	ErrOwner     = errors.New("signed by another key than the owner's")
	ErrExpired   = errors.New("expired")
	ErrFuture    = errors.New("issued in the future")
	ErrHash      = errors.New("the TD does not match the record")
	ErrNoTD      = errors.New("the TD is not here; fetch it by hash")
)

// Key returns the 32 bytes under which the record of a thing is kept: SHA-256 of owner, a zero byte, thing.
func Key(owner did.DID, thing string) [32]byte { panic("td") }

// Select returns the index of the record that wins, of records that may be anything: a final tombstone, then the higher
// seq, then the later expiry, then the larger hash, then the one with its TD inside; the first of equals. It is pure and needs no clock. The error says
// that none could be decoded.
func Select(records [][]byte) (int, error) { panic("td") }

// Ref is how people and messages name a thing.
//
// Forms: "weather" (a title, its slug, or the last part of an id; must be unique), "weather@z6Mkp…" (the same, with the owner's key, or any
// unique prefix of it), a full id ("urn:…"), a full id and owner ("urn:…@z6Mk…"), a did.
type Ref struct {
	Name  string // name or id
	Owner string // "", or a prefix of the owner's multibase key, or a full DID
}

// ParseRef splits a reference at its owner.
func ParseRef(s string) Ref { panic("td") }

// Ref returns the exact reference of d: id and owner.
func (d *Description) Ref() string { panic("td") }

// Name returns the short name of the thing: the slug of its title.
func (t *Thing) Name() string { panic("td") }

// Slug returns s in lower case with runs of anything but letters and digits as one hyphen: "Weather Agent" is "weather-agent".
func Slug(s string) string { panic("td") }

// Normal returns the normal form of a capability id: NFC, lower case, no empty level; ok is false if nothing is left or
// the id is longer than MaxCapability.
func Normal(capability string) (id string, ok bool) { panic("td") }

// Levels returns the prefixes of a normal capability id by levels, at most four, shortest first: split at ":" and "/"
// after a leading "urn:" is dropped. "urn:telekom:capability:billing" gives "telekom", "telekom:capability", ….
func Levels(capability string) []string { panic("td") }

// Shard returns the capability shard of an id, 0 to 15: the hash of its first level.
func Shard(capability string) byte { panic("td") }

// Terms returns what a thing can be found by as a capability: the ids of lmos:capabilities, the names of its actions and
// its types; normalised, sorted, unique, at most MaxCaps.
func (t *Thing) Terms() []string { panic("td") }

// A Query asks for things. Empty fields ask nothing; all that are set must hold.
type Query struct {
	Capability []string // each an id or a level prefix of one
	ID         string
	Owner      did.DID
	Action     string
	Type       string // "agent", "tool", or any @type
	Text       string // words in title, description, capability names and ids
	Limit      int    // 0 means 32
	// Tally counts who was asked and who answered; nil counts nothing.
	Tally *Tally
}

// Match reports whether d is what q asks for.
func (q *Query) Match(d *Description) bool { panic("td") }

// Coverage says how complete an answer is.
type Coverage struct {
	Asked       int       `json:"asked"`
	Answered    int       `json:"answered"`
	Unreachable int       `json:"unreachable"`
	Oldest      time.Time `json:"oldest"`
	Truncated   bool      `json:"truncated"`
}

// Complete reports whether everyone who was asked has answered in full.
func (c Coverage) Complete() bool { return c.Asked == c.Answered && !c.Truncated }

// A Tally collects a Coverage while a query runs. It is safe for concurrent use; the zero value is ready.
type Tally struct{}

// Ask counts n peers that are being asked.
func (t *Tally) Ask(n int) { panic("td") }

// Answer counts one peer that gave a valid answer in time.
func (t *Tally) Answer() { panic("td") }

// Fail counts one peer that could not be reached, did not answer in time, or answered with nonsense.
func (t *Tally) Fail() { panic("td") }

// Truncate notes that a limit or a deadline cut the answer.
func (t *Tally) Truncate() { panic("td") }

// See notes the age of something in the answer: when its record was issued.
func (t *Tally) See(issued time.Time) { panic("td") }

// Coverage returns what was counted so far.
func (t *Tally) Coverage() Coverage { panic("td") }

// Form returns the first form of the affordance that offers op over one of schemes (of its href), or nil.
func (a *Affordance) Form(op string, schemes ...string) *Form { panic("td") }
