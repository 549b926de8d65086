package td

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td/schema"
)

// Versions of the records that this package encodes. Only the records of restricted descriptions have the second one, and only those of hosts
// that are not the owner the third one.
const (
	recordVersion     = 1
	restrictedVersion = 2
	hostVersion       = 3
)

// A wireRecord is the encoding of a [Record]: a deterministic CBOR map (RFC 8949 §4.2.1) of at most [MaxRecord] bytes with the keys below.
// Empty members are absent. A record with other keys is malformed; one with a higher version is rejected as such.
//
//	 0  version      uint, 1; 2 with an audience; 3 signed by a host
//	 1  owner        text, a did:key of an Ed25519 key
//	 2  thing        text, the Thing id, 1 to 1024 bytes
//	 3  seq          uint, strictly increasing; 2^64-1 only in a final tombstone
//	 4  issued       uint, Unix seconds
//	 5  expires      uint, Unix seconds; at most 24 h after issued, 30 d in a tombstone
//	 6  kind         uint: 0 TD, 1 tombstone, 2 moved
//	 7  hash         32 bytes, SHA-256 of the TD; kind 0 only
//	 8  size         uint, bytes of the TD; kind 0 only
//	 9  hosts        array of [did:key of the node, [multiaddr, …]]: at most 4, each with at most 4 addresses
//	10  capabilities array of text, at most 64, normalized, sorted, unique
//	11  title        text, at most 200 code points
//	12  summary      text, at most 400 code points
//	13  successor    text, a DID; kind 2 only
//	14  inline       bytes, zstd of the TD with the dictionary of inline.go, at most 6 KiB; kind 0 only
//	15  signature    64 bytes, Ed25519
//	16  audience     uint: 1 partners, 2 organization, 3 private; version 2 only
//	17  grant        bytes, a [wireGrant]; version 3 only
//	18  state        uint: 1 draining, 2 ended; version 3 only
//
// A record of version 3 is signed by its only host. Its kind is 0. It has neither 7, 8, 10, 11, 12 nor 16: these are in the grant. The last record of a host
// has the state 2: it outlives all that the host signed before.
//
// The signature covers "lmos-td-v1:" and the encoding of the map without keys 14 and 15. The hash covers the TD inside, so a record may be
// sent with or without it. The audience is that of the TD (lmosd:visibility); a record without one is public.
type wireRecord struct {
	Version      uint64     `cbor:"0,keyasint"`
	Owner        string     `cbor:"1,keyasint"`
	Thing        string     `cbor:"2,keyasint"`
	Seq          uint64     `cbor:"3,keyasint"`
	Issued       uint64     `cbor:"4,keyasint"`
	Expires      uint64     `cbor:"5,keyasint"`
	Kind         uint64     `cbor:"6,keyasint"`
	Hash         []byte     `cbor:"7,keyasint,omitempty"`
	Size         uint64     `cbor:"8,keyasint,omitempty"`
	Hosts        []wireHost `cbor:"9,keyasint,omitempty"`
	Capabilities []string   `cbor:"10,keyasint,omitempty"`
	Title        string     `cbor:"11,keyasint,omitempty"`
	Summary      string     `cbor:"12,keyasint,omitempty"`
	Successor    string     `cbor:"13,keyasint,omitempty"`
	Inline       []byte     `cbor:"14,keyasint,omitempty"`
	Signature    []byte     `cbor:"15,keyasint,omitempty"`
	Audience     uint64     `cbor:"16,keyasint,omitempty"`
	Grant        []byte     `cbor:"17,keyasint,omitempty"`
	State        uint64     `cbor:"18,keyasint,omitempty"`

	message []byte // with the domain string; set by record, not encoded
}

type wireHost struct {
	_     struct{} `cbor:",toarray"`
	Node  string
	Addrs []string
}

// Maximum validity of records.
const (
	maxLife      = 24 * time.Hour
	maxTombstone = 30 * 24 * time.Hour
)

// finalSeq is the seq of a final tombstone.
const finalSeq = math.MaxUint64

// latest is the end of the year 9999, the last second that RFC 3339 supports.
const latest = 253402300799

// signed returns the bytes that the signature covers, without the domain string.
func (w wireRecord) signed() ([]byte, error) {
	w.Inline, w.Signature = nil, nil
	return cbor.Marshal(w)
}

// decodeRecord decodes a record and checks size, version, strict decoding, canonical form and bounds, but not the signature. The record
// keeps raw.
func decodeRecord(raw []byte) (*Record, *wireRecord, error) {
	if len(raw) > MaxRecord {
		return nil, nil, fmt.Errorf("record: %w: %d bytes, %d are allowed", ErrTooLarge, len(raw), MaxRecord)
	}
	w := new(wireRecord)
	err := cbor.Unmarshal(raw, w)
	if err != nil { // a higher version may have other members
		w.Version = peekVersion(raw)
	}
	if w.Version > hostVersion {
		return nil, nil, fmt.Errorf("record: %w %d; the highest supported version is %d", ErrVersion, w.Version, hostVersion)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("record: %w: %w", ErrMalformed, err)
	}
	if again, err := cbor.Marshal(w); err != nil || !bytes.Equal(again, raw) {
		return nil, nil, malformed("not in canonical form")
	}
	r, err := w.record(raw)
	return r, w, err
}

// peekVersion returns the version of a record with members that may be unknown; 0 if raw is no CBOR.
func peekVersion(raw []byte) uint64 {
	var head struct {
		Version uint64 `cbor:"0,keyasint"`
	}
	if cbor.Peek(raw, &head) != nil {
		return 0
	}
	return head.Version
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("record: %w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// record checks the bounds of each field and returns the typed form.
func (w *wireRecord) record(raw []byte) (*Record, error) {
	owner, err := w.owner()
	if err != nil {
		return nil, err
	}
	for _, check := range []func() error{w.checkThing, w.checkTimes, w.checkKind, w.checkText, w.checkCapabilities} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	hosts, err := w.hosts()
	if err != nil {
		return nil, err
	}
	r := &Record{
		Owner: owner, Thing: w.Thing, Seq: w.Seq, Kind: Kind(w.Kind), Size: int(w.Size), Hosts: hosts,
		Issued: time.Unix(int64(w.Issued), 0).UTC(), Expires: time.Unix(int64(w.Expires), 0).UTC(),
		Capabilities: w.Capabilities, Title: w.Title, Summary: w.Summary, Successor: did.DID(w.Successor),
		Audience: visibilityOf(w.Audience), Inline: w.Inline, Raw: raw,
	}
	copy(r.Hash[:], w.Hash)
	r.tail = w.tail()
	if at := len(raw) - signatureBytes - r.tail; at > 0 && len(r.Inline) > 0 && bytes.HasSuffix(raw[:at], r.Inline) {
		r.Inline = raw[at-len(r.Inline) : at : at] // the decoder has made a copy
	}
	if w.Version == hostVersion {
		if err := r.setHost(w); err != nil {
			return nil, err
		}
	}
	w.message = r.message()
	r.digest = sha256.Sum256(w.message[len(did.PurposeRecord):])
	return r, nil
}

// owner returns the owner, a did:key, whose key can be checked without a request.
func (w *wireRecord) owner() (did.DID, error) {
	switch {
	case w.Version < recordVersion:
		return "", malformed("version %d", w.Version)
	case (w.Version == restrictedVersion) != (w.Audience != 0), w.Audience > maxAudience:
		return "", malformed("audience %d in version %d", w.Audience, w.Version)
	case w.Version != hostVersion && (len(w.Grant) > 0 || w.State != 0):
		return "", malformed("a grant in version %d", w.Version)
	}
	owner, err := did.Parse(w.Owner)
	if err != nil {
		return "", fmt.Errorf("record: %w: owner: %w", ErrMalformed, err)
	}
	if owner.Method() != "key" {
		return "", fmt.Errorf("record: %w: owner %s: %w: expected a did:key", ErrMalformed, owner.Short(), did.ErrMethod)
	}
	return owner, nil
}

func (w *wireRecord) checkThing() error {
	switch {
	case w.Thing == "" || len(w.Thing) > MaxID:
		return malformed("expected a thing id of 1 to %d bytes, got %d", MaxID, len(w.Thing))
	case strings.ContainsFunc(w.Thing, unicode.IsControl):
		return malformed("control characters in the thing id")
	}
	return checkOwner(w.Thing, did.DID(w.Owner))
}

// checkOwner checks that the owner in an id, if there is one, is the signer: another key must not take over the id with a copied TD. Without
// an owner in the id, owner and id together identify the Thing.
func checkOwner(id string, owner did.DID) error {
	if named := ownerInID(id); named != "" && named != owner {
		return fmt.Errorf("%w: the id %s belongs to %s, not to %s", ErrOwner, schema.Show(id), schema.Show(string(named)), owner)
	}
	return nil
}

func (w *wireRecord) checkTimes() error {
	if w.Issued == 0 || w.Expires > latest || w.Expires <= w.Issued {
		return malformed("issued at %d, expires at %d", w.Issued, w.Expires)
	}
	limit := maxLife
	if Kind(w.Kind) != KindTD {
		limit = maxTombstone
	}
	if life := w.Expires - w.Issued; life > uint64(limit/time.Second) {
		return malformed("valid for %d s, the limit is %v", life, limit)
	}
	return nil
}

func (w *wireRecord) checkKind() error {
	kind := Kind(w.Kind)
	hasTD := w.Version == hostVersion || len(w.Hash) == 32 && w.Size > 0 && w.Size <= MaxTD // setHost checks the rest
	noTD := len(w.Hash) == 0 && w.Size == 0 && len(w.Inline) == 0
	switch {
	case w.Kind > uint64(KindMoved):
		return malformed("unknown kind %d", w.Kind)
	case kind == KindTD && !hasTD:
		return malformed("a hash of %d bytes, a TD of %d bytes", len(w.Hash), w.Size)
	case kind != KindTD && !noTD:
		return malformed("a TD in a record of another kind")
	case (kind == KindMoved) != (w.Successor != ""):
		return malformed("a moved record must have a successor, and other records must not")
	case w.Seq == finalSeq && kind != KindTombstone:
		return malformed("only a tombstone may have the last seq")
	case len(w.Inline) > MaxInline:
		return malformed("a compressed TD of %d bytes, %d are allowed", len(w.Inline), MaxInline)
	case len(w.Signature) != ed25519.SignatureSize:
		return malformed("a signature of %d bytes", len(w.Signature))
	}
	if kind == KindMoved {
		if _, err := did.Parse(w.Successor); err != nil {
			return fmt.Errorf("record: %w: successor: %w", ErrMalformed, err)
		}
	}
	return nil
}

func (w *wireRecord) checkText() error {
	for _, t := range []struct {
		name, text string
		limit      int
	}{{"title", w.Title, MaxTitle}, {"summary", w.Summary, MaxDescription}} {
		if utf8.RuneCountInString(t.text) > t.limit || strings.ContainsFunc(t.text, unicode.IsControl) {
			return malformed("a %s longer than %d characters, or with control characters", t.name, t.limit)
		}
	}
	return nil
}

func (w *wireRecord) checkCapabilities() error {
	if len(w.Capabilities) > MaxCaps {
		return malformed("%d capabilities, %d are allowed", len(w.Capabilities), MaxCaps)
	}
	for i, c := range w.Capabilities {
		if id, ok := Normal(c); !ok || id != c {
			return malformed("capability %s is not in normal form", schema.Show(c))
		}
		if i > 0 && w.Capabilities[i-1] >= c {
			return malformed("capabilities are not sorted, or not unique")
		}
	}
	return nil
}

func (w *wireRecord) hosts() ([]Host, error) {
	if len(w.Hosts) > MaxHosts {
		return nil, malformed("%d hosts, %d are allowed", len(w.Hosts), MaxHosts)
	}
	var hosts []Host
	for _, h := range w.Hosts {
		node, err := did.Parse(h.Node)
		if err != nil || node.Method() != "key" {
			return nil, malformed("host %s is not a did:key of an Ed25519 key", schema.Show(h.Node))
		}
		if slices.ContainsFunc(hosts, func(o Host) bool { return o.Node == node }) {
			return nil, malformed("host %s is listed twice", node.Short())
		}
		if len(h.Addrs) > MaxAddrs || slices.ContainsFunc(h.Addrs, func(a string) bool { return !isAddr(a) }) {
			return nil, malformed("too many or invalid addresses of host %s", node.Short())
		}
		hosts = append(hosts, Host{Node: node, Addrs: h.Addrs})
	}
	return hosts, nil
}

// isAddr reports whether a has the form of a multiaddr. The transport parses it completely.
func isAddr(a string) bool {
	return len(a) > 1 && len(a) <= MaxAddr && a[0] == '/' &&
		!strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' })
}

// checkTime checks the validity at now, with a tolerance of 5 minutes because clocks differ.
func (r *Record) checkTime(now time.Time) error {
	const skew = 5 * time.Minute
	switch {
	case r.Issued.After(now.Add(skew)):
		return fmt.Errorf("record of %s: %w: at %s, the local time is %s", r.Thing, ErrFuture,
			r.Issued.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case r.Grant != nil && r.Grant.Issued.After(now.Add(skew)):
		return fmt.Errorf("grant of %s: %w: at %s, the local time is %s", r.Thing, ErrFuture,
			r.Grant.Issued.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.After(r.Expires.Add(skew)):
		return fmt.Errorf("record of %s: %w at %s", r.Thing, ErrExpired, r.Expires.Format(time.RFC3339))
	}
	return nil
}

// Key returns the key of a Thing: SHA-256 of owner, a zero byte, thing.
func Key(owner did.DID, thing string) [32]byte {
	b := make([]byte, 0, len(owner)+1+len(thing))
	b = append(b, owner...)
	b = append(b, 0)
	return sha256.Sum256(append(b, thing...))
}

// Key returns the key of the record's Thing; see the function [Key].
func (r *Record) Key() [32]byte { return Key(r.Owner, r.Thing) }

// CarrierKey returns the key under which the DHT, gossip and reconciliation carry the record: that of its Thing, and for a record that a host has
// signed that of the Thing at this host ([HostKey]).
func (r *Record) CarrierKey() [32]byte {
	if r.Host != "" {
		return HostKey(r.Owner, r.Thing, r.Host)
	}
	return r.Key()
}

// Final reports whether the record is a final tombstone.
func (r *Record) Final() bool { return r.Kind == KindTombstone && r.Seq == finalSeq }

// Compare orders two records of one Thing: the result is positive if r has precedence over o. A final tombstone has precedence, then the
// higher seq, then the later expiry, then the larger hash of the signed bytes, then the record with its TD inside. Zero: they are equal.
func (r *Record) Compare(o *Record) int {
	return cmp.Or(
		compareBools(r.Final(), o.Final()),
		cmp.Compare(r.Seq, o.Seq),
		r.Expires.Compare(o.Expires),
		bytes.Compare(r.digest[:], o.digest[:]),
		compareBools(len(r.Inline) > 0, len(o.Inline) > 0),
	)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Select returns the index of the record with the highest precedence by [Record.Compare]; the first of equal ones. It skips records that
// cannot be decoded, and does not check signatures. The error wraps [ErrMalformed] if no record can be decoded.
func Select(records [][]byte) (int, error) {
	best, index := (*Record)(nil), -1
	for i, raw := range records {
		r, _, err := decodeRecord(raw)
		if err == nil && (best == nil || r.Compare(best) > 0) {
			best, index = r, i
		}
	}
	if best == nil {
		return -1, fmt.Errorf("%w: none of %d records can be decoded", ErrMalformed, len(records))
	}
	return index, nil
}

// WithoutTD returns the encoded record without the TD inside, see [Signed.WithoutTD]. The caller must not change it.
func (r *Record) WithoutTD() []byte {
	head, end := r.split()
	if len(head)+len(end) == len(r.Raw) {
		return r.Raw
	}
	bare := slices.Concat(head, end)
	bare[0]-- // number of members of the map
	return bare
}

// split returns the parts of the encoded record before and after the TD inside. The second one begins with the signature.
func (r *Record) split() (head, end []byte) {
	at := max(len(r.Raw)-signatureBytes-r.tail, 0) // the signature and the tail come last
	head, end = r.Raw[:at], r.Raw[at:]
	n := len(r.Inline)
	if n == 0 {
		return head, end
	}
	key := []byte{inlineKey, 0x59, byte(n >> 8), byte(n)}
	switch {
	case n < 24:
		key = []byte{inlineKey, 0x40 | byte(n)}
	case n < 256:
		key = []byte{inlineKey, 0x58, byte(n)}
	}
	if before, ok := bytes.CutSuffix(head, r.Inline); ok && bytes.HasSuffix(before, key) {
		head = before[:len(before)-len(key)]
	}
	return head, end
}

// inlineKey is the encoded key of the TD inside a record.
const inlineKey = 14

// signatureBytes is the size of the signature in an encoded record.
const signatureBytes = 1 + 2 + ed25519.SignatureSize

// tail returns the size of what follows the signature in the encoded record: audience, grant, state.
func (w *wireRecord) tail() (n int) {
	if w.Audience != 0 {
		n += 2
	}
	switch g := len(w.Grant); {
	case g == 0:
	case g < 24:
		n += 2 + g
	case g < 256:
		n += 3 + g
	default:
		n += 4 + g
	}
	if w.State != 0 {
		n += 2
	}
	return n
}

// message returns the domain string and the bytes that the signature covers, for a signed record in canonical form; see [wireRecord.signed].
func (r *Record) message() []byte {
	head, end := r.split()
	m := slices.Concat([]byte(did.PurposeRecord), head, end[signatureBytes:])
	members := &m[len(did.PurposeRecord)] // of the map
	*members--
	if len(head)+len(end) < len(r.Raw) {
		*members--
	}
	return m
}
