package dht

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// namespaceTD is the namespace of records of TDs: "/lmos-td/" and the 32 raw bytes of [td.Key].
const namespaceTD = "lmos-td"

// errKey means that a record is not stored under the key of its owner and Thing.
var errKey = errors.New("the record belongs under another key")

// errAudience means that a record is not for all nodes: only its hosts give it out.
var errAudience = errors.New("the record is not public")

// errHost means that a host has signed a record. It is not stored: the hosts are the providers of the Thing, and give their records out.
var errHost = errors.New("the record is that of one of several hosts")

// RecordKey returns the DHT key of the record with a key of [td.Key], with all byte values.
func RecordKey(k [32]byte) string { return "/" + namespaceTD + "/" + string(k[:]) }

func valueKeyOf(owner did.DID, thing string) string { return RecordKey(td.Key(owner, thing)) }

// A validator is the only admission check of values: any node can store and refresh any value.
type validator struct {
	verifier      *td.Verifier
	equivocations *equivocations // nil disables detection
}

// Validate returns an error if value is invalid under key now. It never panics and allocates no more than a record needs.
func (v *validator) Validate(key string, value []byte) error {
	raw, ok := strings.CutPrefix(key, "/"+namespaceTD+"/")
	if !ok || len(raw) != 32 {
		return fmt.Errorf("%w: the key has %d bytes", errKey, len(key))
	}
	r, err := v.verifier.Record(value, time.Now())
	if err != nil {
		return err
	}
	if want := r.CarrierKey(); raw != string(want[:]) {
		return errKey
	}
	switch {
	case r.Audience != td.Public:
		return errAudience
	case r.Host != "":
		return errHost
	}
	return nil
}

// Select returns the index of the newest record; the lowest of equal ones, so that a repeated publication refreshes its age. It
// fails only if no value can be parsed. The library calls it for each pair of valid records, so it detects equivocations.
func (v *validator) Select(_ string, values [][]byte) (int, error) {
	if v.equivocations != nil && len(values) == 2 && !bytes.Equal(values[0], values[1]) {
		v.compare(values[0], values[1])
	}
	return td.Select(values)
}

// compare reports two records if they are an equivocation: different, of one Thing, with one sequence number.
func (v *validator) compare(a, b []byte) {
	now := time.Now()
	one, err := v.verifier.Record(a, now)
	if err != nil {
		return
	}
	other, err := v.verifier.Record(b, now)
	if err != nil || one.Seq != other.Seq || one.CarrierKey() != other.CarrierKey() || one.Audience != td.Public || other.Audience != td.Public {
		return
	}
	bareOne, bareOther := *one, *other
	bareOne.Inline, bareOther.Inline = nil, nil // copies with and without TD are equal
	if bareOne.Compare(&bareOther) != 0 && v.equivocations.isNew(a, b) {
		v.equivocations.report(&td.Signed{Record: a})
		v.equivocations.report(&td.Signed{Record: b})
	}
}

// maxEquivocations limits the stored equivocations.
const maxEquivocations = 1024

// equivocations reports evidence, each stored pair once. It is safe for concurrent use.
type equivocations struct {
	report func(*td.Signed)

	mu   sync.Mutex
	seen map[[32]byte]bool // owned by mu
}

// isNew reports whether an equivocation was not reported, and stores it.
func (f *equivocations) isNew(a, b []byte) bool {
	one, other := sha256.Sum256(a), sha256.Sum256(b)
	for i := range one {
		one[i] ^= other[i] // in any order
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[one] {
		return false
	}
	if f.seen == nil || len(f.seen) >= maxEquivocations {
		f.seen = map[[32]byte]bool{} // the directory detects repetitions, too
	}
	f.seen[one] = true
	return true
}
