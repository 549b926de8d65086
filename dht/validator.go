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

// errKey says that a record is not kept under the key of its owner and thing.
var errKey = errors.New("the record belongs under another key")

// RecordKey returns the DHT key of the record with a key of [td.Key]. Raw bytes are legal in it, whatever they are.
func RecordKey(k [32]byte) string { return "/" + namespaceTD + "/" + string(k[:]) }

func valueKeyOf(owner did.DID, thing string) string { return RecordKey(td.Key(owner, thing)) }

// A validator is the only admission point of values: anybody may put anything, and keep alive what somebody else has put.
type validator struct {
	verifier      *td.Verifier
	equivocations *equivocations // nil looks for none
}

// Validate says what is wrong with value under key, now. It never panics and allocates no more than a record needs.
func (v *validator) Validate(key string, value []byte) error {
	raw, ok := strings.CutPrefix(key, "/"+namespaceTD+"/")
	if !ok || len(raw) != 32 {
		return fmt.Errorf("%w: the key has %d bytes", errKey, len(key))
	}
	r, err := v.verifier.Record(value, time.Now())
	if err != nil {
		return err
	}
	if want := td.Key(r.Owner, r.Thing); raw != string(want[:]) {
		return errKey
	}
	return nil
}

// Select returns the index of the record that wins; a tie goes to the lowest, or a record that is published again would
// not count as received again, and die of age. It is an error only if nothing can be read. The library asks it of each pair of
// valid records that it meets, so that this is where forks show.
func (v *validator) Select(_ string, values [][]byte) (int, error) {
	if v.equivocations != nil && len(values) == 2 && !bytes.Equal(values[0], values[1]) {
		v.compare(values[0], values[1])
	}
	return td.Select(values)
}

// compare passes two records on if they are a fork: different, of one thing, with one seq.
func (v *validator) compare(a, b []byte) {
	now := time.Now()
	one, err := v.verifier.Record(a, now)
	if err != nil {
		return
	}
	other, err := v.verifier.Record(b, now)
	if err != nil || one.Seq != other.Seq || one.Key() != other.Key() {
		return
	}
	bareOne, bareOther := *one, *other
	bareOne.Inline, bareOther.Inline = nil, nil // with and without its TD it is the same record
	if bareOne.Compare(&bareOther) != 0 && v.equivocations.isNew(a, b) {
		v.equivocations.report(&td.Signed{Record: a})
		v.equivocations.report(&td.Signed{Record: b})
	}
}

// maxEquivocations is how many forks are remembered as told.
const maxEquivocations = 1024

// equivocations passes evidence on, each pair once as far as memory goes. It is safe for concurrent use.
type equivocations struct {
	report func(*td.Signed)

	mu   sync.Mutex
	seen map[[32]byte]bool // owned by mu
}

// isNew reports whether a fork was not told yet, and notes it.
func (f *equivocations) isNew(a, b []byte) bool {
	one, other := sha256.Sum256(a), sha256.Sum256(b)
	for i := range one {
		one[i] ^= other[i] // whichever came first
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[one] {
		return false
	}
	if f.seen == nil || len(f.seen) >= maxEquivocations {
		f.seen = map[[32]byte]bool{} // the directory knows, too
	}
	f.seen[one] = true
	return true
}
