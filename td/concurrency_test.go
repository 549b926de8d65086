package td

import (
	"fmt"
	"testing"
)

// A TD may declare how many concurrent interactions the Thing accepts; invalid values are ignored.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"4": 4, "1": 1, "0": 0, "-1": 0, `"4"`: 0, "1e30": 0, "2.5": 2, "null": 0} {
		draft, err := Draft(fmt.Appendf(nil, `{"title":"x","lmosd:concurrency":%s}`, value))
		if err != nil {
			t.Fatal(err)
		}
		d, err := Parse(draft)
		if err != nil || d.Concurrency != want {
			t.Errorf("%s: got %v, %v, want %d", value, d, err, want)
		}
	}
}
