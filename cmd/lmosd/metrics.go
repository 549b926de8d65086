package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/exposition"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

func newMetricsCommand(a *app) *cobra.Command {
	var raw, all bool
	cmd := &cobra.Command{
		Use:   "metrics [NAME...]",
		Short: "print the figures of the running node",
		Long: "Prints the metrics of the node whose names begin with NAME (\"lmosd_\" may be left out), or those of lmosd that\n" +
			"are not zero. Histograms have estimates of p50 and p99, and the number of samples. The counters begin at the\n" +
			"start of the node. docs/observability.md lists the metrics and has dashboards and alerts.",
		Example: `  lmosd metrics
  lmosd metrics calls_total call_seconds
  lmosd metrics health_warnings -o json --jq '.items[0].series[] | select(.value > 0)'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd calls, lmosd doctor"),
		Args:        cli.Takes(0, 64),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.complete(cmd, func(ctx context.Context, c *api.Client) (names []string, err error) {
				list, _, err := readMetrics(ctx, c)
				for _, m := range list {
					names = append(names, strings.TrimPrefix(m.Name, metricPrefix))
				}
				return names, err
			})
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			if raw && (all || len(args) > 0) {
				return cli.Usage("lmosd metrics --raw", "--raw prints all metrics as the node sends them")
			}
			return a.printMetrics(cmd.Context(), client, args, raw, all)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also zeros, and the metrics of Go, the process and libp2p")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the text for Prometheus")
	return cmd
}

const metricPrefix = "lmosd_"

func readMetrics(ctx context.Context, client *api.Client) (list []exposition.Metric, raw []byte, err error) {
	raw, err = client.Metrics(ctx)
	if e := interact.AsError(err); err != nil && e.Code == interact.NotFound {
		return nil, nil, &interact.Error{Code: interact.NotFound, Title: "the node serves no metrics", Hint: "on its host, before it starts again", Err: err,
			Next: interact.Next(interact.StepSet, "telemetry.metrics", "true")}
	} else if err != nil {
		return nil, nil, err
	}
	if list, err = exposition.Parse(raw); err != nil {
		return nil, nil, &interact.Error{Code: interact.Internal, Title: "the metrics of the node are not in the format of Prometheus", Hint: "update the program of the node", Err: err}
	}
	return list, raw, nil
}

func (a *app) printMetrics(ctx context.Context, client *api.Client, names []string, raw, all bool) error {
	list, text, err := readMetrics(ctx, client)
	if err != nil {
		return err
	}
	if raw {
		return a.Print(text)
	}
	shown := list
	if len(names) > 0 {
		if shown, err = metricsOf(list, names); err != nil {
			return err
		}
	} else if !all {
		shown = slices.DeleteFunc(slices.Clone(list), func(m exposition.Metric) bool { return !strings.HasPrefix(m.Name, metricPrefix) })
		for i := range shown {
			shown[i].Series = slices.DeleteFunc(shown[i].Series, func(s exposition.Series) bool { return s.IsZero() })
		}
		shown = slices.DeleteFunc(shown, func(m exposition.Metric) bool { return len(m.Series) == 0 })
	}
	err = a.Show(cli.View{Doc: cli.List[exposition.Metric]{Head: cli.NewHead("Metrics"), Items: shown}, Names: cli.Each(shown, func(m exposition.Metric) string { return m.Name }),
		People: func(s *terminal.Screen, wide bool) { exposition.Write(s, shown, wide) }})
	if err == nil && len(names) == 0 {
		a.Next("lmosd doctor")
	}
	return err
}

// metricsOf returns the metrics whose names begin with one of names.
func metricsOf(list []exposition.Metric, names []string) (shown []exposition.Metric, err error) {
	found := map[string]bool{}
	var known []string
	for _, m := range list {
		short, is := strings.TrimPrefix(m.Name, metricPrefix), false
		known = append(known, short)
		for _, name := range names {
			if strings.HasPrefix(m.Name, name) || strings.HasPrefix(short, name) {
				found[name], is = true, true
			}
		}
		if is {
			shown = append(shown, m)
		}
	}
	for _, name := range names {
		if !found[name] {
			return nil, cli.Similar(cli.Usage("", "no metric of the node begins with %q", name), name, known, "lmosd metrics --all")
		}
	}
	return shown, nil
}
