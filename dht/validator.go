package dht

import (
	"errors"
	"fmt"
	"strings"
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
type validator struct{ verifier *td.Verifier }

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
// not count as received again, and die of age. It is an error only if nothing can be read.
func (v *validator) Select(_ string, values [][]byte) (int, error) { return td.Select(values) }
