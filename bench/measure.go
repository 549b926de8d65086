package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const payloadSize = 256

// A caller makes calls and checks their responses. Each concurrent caller has its own, and closes it.
type caller struct {
	call  func(context.Context) error
	rest  func() error // the unmeasured end of a call; nil: none
	close func()
}

// A system is measured with callers.
type system struct {
	name  string
	start starter
}

// A dialer makes callers of a system.
type dialer func() (caller, error)

// A starter runs the other processes and returns a dialer. An error of type skip omits the system.
type starter func(ctx context.Context) (dial dialer, stop func(), err error)

// over returns the starter of a system with a transport, tcp or quic, between its processes.
func over(kind string, start func(ctx context.Context, kind string) (dialer, func(), error)) starter {
	return func(ctx context.Context) (dialer, func(), error) { return start(ctx, kind) }
}

// A skip is the reason why a system is not measured on this machine.
type skip string

func (s skip) Error() string { return string(s) }

// A figure is one measurement.
type figure struct {
	p50, p99 time.Duration
	rate     float64 // calls per second
}

// results are figures by system and number of callers.
type results map[string]map[int][]figure

// compare measures all systems in turn, with each number of callers.
func compare(ctx context.Context, p plan, systems []system, counts ...int) (results, error) {
	all, dials := results{}, map[string]dialer{}
	for _, s := range systems {
		dial, stop, err := s.start(ctx)
		var without skip
		if errors.As(err, &without) {
			p.say("%s is left out: %v", s.name, without)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", s.name, err)
		}
		defer stop()
		dials[s.name], all[s.name] = dial, map[int][]figure{}
	}
	for round := range p.rounds {
		for _, callers := range counts {
			for _, s := range systems {
				if dials[s.name] == nil {
					continue
				}
				f, err := measure(ctx, dials[s.name], callers, p.length)
				if err != nil {
					return nil, fmt.Errorf("%s with %d callers: %w", s.name, callers, err)
				}
				all[s.name][callers] = append(all[s.name][callers], f)
				progress("round %d  %-30s %2d callers  p50 %8v  p99 %8v  %9.0f/s", round+1, s.name, callers, f.p50, f.p99, f.rate)
			}
		}
	}
	return all, nil
}

// against compares systems with one of them, which the table calls by what, with 1 caller and with many.
func against(ctx context.Context, p plan, systems []system, base, what string, many int) (results, error) {
	all, err := compare(ctx, p, systems, 1, many)
	if err != nil {
		return nil, err
	}
	p.table(fmt.Sprintf("system | 1 caller p50 | p99 | p50 / %[1]s | %[2]d callers calls/s | calls/s / %[1]s", what, many))
	for _, s := range systems {
		if all[s.name] == nil {
			continue
		}
		one, most := all.of(s.name, 1), all.of(s.name, many)
		p.row("%s | %.1f µs | %.1f µs | %.2f | %.0f | %.2f", s.name, us(one.p50), us(one.p99), all.time(s.name, base), most.rate,
			all.rate(s.name, base, many))
	}
	return all, nil
}

// time returns the p50 of a system with 1 caller, divided by that of another.
func (r results) time(system, base string) float64 {
	return us(r.of(system, 1).p50) / us(r.of(base, 1).p50)
}

// rate returns the calls per second of a system, divided by those of another.
func (r results) rate(system, base string, callers int) float64 {
	return r.of(system, callers).rate / r.of(base, callers).rate
}

// measure runs callers for a time, after a warm-up.
func measure(ctx context.Context, dial dialer, callers int, length time.Duration) (figure, error) {
	calls := make([]caller, callers)
	for i := range calls {
		c, err := dial()
		if err != nil {
			return figure{}, err
		}
		defer c.close()
		calls[i] = c
	}
	if _, _, err := loop(ctx, calls, length/5); err != nil {
		return figure{}, err
	}
	times, took, err := loop(ctx, calls, length)
	if err != nil {
		return figure{}, err
	}
	slices.Sort(times)
	return figure{p50: times[len(times)/2], p99: times[len(times)*99/100], rate: float64(len(times)) / took.Seconds()}, nil
}

// loop makes calls concurrently until the time ends.
func loop(ctx context.Context, calls []caller, length time.Duration) (times []time.Duration, took time.Duration, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var over atomic.Bool
	var errs []error
	start := time.Now()
	for _, c := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx) // callers are independent, as in a node
			defer cancel()
			own := make([]time.Duration, 0, 1<<16)
			var failed error
			for !over.Load() && failed == nil {
				t := time.Now()
				failed = c.call(ctx)
				own = append(own, time.Since(t))
				if c.rest != nil && failed == nil {
					failed = c.rest()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			times, errs = append(times, own...), append(errs, failed)
		})
	}
	timer := time.AfterFunc(length, func() { over.Store(true) })
	defer timer.Stop()
	wg.Wait()
	return times, time.Since(start), errors.Join(errs...)
}

// of returns the median of each figure of a system.
func (r results) of(system string, callers int) figure {
	fs := r[system][callers]
	return figure{
		p50:  time.Duration(median(fs, func(f figure) float64 { return float64(f.p50) })),
		p99:  time.Duration(median(fs, func(f figure) float64 { return float64(f.p99) })),
		rate: median(fs, func(f figure) float64 { return f.rate }),
	}
}

// medianOf returns the median of numbers.
func medianOf(vs []float64) float64 { return median(vs, func(v float64) float64 { return v }) }

// median returns the median of pick over the elements.
func median[T any](of []T, pick func(T) float64) float64 {
	vs := make([]float64, len(of))
	for i := range of {
		vs[i] = pick(of[i])
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func ms(d time.Duration) float64 { return us(d) / 1000 }
