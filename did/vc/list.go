package vc

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// The limits of a status list.
const (
	MinEntries = 131072  // hides which entry a reader looks up (Bitstring Status List §6.1)
	MaxList    = 1 << 20 // bytes of the document
	maxBits    = 1 << 20 // bytes of the unpacked bits
	MaxRevoked = 4096    // members
)

// A List is the status list of one issuing key. Those that [VerifyList] and [IssueList] return are immutable.
type List struct {
	ID     string  // its URL
	Issuer did.DID // the organization
	Method string  // the DID URL of the key that signed
	// Version rises with each list of the issuing key.
	Version     uint64
	From, Until time.Time
	// Revoked are the members that were revoked lately, with the end of their exclusion. They may not prove the membership with another
	// credential.
	Revoked map[did.DID]time.Time
	Raw     json.RawMessage // canonical JSON

	bits []byte
}

// NewList returns an unsigned list in which no bit is set.
func NewList(id string, issuer did.DID) *List {
	return &List{ID: id, Issuer: issuer, bits: make([]byte, MinEntries/8)}
}

// Len returns the number of entries.
func (l *List) Len() int { return 8 * len(l.bits) }

// IsSet reports whether the bit of an entry is set. An index beyond the list is set: its credential cannot be checked.
func (l *List) IsSet(index int) bool {
	return index < 0 || index >= l.Len() || l.bits[index/8]&(0x80>>(index%8)) != 0
}

// With returns a copy whose bits of the indexes are set, too. The copy is not signed.
func (l *List) With(indexes ...int) *List {
	c := *l
	c.bits, c.Raw, c.Revoked = bytes.Clone(l.bits), nil, maps.Clone(l.Revoked)
	for _, i := range indexes {
		if i >= 0 && i < l.Len() {
			c.bits[i/8] |= 0x80 >> (i % 8)
		}
	}
	return &c
}

// Missing returns the entries that old has set and l has not: a revocation is final, whatever a later list states.
func (l *List) Missing(old *List) (all []int) {
	for i, b := range old.bits {
		if i < len(l.bits) {
			b &^= l.bits[i]
		} else {
			b = 0 // an index beyond the list is set
		}
		for bit := range 8 {
			if b&(0x80>>bit) != 0 {
				all = append(all, 8*i+bit)
			}
		}
	}
	return all
}

// Revokes reports whether the list revokes a credential of its issuer, by its bit or by its subject.
func (l *List) Revokes(c *Credential, now time.Time) bool {
	return c.Issuer == l.Issuer && (c.Status.List == l.ID && l.IsSet(c.Status.Index) || l.Excludes(c.Subject, now) || c.Host != "" && l.Excludes(c.Host, now))
}

// Excludes reports whether the member was revoked lately.
func (l *List) Excludes(member did.DID, now time.Time) bool { return now.Before(l.Revoked[member]) }

// IssueList signs a list for the time from now to until with the key of s, which the document of the issuer lists as method. l is not
// changed.
func IssueList(l *List, version uint64, from, until time.Time, s did.Signer, method string) (*List, error) {
	subject := map[string]any{"id": l.ID + "#list", "type": "BitstringStatusList", "statusPurpose": "revocation", "ttl": 60000.0,
		"encodedList": encode(l.bits), "version": float64(version)}
	if version > 1<<53 {
		return nil, errors.New("issue a status list: the version is beyond 2^53")
	}
	revoked := []any{}
	for _, member := range slices.Sorted(maps.Keys(l.Revoked)) {
		if end := l.Revoked[member]; from.Before(end) {
			revoked = append(revoked, map[string]any{"id": string(member), "until": stamp(end)})
		}
	}
	if len(revoked) > 0 {
		subject["revoked"] = revoked
	}
	doc := map[string]any{"@context": []any{contextV2}, "id": l.ID, "type": []any{"VerifiableCredential", "BitstringStatusListCredential"},
		"issuer": string(l.Issuer), "validFrom": stamp(from), "validUntil": stamp(until), "credentialSubject": subject}
	raw, err := sign(doc, s, method, from)
	if err != nil {
		return nil, err
	}
	out, err := readList(doc) // what readers reject is not issued
	if err != nil {
		return nil, err
	}
	out.Method, out.Raw = method, raw
	return out, nil
}

// VerifyList verifies a status list as [Verify] verifies a credential. raw is at most [MaxList] bytes. An expired list is returned with an
// error that wraps [ErrExpired]: its bits still revoke.
func VerifyList(ctx context.Context, raw []byte, check Check) (*List, error) {
	v, whole, err := verify(ctx, raw, MaxList, check)
	if err != nil {
		return nil, err
	}
	l, err := readList(v.Document)
	if err != nil {
		return nil, err
	}
	if v.Owner != l.Issuer {
		return nil, fmt.Errorf("%w: the list of %s is signed by %s", ErrInvalid, l.Issuer.Short(), v.Owner.Short())
	}
	l.Method = v.Method
	if l.Raw, err = jcs.Append(nil, whole); err != nil {
		return nil, err
	}
	switch err := window(l.From, l.Until, check.now()); {
	case errors.Is(err, ErrExpired):
		return l, err
	case err != nil:
		return nil, err
	}
	return l, nil
}

func readList(doc map[string]any) (*List, error) {
	l := &List{}
	if err := l.read(doc); err != nil {
		return nil, fmt.Errorf("%w: status list: %w", ErrInvalid, err)
	}
	return l, nil
}

func (l *List) read(doc map[string]any) (err error) {
	if _, err = readEnvelope(doc, "BitstringStatusListCredential"); err != nil {
		return err
	}
	if l.ID, _ = doc["id"].(string); l.ID == "" {
		return errors.New("it has no id")
	}
	if l.Issuer, err = issuer(doc["issuer"]); err != nil {
		return err
	}
	if l.From, l.Until, err = times(doc); err != nil {
		return err
	}
	s, ok := doc["credentialSubject"].(map[string]any)
	if !ok || s["type"] != "BitstringStatusList" || s["statusPurpose"] != "revocation" {
		return errors.New("credentialSubject is not a BitstringStatusList for revocation")
	}
	n, ok := s["version"].(float64)
	if !ok || n < 0 || n > 1<<53 || n != math.Trunc(n) {
		return errors.New("credentialSubject.version is not a number from 0 to 2^53")
	}
	l.Version = uint64(n)
	if err := l.readRevoked(s["revoked"]); err != nil {
		return err
	}
	text, _ := s["encodedList"].(string)
	l.bits, err = decode(text)
	return err
}

func (l *List) readRevoked(v any) error {
	all, ok := v.([]any)
	if !ok && v != nil || len(all) > MaxRevoked {
		return fmt.Errorf("credentialSubject.revoked is not an array of at most %d", MaxRevoked)
	}
	for _, one := range all {
		m, _ := one.(map[string]any)
		id, err := memberKey(m["id"])
		if err != nil {
			return fmt.Errorf("credentialSubject.revoked: %w", err)
		}
		end, err := readTime(m, "until")
		if err != nil {
			return fmt.Errorf("credentialSubject.revoked: %w", err)
		}
		if l.Revoked == nil {
			l.Revoked = make(map[did.DID]time.Time, len(all))
		}
		l.Revoked[id] = end
	}
	return nil
}

// encode returns the form of encodedList (Bitstring Status List §3.3): multibase base64url of the compressed bits.
func encode(bits []byte) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(bits) // a buffer takes everything
	_ = w.Close()
	return "u" + base64.RawURLEncoding.EncodeToString(b.Bytes())
}

func decode(text string) ([]byte, error) {
	body, ok := strings.CutPrefix(text, "u")
	packed, err := base64.RawURLEncoding.DecodeString(body)
	if !ok || err != nil {
		return nil, errors.New("encodedList is not base64url in multibase")
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("encodedList: %w", err)
	}
	bits, err := io.ReadAll(io.LimitReader(r, maxBits+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("encodedList: %w", err)
	case len(bits) > maxBits:
		return nil, fmt.Errorf("encodedList has more than %d entries", 8*maxBits)
	case len(bits) < MinEntries/8:
		return nil, fmt.Errorf("encodedList has %d entries, fewer than %d", 8*len(bits), MinEntries)
	}
	return bits, nil
}
