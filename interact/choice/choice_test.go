package choice

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
)

const ms = time.Millisecond

type of = Candidate[string]

// A subject is a candidate and what was measured of it.
type subject struct {
	of
	average time.Duration
	age     time.Duration // of the average
	running int
	failed  int // of as many calls
}

// ordered returns the names of the subjects in their order, and the choices.
func ordered(t *testing.T, intn func(int) int, subjects map[string]subject) (string, map[string]Choice) {
	t.Helper()
	m := &Meter[string]{Intn: intn, all: map[string]*state{}}
	var candidates []of
	for name, s := range subjects {
		s.Key = name
		candidates = append(candidates, s.of)
		st := &state{average: s.average, answered: time.Now().Add(-s.age), running: s.running}
		for range s.failed {
			st.fail(1502, time.Now())
		}
		m.all[name] = st
	}
	var names []string
	choices := map[string]Choice{}
	for _, c := range m.Order(candidates) {
		name := candidates[c.Index].Key
		names = append(names, name)
		choices[name] = c
	}
	return strings.Join(names, " "), choices
}

// seeded returns a random source and prints its seed.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestOrder(t *testing.T) {
	t.Parallel()
	down, refusing, local, unsure := of{Unreachable: true}, of{Refused: true}, of{Local: true}, of{Unsure: true}
	for name, tt := range map[string]struct {
		subjects map[string]subject
		want     string
	}{
		"the lower average first":            {map[string]subject{"a": {average: 20 * ms}, "b": {average: 10 * ms}}, "b a"},
		"running calls count":                {map[string]subject{"a": {average: 10 * ms, running: 2}, "b": {average: 20 * ms}}, "b a"},
		"unreachable and refusing ones last": {map[string]subject{"a": {of: refusing}, "b": {of: down, average: ms}, "c": {average: time.Second}}, "c b a"},
		"an open breaker is last, but before unreachable ones": {
			map[string]subject{"a": {average: ms, failed: 10}, "b": {of: down}, "c": {average: time.Second}}, "c a b"},
		"nine failures do not open it":             {map[string]subject{"a": {average: ms, failed: 9}, "b": {average: time.Second}}, "a b"},
		"a local one below twice the best":         {map[string]subject{"a": {of: local, average: 19 * ms}, "b": {average: 10 * ms}}, "a b"},
		"a local one above twice the best":         {map[string]subject{"a": {of: local, average: 21 * ms}, "b": {average: 10 * ms}}, "b a"},
		"a local one that was not measured":        {map[string]subject{"a": {of: local}, "b": {average: 10 * ms}}, "a b"},
		"a local one, all within the noise":        {map[string]subject{"a": {of: local, average: 900 * time.Microsecond}, "b": {average: 100 * time.Microsecond}}, "a b"},
		"a local one that is down":                 {map[string]subject{"a": {of: of{Local: true, Unreachable: true}}, "b": {average: time.Second}}, "b a"},
		"an unmeasured one by its host's latency":  {map[string]subject{"a": {of: of{RoundTrip: 30 * ms}}, "b": {average: 20 * ms}}, "b a"},
		"a near unmeasured one":                    {map[string]subject{"a": {of: of{RoundTrip: 5 * ms}}, "b": {average: 20 * ms}}, "a b"},
		"an old average does not count":            {map[string]subject{"a": {of: of{RoundTrip: 5 * ms}, average: time.Minute, age: measuredFor}, "b": {average: 20 * ms}}, "a b"},
		"an unmeasured one is as good as most are": {map[string]subject{"a": {running: 1}, "b": {average: 20 * ms}}, "b a"},
		"an unsure one after a slow one":           {map[string]subject{"a": {of: unsure, average: ms}, "b": {average: time.Second}}, "b a"},
		"an unsure one before a failing one":       {map[string]subject{"a": {of: unsure, average: time.Second}, "b": {average: ms, failed: 10}}, "a b"},
		"the better of unsure ones":                {map[string]subject{"a": {of: unsure, average: 20 * ms}, "b": {of: unsure, average: 10 * ms}}, "b a"},
		"none":                                     {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, _ := ordered(t, seeded(t).IntN, tt.subjects); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, choices := ordered(t, nil, map[string]subject{"local": {of: of{Local: true}}, "measured": {average: 12 * ms, running: 2},
			"quick": {average: 1234 * time.Microsecond, running: 1}, "unmeasured": {}, "near": {of: of{RoundTrip: 3 * ms}}, "failing": {failed: 12},
			"down": {of: of{Unreachable: true}}, "refusing": {of: of{Refused: true}}})
		for name, want := range map[string]string{"local": "on this node, not measured yet", "measured": "12 ms on average, 2 calls run",
			"quick": "1.2 ms on average, 1 call runs", "unmeasured": "not measured yet", "near": "not measured yet, its host is 3.0 ms away",
			"failing": "12 of the last 12 calls failed", "down": "unreachable", "refusing": "a policy rejects the connection"} {
			if got := choices[name].Reason; got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if c := choices["measured"]; c.Cost != 36*ms || c.Running != 2 {
			t.Errorf("got %+v", c)
		}
	})
}

// Callers that choose at one time do not all choose the same Thing, and none chooses the worst.
func TestTwoRandomChoices(t *testing.T) {
	t.Parallel()
	random, subjects := seeded(t), map[string]subject{}
	for i := range 5 {
		subjects[fmt.Sprint(i)] = subject{average: time.Duration(10+i) * ms}
	}
	first := map[string]int{}
	for range 1000 {
		names, _ := ordered(t, random.IntN, subjects)
		first[names[:1]]++
		rest := strings.Join(strings.Split(names, " ")[1:], "")
		for i := range len(rest) - 1 {
			if rest[i] > rest[i+1] {
				t.Fatalf("the rest of %q is not ordered by cost", names)
			}
		}
	}
	// The better of two of five: 40, 30, 20, 10 and 0 %.
	for i, want := range []int{400, 300, 200, 100, 0} {
		if got := first[fmt.Sprint(i)]; got < want-70 || got > want+70 || want == 0 && got > 0 {
			t.Errorf("%d was first %d times of 1000, want about %d", i, got, want)
		}
	}
}

// Equal Things get equal shares.
func TestEqualCandidatesShare(t *testing.T) {
	t.Parallel()
	random, first := seeded(t), map[string]int{}
	for range 1000 {
		names, _ := ordered(t, random.IntN, map[string]subject{"a": {}, "b": {}})
		first[names]++
	}
	if first["a b"] < 400 || first["b a"] < 400 {
		t.Errorf("got %v", first)
	}
}

// One that was slow once is tried again, after a number of calls that depends on how slow it was, and not on time.
func TestSlowOneIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m Meter[string]
		for name, took := range map[string]time.Duration{"fast": ms, "slow": 64 * ms} {
			c := m.Begin(name, &interact.Message{})
			time.Sleep(took)
			c.Reply(&interact.Message{})
			c.End()
		}
		candidates := []of{{Key: "fast"}, {Key: "slow"}}
		calls := 0
		for candidates[m.Indices(candidates)[0]].Key == "fast" {
			calls++
		}
		if calls < 200 || calls > 400 {
			t.Errorf("it was tried again after %d calls", calls)
		}
	})
}
