package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// starts measures restarts of a node with own Things: after an orderly stop, and after kill -9. All acknowledged Things are offered again.
func starts(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "bench-start")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p.table("own Things | after | API answers | ready | all are offered")
	stored := 0
	for _, things := range []int{0, 1000, 10_000} {
		d, err := startDaemon(ctx, dir, stored)
		if err != nil {
			return err
		}
		s := &tdd{url: d.url, client: webClient(), things: stored}
		if err := s.fill(ctx, things); err != nil {
			d.stop(syscall.SIGKILL)
			return err
		}
		stored = things
		ends := []struct {
			what   string
			signal os.Signal
		}{{"a stop", syscall.SIGTERM}, {"kill -9", syscall.SIGKILL}}
		measured := make([][]*daemon, len(ends))
		for range p.rounds {
			for i, end := range ends {
				d.stop(end.signal)
				if d, err = startDaemon(ctx, dir, things); err != nil {
					return err
				}
				measured[i] = append(measured[i], d)
				progress("%5d Things after %-7s  answers %v  ready %v  offers all %v", things, end.what, d.answers, d.isReady, d.offers)
			}
		}
		d.stop(syscall.SIGTERM)
		for i, end := range ends {
			of := func(pick func(*daemon) time.Duration) float64 {
				return median(measured[i], func(d *daemon) float64 { return ms(pick(d)) })
			}
			ready, offers := of(func(d *daemon) time.Duration { return d.isReady }), of(func(d *daemon) time.Duration { return d.offers })
			p.row("%d | %s | %.0f ms | %.0f ms | %.0f ms", things, end.what, of(func(d *daemon) time.Duration { return d.answers }), ready, offers)
			if things == 10_000 {
				p.atMost(fmt.Sprintf("ready with %d Things after %s", things, end.what), ready, 500, " ms")
				p.atMost("all of them are offered", offers, 2000, " ms")
			}
		}
	}
	return nil
}
