package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/top"
)

// minInterval is the least time between two snapshots.
const minInterval = 250 * time.Millisecond

func newTopCommand(a *app) *cobra.Command {
	var once bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "watch the load of the node: calls, times, peers, memory",
		Long: "Shows calls per second, errors, times, the queue, memory, the agents of the last\n" +
			"500 calls and the peers, each second until q or Ctrl-C. Without a terminal, or\n" +
			"with --once, it prints one snapshot; with -o json or jsonl, a document for each\n" +
			"interval.",
		Example: `  lmosd top
  lmosd top --once
  lmosd top -o jsonl --interval 5s`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd calls, lmosd events"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < minInterval {
				return cli.Usage("for example --interval 2s", "--interval is %v; expected at least %v", interval, minInterval)
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			client.Observe(nil)
			s := top.New(client)
			switch {
			case !once && a.ForPeople() && a.Out.Live && a.Talk.Live && terminal.Is(a.Stdin):
				return a.watchTop(cmd.Context(), s, interval)
			case once || !a.Programs():
				return a.showTop(cmd.Context(), s)
			}
			return a.streamTop(cmd.Context(), s, interval)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one snapshot")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "`TIME` between two snapshots")
	return cmd
}

// showTop prints one snapshot.
func (a *app) showTop(ctx context.Context, s *top.Sampler) error {
	x, err := s.Take(ctx)
	if err != nil {
		return err
	}
	err = a.ShowNext(cli.View{Doc: x, Names: []string{string(x.DID)}, People: func(to *terminal.Screen, _ bool) {
		width := 0
		if to.TTY {
			width = to.Width
		}
		for _, line := range x.Lines(to, width, 0) {
			to.Line(line)
		}
	}})
	if err == nil {
		a.Next("lmosd calls", "lmosd status")
	}
	return err
}

// streamTop prints a document for each interval, until ctx ends.
func (a *app) streamTop(ctx context.Context, s *top.Sampler, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		x, err := s.Take(ctx)
		if err == nil {
			err = a.ShowNext(cli.View{Doc: x})
		}
		switch {
		case ctx.Err() != nil:
			return cli.SilentError(cli.ExitInterrupted)
		case err != nil:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cli.SilentError(cli.ExitInterrupted)
		}
	}
}

// Control sequences of a terminal (ECMA-48, and the private modes of xterm).
const (
	otherScreen = "\x1b[?1049h\x1b[?25l" // without a cursor
	firstScreen = "\x1b[?25h\x1b[?1049l"
	topLeft     = "\x1b[H"
	restOfLine  = "\x1b[K"
	restOfPage  = "\x1b[J"
)

// watchTop draws snapshots on the other screen of the terminal until q, Ctrl-C or the end of ctx.
func (a *app) watchTop(ctx context.Context, s *top.Sampler, interval time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f, ok := a.Stdin.(*os.File); ok {
		if restore, err := terminal.ReadKeys(f); err == nil {
			defer func() { _ = restore() }()
			go func() { // it ends with the process: a read of a terminal cannot be interrupted
				key := make([]byte, 1)
				for {
					if n, err := f.Read(key); err != nil || n == 1 && (key[0] == 'q' || key[0] == 'Q') {
						cancel()
						return
					}
				}
			}()
		}
	}
	a.Out.Print(otherScreen)
	defer a.Out.Print(firstScreen)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	resized, stop := terminal.Resized()
	defer stop()
	x, err := s.Take(ctx)
	for {
		switch {
		case ctx.Err() != nil:
			return nil // q and Ctrl-C are how it ends
		case err != nil:
			return err
		}
		height := a.Out.Resize()
		lines := x.Lines(a.Out, a.Out.Width, height)
		a.Out.Print(topLeft + strings.Join(lines, restOfLine+"\r\n") + restOfLine + restOfPage)
		select {
		case <-tick.C:
			x, err = s.Take(ctx)
		case <-resized:
		case <-ctx.Done():
		}
	}
}
