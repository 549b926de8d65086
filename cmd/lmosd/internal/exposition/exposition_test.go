package exposition

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

const sample = `# HELP lmosd_calls_total Interactions, by result.
# TYPE lmosd_calls_total counter
lmosd_calls_total{op="invokeaction",result="timeout"} 2
lmosd_calls_total{op="invokeaction",result="ok"} 40
# HELP lmosd_call_seconds Duration.
# TYPE lmosd_call_seconds histogram
lmosd_call_seconds_bucket{le="0.1"} 50
lmosd_call_seconds_bucket{le="0.2"} 100
lmosd_call_seconds_bucket{le="+Inf"} 100
lmosd_call_seconds_sum 9
lmosd_call_seconds_count 100
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0.5"} 0.00004
go_gc_duration_seconds{quantile="1"} 0.001
go_gc_duration_seconds_sum 0.02
go_gc_duration_seconds_count 7
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e9
# TYPE process_virtual_memory_max_bytes gauge
process_virtual_memory_max_bytes 1.8446744073709552e+19
# TYPE lmosd_disk_free_bytes gauge
lmosd_disk_free_bytes 4.5e10
lmosd_clock_skew_seconds -2
odd NaN
`

func TestParse(t *testing.T) {
	t.Parallel()
	list, err := Parse([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	Write(terminal.NewScreen(&b, func(string) string { return "" }), list, false)
	want := strings.Join([]string{"METRIC\tLABELS\tVALUE",
		"go_gc_duration_seconds\t\tp50 40 µs, p100 1.0 ms, n 7",
		"lmosd_call_seconds\t\tp50 100 ms, p99 198 ms, n 100",
		"lmosd_calls_total\top=invokeaction, result=ok\t40",
		"lmosd_calls_total\top=invokeaction, result=timeout\t2",
		"lmosd_clock_skew_seconds\t\t-2.0 s",
		"lmosd_disk_free_bytes\t\t45.0 GB",
		"odd\t\t–",
		"process_start_time_seconds\t\t2023-11-14T22:13:20Z",
		"process_virtual_memory_max_bytes\t\t1.845e+19\n"}, "\n")
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestQuantileWithoutSamples(t *testing.T) {
	t.Parallel()
	list, err := Parse([]byte("# TYPE h histogram\nh_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n# TYPE high histogram\nhigh_bucket{le=\"1\"} 0\nhigh_bucket{le=\"+Inf\"} 3\nhigh_sum 99\nhigh_count 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s := list[0].Series[0]; len(s.Quantiles) != 0 || !s.IsZero() || s.text("seconds") != "n 0" {
		t.Errorf("got %+v", s)
	}
	if s := list[1].Series[0]; s.Quantiles["0.99"] != 1 {
		t.Errorf("above the last bound: %+v", s)
	}
	if !math.IsNaN(quantile(0.5, nil)) {
		t.Error("no histogram has a quantile")
	}
}

// What a node sends is parsed without a panic, and is printable and a document.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("a{b=\"\\n\"} +Inf\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := Parse(text)
		if err != nil {
			return
		}
		var b bytes.Buffer
		Write(terminal.NewScreen(&b, func(string) string { return "" }), list, true)
		if strings.ContainsRune(b.String(), '\x1b') {
			t.Error("control characters are printed")
		}
		if _, err := json.Marshal(list); err != nil {
			t.Error(err)
		}
	})
}
