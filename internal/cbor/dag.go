package cbor

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/fxamacker/cbor/v2"
)

// MaxDAGDepth is the maximum nesting of arrays and maps in DAG-CBOR: statements of UCAN policies nest by two arrays for each level.
const MaxDAGDepth = 96

// A Link is the content of a link of DAG-CBOR (tag 42): a zero byte and a binary CID.
type Link []byte

// dagEnc and dagDec are immutable and safe for concurrent use.
var (
	dagTags = linkTag()
	dagEnc  = must(dagEncoding().EncModeWithTags(dagTags))
	dagDec  = must(dagDecoding().DecModeWithTags(dagTags))
)

func linkTag() cbor.TagSet {
	s := cbor.NewTagSet()
	must(struct{}{}, s.Add(cbor.TagOptions{EncTag: cbor.EncTagRequired, DecTag: cbor.DecTagRequired}, reflect.TypeFor[Link](), 42))
	return s
}

// dagEncoding is the form of DAG-CBOR: shorter keys first, and floats of 64 bits.
func dagEncoding() cbor.EncOptions {
	return cbor.EncOptions{
		Sort:          cbor.SortLengthFirst,
		ShortestFloat: cbor.ShortestFloatNone,
		NaNConvert:    cbor.NaNConvertReject,
		InfConvert:    cbor.InfConvertReject,
		IndefLength:   cbor.IndefLengthForbidden,
		NilContainers: cbor.NilContainerAsEmpty,
	}
}

func dagDecoding() cbor.DecOptions {
	o := strict(cbor.ExtraDecErrorNone)
	o.MaxNestedLevels = MaxDAGDepth
	o.TagsMd = cbor.TagsAllowed
	o.IntDec = cbor.IntDecConvertSignedOrFail
	o.DefaultMapType = reflect.TypeFor[map[string]any]()
	return o
}

// MarshalDAG returns the DAG-CBOR of a value of the kinds of [UnmarshalDAG], or of a type whose fields and elements have such kinds.
func MarshalDAG(v any) ([]byte, error) {
	b, err := dagEnc.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode DAG-CBOR: %w", err)
	}
	return b, nil
}

// UnmarshalDAG decodes b, exactly one value in the one form of DAG-CBOR. The kinds of values are nil, bool, int64, float64, string, []byte,
// [Link], []any and map[string]any. It rejects integers beyond int64, which DAG-CBOR has, and what [Unmarshal] rejects. The value keeps no
// reference to b.
func UnmarshalDAG(b []byte) (any, error) {
	var v any
	if err := dagDec.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("decode DAG-CBOR: %w", err)
	}
	if err := checkKinds(v); err != nil {
		return nil, fmt.Errorf("decode DAG-CBOR: %w", err)
	}
	if again, err := dagEnc.Marshal(v); err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("decode DAG-CBOR: not in the canonical form")
	}
	return v, nil
}

// checkKinds rejects other tags and simple values, which the decoder accepts.
func checkKinds(v any) error {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte:
		return nil
	case Link:
		if len(v) < 2 || v[0] != 0 {
			return errors.New("a link that is not a binary CID")
		}
		return nil
	case []any:
		for _, e := range v {
			if err := checkKinds(e); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		for _, e := range v {
			if err := checkKinds(e); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("a value of the kind %T", v)
}
