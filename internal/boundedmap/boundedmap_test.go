package boundedmap

import (
	"maps"
	"testing"
)

func TestPut(t *testing.T) {
	t.Parallel()
	const most = 3
	isNegative := func(v int) bool { return v < 0 }
	full := map[string]int{"a": 1, "b": -1, "c": -2}
	for name, c := range map[string]struct {
		m     map[string]int
		key   string
		stale func(int) bool
		want  map[string]int // nil: any most keys with the new one
	}{
		"a nil map":                {nil, "x", isNegative, map[string]int{"x": 9}},
		"room is left":             {map[string]int{"b": -1}, "x", isNegative, map[string]int{"b": -1, "x": 9}},
		"a known key removes none": {maps.Clone(full), "b", isNegative, map[string]int{"a": 1, "b": 9, "c": -2}},
		"stale values are removed": {maps.Clone(full), "x", isNegative, map[string]int{"a": 1, "x": 9}},
		"no value is stale":        {map[string]int{"a": 1, "b": 2, "c": 3}, "x", isNegative, nil},
		"stale is nil":             {maps.Clone(full), "x", nil, nil},
		"too many values":          {map[string]int{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "x", isNegative, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Put(&c.m, c.key, 9, most, c.stale)
			if c.want != nil && !maps.Equal(c.m, c.want) {
				t.Errorf("got %v, want %v", c.m, c.want)
			}
			if c.want == nil && (len(c.m) != most || c.m[c.key] != 9) {
				t.Errorf("got %v, want %d keys with the new one", c.m, most)
			}
		})
	}
}
