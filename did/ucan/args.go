package ucan

import (
	"math"

	"github.com/lmosd/lmosd/internal/jcs"
)

// Args returns the arguments of an invocation for the input of a call, strict JSON: the members of an object, and any other input as the
// member "value". No input, of zero bytes, has no arguments. Whole numbers within ±2^53 are integers. The error wraps [InvalidClaim].
func Args(input []byte) (map[string]any, error) {
	if len(input) == 0 {
		return map[string]any{}, nil
	}
	v, err := jcs.Decode(input, MaxBytes)
	if err != nil {
		return nil, failed(InvalidClaim, CID{}, "the input: %v", err)
	}
	v = withIntegers(v)
	if object, ok := v.(map[string]any); ok {
		return object, nil
	}
	return map[string]any{"value": v}, nil
}

// withIntegers converts the whole numbers in v.
func withIntegers(v any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= maxTime {
			return int64(v)
		}
	case []any:
		for i, e := range v {
			v[i] = withIntegers(e)
		}
	case map[string]any:
		for k, e := range v {
			v[k] = withIntegers(e)
		}
	}
	return v
}
