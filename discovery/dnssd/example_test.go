package dnssd_test

import (
	"context"
	"log/slog"
	"sync"

	"github.com/lmosd/lmosd/discovery/dnssd"
)

// A node announces its directory and explores the introductions of others, each with a new Explorer, because its Things can have changed.
func Example() {
	discover := func(ctx context.Context, log *slog.Logger, known func(id string) bool, add func(dnssd.Found),
		drop func(introduction string)) error {
		s, err := dnssd.New(dnssd.Options{Name: "kitchen", Network: "home", Log: log})
		if err != nil {
			return err
		}
		defer s.Close()
		s.Announce(4680, false)
		var watch sync.WaitGroup
		defer watch.Wait()
		watch.Go(func() {
			for c := range s.Watch(ctx) {
				if c.Gone {
					drop(c.Name)
					continue
				}
				x := dnssd.NewExplorer(dnssd.ExplorerOptions{Network: "home", Known: known})
				for f, err := range x.Explore(ctx, c.Introduction) {
					if err != nil {
						log.Debug("exploration incomplete", "err", err)
						continue
					}
					add(f)
				}
			}
		})
		return s.Run(ctx)
	}
	_ = discover
}
