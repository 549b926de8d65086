package journal

import (
	"time"
)

// Step is the time between two samples, and Window is the time of all that are kept.
const (
	Step   = 5 * time.Second
	Window = 15 * time.Minute
)

const maxSamples = int(Window / Step)

// A Sample is the load of a node in one step. A negative value is unknown.
type Sample struct {
	// Calls and Errors are the interactions that ended and failed, per second; P50 and P99 are percentiles of their durations, in milliseconds.
	Calls, Errors, P50, P99 float64
	Peers                   int
	// Agents are the Things in the index, and Open those that a consumer on loopback without a token may see.
	Agents, Open int
	// RSS is the resident memory of the process, in bytes.
	RSS int64
}

// unknown is the sample of a time without one.
var unknown = Sample{-1, -1, -1, -1, -1, -1, -1, -1}

// samples are the last samples. The owner holds a lock.
type samples struct {
	ring[Sample]
	to time.Time // of the last one
}

// Sample adds the sample of the last step. Steps without one, such as while the process was suspended, are unknown.
func (j *Journal) Sample(s Sample) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now, all := time.Now(), &j.samples
	if all.n > 0 {
		missed := int(now.Sub(all.to).Round(0)/Step) - 1
		for range min(max(missed, 0), maxSamples) {
			all.add(unknown)
		}
	}
	all.add(s)
	all.to = now
}

func (all *samples) add(s Sample) {
	if all.n == maxSamples {
		all.pop()
	}
	all.push(s, maxSamples)
}

// Series returns the last n samples, at most those of [Window], oldest first, and the time of the last one. Those before the first are unknown.
func (j *Journal) Series(n int) (found []Sample, to time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n = min(n, maxSamples)
	for i := range n {
		at := j.samples.n - n + i
		if at < 0 {
			found = append(found, unknown)
			continue
		}
		found = append(found, *j.samples.at(at))
	}
	return found, j.samples.to.UTC()
}
