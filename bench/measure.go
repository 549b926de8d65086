package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// A starter runs the other processes and returns a maker of callers. An error of type skip omits the system.
type starter func(ctx context.Context) (dial func() (caller, error), stop func(), err error)

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

// compare measures all systems in turn, with 1 caller and with 64.
func compare(ctx context.Context, p plan, systems []system) (results, error) {
	return compareAt(ctx, p, systems, []int{1, 64})
}

// compareAt is compare with other numbers of callers.
func compareAt(ctx context.Context, p plan, systems []system, counts []int) (results, error) {
	all, dials := results{}, map[string]func() (caller, error){}
	for _, s := range systems {
		dial, stop, err := s.start(ctx)
		var without skip
		if errors.As(err, &without) {
			fmt.Printf("%s is left out: %v\n\n", s.name, without)
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
				fmt.Fprintf(os.Stderr, "round %d  %-30s %2d callers  p50 %8v  p99 %8v  %9.0f/s\n", round+1, s.name, callers, f.p50, f.p99, f.rate)
			}
		}
	}
	return all, nil
}

// against compares systems with the first of them, the direct path, and prints a table. counts are one caller and many.
func against(ctx context.Context, p plan, systems []system, counts []int) error {
	all, err := compareAt(ctx, p, systems, counts)
	if err != nil {
		return err
	}
	few, most := counts[0], counts[len(counts)-1]
	direct := all.of(systems[0].name, few)
	fmt.Printf("| path | 1 caller p50 | p99 | p50 / direct | %d callers calls/s |\n|---|---|---|---|---|\n", most)
	for _, s := range systems {
		if all[s.name] == nil {
			continue
		}
		one, many := all.of(s.name, few), all.of(s.name, most)
		fmt.Printf("| %s | %.0f µs | %.0f µs | %.2f | %.0f |\n", s.name, us(one.p50), us(one.p99), us(one.p50)/us(direct.p50), many.rate)
	}
	return nil
}

// measure runs callers for a time, after a warm-up.
func measure(ctx context.Context, dial func() (caller, error), callers int, length time.Duration) (figure, error) {
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
