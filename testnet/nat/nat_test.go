package nat

import "testing"

func TestParsePair(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"none": 0, "symmetric/full-cone": 2, "symmetric/full-cone/tcp": 1, "symmetric": -1, "symmetric/full-cone/": -1,
		"symmetric/full-cone/udp": -1, "": -1} {
		pairs, err := ParsePair(text)
		if want < 0 && err == nil || want >= 0 && (err != nil || len(pairs) != want) {
			t.Errorf("%q has the pairs %v, %v", text, pairs, err)
		}
	}
}

func TestReportIsOK(t *testing.T) {
	t.Parallel()
	good := Result{Unary: true, Stream: true, Events: true}
	for name, c := range map[string]struct {
		report Report
		want   bool
	}{
		"all answered":            {Report{Pairs: []Result{good}, Steps: []Step{{OK: true}}}, true},
		"a stream failed":         {Report{Pairs: []Result{good, {Unary: true, Events: true}}}, false},
		"a step failed":           {Report{Pairs: []Result{good}, Steps: []Step{{OK: true}, {}}}, false},
		"a subscription failed":   {Report{Pairs: []Result{{Unary: true, Stream: true}}}, false},
		"a call was not answered": {Report{Pairs: []Result{{}}}, false},
	} {
		if got := c.report.OK(); got != c.want {
			t.Errorf("%s: OK is %v", name, got)
		}
	}
}
