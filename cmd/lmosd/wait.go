package main

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/condition"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Times of lmosd wait.
const (
	waitTimeout = time.Minute
	waitFirst   = 250 * time.Millisecond // between two attempts to reach a node; the pauses double
	waitMost    = time.Second            // also between two checks without an event
)

func newWaitCommand(a *app) *cobra.Command {
	var conditions []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "wait until the node is in a state",
		Long: "Waits until all conditions hold, also for a node that is not started yet: ready,\n" +
			"peers=N, agents=N, agent=NAME, relay or reachable; ready is the default. Exit\n" +
			"code 7 after the timeout, with what is missing; 3 if no node runs.",
		Example: `  lmosd wait
  lmosd wait --for peers=3 --for agent=weather --timeout 10s
  lmosd wait --for reachable -o json`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd events, lmosd top"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return cli.Usage("for example --timeout 10s", "--timeout is %v; expected a positive duration", timeout)
			}
			var all []condition.Condition
			for _, text := range conditions {
				c, err := condition.Parse(text)
				if err != nil {
					return err
				}
				all = append(all, c)
			}
			return a.wait(cmd.Context(), all, timeout)
		},
	}
	cmd.Flags().StringSliceVar(&conditions, "for", []string{"ready"}, "`CONDITION` to wait for; may be repeated")
	cmd.Flags().DurationVar(&timeout, "timeout", waitTimeout, "wait for at most this `TIME`")
	_ = cmd.RegisterFlagCompletionFunc("for", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return condition.Kinds(), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// A waited is the document of lmosd wait.
type waited struct {
	cli.Head
	Met        bool               `json:"met"`
	Took       float64            `json:"took_ms"`
	Conditions []condition.Result `json:"conditions"`
}

// wait checks the conditions when something happens at the node, and each second, until all hold.
func (a *app) wait(ctx context.Context, all []condition.Condition, timeout time.Duration) error {
	start := time.Now()
	life, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var missing atomic.Pointer[string]
	text := "a node"
	missing.Store(&text)
	defer a.Waiting(func() string { return "waiting: " + *missing.Load() })()
	var results []condition.Result
	var absent error // no node runs
	pauses := backoff.Backoff{First: waitFirst, Max: waitMost}
	var client *api.Client
	var changed <-chan struct{}
	defer func() { a.shared = client }() // it is closed at the end
	for {
		if client == nil {
			var err error
			if client, err = a.dial(); err != nil { // again for each attempt: the socket of a node is there when it starts
				return err
			}
			client.Observe(nil)
		}
		now, err := condition.Check(life, client, all)
		code := interact.Code(0)
		if err != nil {
			code = interact.AsError(err).Code
		}
		switch {
		case err == nil:
			results, absent = now, nil
			if !slices.ContainsFunc(now, func(r condition.Result) bool { return !r.Met }) {
				return a.showWaited(waited{cli.NewHead("Wait"), true, api.Milliseconds(time.Since(start)), now})
			}
			text := condition.Missing(now)
			missing.Store(&text)
			if changed == nil {
				changed = changesOf(life, client)
			}
			pauses.Reset()
		case life.Err() != nil:
		case code == interact.NotRunning, code == interact.NodeLost, code == interact.ShuttingDown:
			client.Close()
			absent, changed, client = err, nil, nil
			text := "no node runs yet"
			missing.Store(&text)
		default:
			return err
		}
		pause := waitMost
		if absent != nil {
			pause = pauses.Next()
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case _, ok := <-changed:
			if !ok { // the stream ended, and begins again after the pause
				changed = nil
				_ = backoff.Sleep(life, pause)
			}
		case <-life.Done():
		}
		if timer.Stop(); life.Err() != nil {
			return a.notInTime(ctx, results, absent, timeout)
		}
	}
}

// notInTime returns the error of a wait that has ended: it was interrupted, no node ran, or conditions are not met.
func (a *app) notInTime(ctx context.Context, results []condition.Result, absent error, timeout time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case results == nil && absent != nil:
		return absent
	}
	return interact.Errorf(interact.Timeout, "", "not in %v: %s", timeout, cmp.Or(condition.Missing(results), "the node does not answer")).Then(interact.StepStatus)
}

// changesOf returns a channel that receives a value after changes of the node, until ctx ends; it is closed when the stream of events ends.
func changesOf(ctx context.Context, client *api.Client) <-chan struct{} {
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		for _, err := range client.WatchEvents(ctx, []string{"peer", "agent", "relay"}, 0) {
			if err != nil {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
}

func (a *app) showWaited(doc waited) error {
	return a.Show(cli.View{Doc: doc, Names: cli.Each(doc.Conditions, func(r condition.Result) string { return r.Condition }),
		People: func(s *terminal.Screen, _ bool) {
			sheet := &terminal.Sheet{}
			for _, r := range doc.Conditions {
				sheet.Add(r.Condition, r.State)
			}
			sheet.Write(s)
		}})
}
