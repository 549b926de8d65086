package localnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/testnet/nat"
)

// A natOptions are the flags of testnet nat.
type natOptions struct {
	quick, keep      bool
	pairs, scenarios []string
	delay            time.Duration
	seed             int64
}

// A NATReport is the document of `lmosd testnet nat`.
type NATReport struct {
	cli.Head
	OK bool `json:"ok"`
	*nat.Report
}

func newTestnetNAT(b *bed) *cobra.Command {
	var o natOptions
	cmd := &cobra.Command{
		Use:   "nat",
		Short: "measure how nodes behind routers reach each other",
		Long: "Runs nodes behind verified routers of four kinds in network namespaces of Linux. For each pair, over QUIC and " +
			"TCP, a new node calls another one, and the table shows the path (direct, punched, relayed) and the times. " +
			"Scenarios follow, such as a killed relay. It takes about ten minutes, --quick two. It needs root or a user " +
			"namespace, ip, nft and /dev/net/tun, and changes nothing outside. Exit code 0 means that all pairs and steps " +
			"passed.",
		Example: `  sudo lmosd testnet nat --quick
  unshare --user --map-root-user lmosd testnet nat --pairs symmetric/full-cone --scenarios none
  sudo lmosd testnet nat --pairs none --scenarios relay-killed,partition -o json`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return b.nat(cmd.Context(), o) },
	}
	cmd.Flags().BoolVar(&o.quick, "quick", false, "16 pairs over QUIC, two at once, without scenarios")
	cmd.Flags().StringSliceVar(&o.pairs, "pairs", nil, "`PAIRS` as caller/called or caller/called/transport, or none (default: all)")
	cmd.Flags().StringSliceVar(&o.scenarios, "scenarios", nil, "`NAMES` of scenarios, or none (default: all): "+strings.Join(nat.Scenarios, ", "))
	cmd.Flags().DurationVar(&o.delay, "delay", 10*time.Millisecond, "one-way delay between two public addresses")
	cmd.Flags().Int64Var(&o.seed, "seed", 1, "seed of the keys and of lost packets")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "leave the folder with the logs of the nodes")
	return cmd
}

// settings returns the settings of a run.
func (o *natOptions) settings() (s nat.Options, err error) {
	s = nat.Options{Delay: o.delay, Seed: o.seed, Pairs: nat.Matrix(nat.QUIC, nat.TCP), Scenarios: nat.Scenarios}
	if o.quick {
		s.Pairs, s.Scenarios, s.Jobs, s.Punch = nat.Matrix(nat.QUIC), nil, 2, 12*time.Second
	}
	if o.pairs != nil {
		s.Pairs = nil
	}
	for _, text := range o.pairs {
		pairs, err := nat.ParsePair(text)
		if err != nil {
			return s, err
		}
		s.Pairs = append(s.Pairs, pairs...)
	}
	if o.scenarios != nil {
		s.Scenarios = slices.DeleteFunc(slices.Clone(o.scenarios), func(name string) bool { return name == nat.Nothing })
	}
	for _, name := range s.Scenarios {
		if !slices.Contains(nat.Scenarios, name) {
			return s, cli.Usage("use none, or some of "+strings.Join(nat.Scenarios, ", "), "unknown scenario %q", name)
		}
	}
	return s, nil
}

func (b *bed) nat(ctx context.Context, o natOptions) error {
	s, err := o.settings()
	if err != nil {
		return err
	}
	if s.Binary, err = os.Executable(); err != nil {
		return err
	}
	if s.Dir, err = os.MkdirTemp("", "lmosd-nat-"); err != nil {
		return err
	}
	if o.keep {
		b.Talk.Line("kept: " + s.Dir)
	} else {
		defer os.RemoveAll(s.Dir)
	}
	s.OnResult = func(r nat.Result) {
		b.row(r.Unary && r.Stream && r.Events, fmt.Sprintf("%s calls %s over %s: %s, answer after %s", r.Caller, r.Called, r.Transport, r.Path, took(r.First)))
	}
	s.OnStep = func(r nat.Step) { b.row(r.OK, fmt.Sprintf("%s: %s, %s", r.Scenario, r.What, took(r.Took))) }
	r, err := nat.Run(ctx, s)
	switch {
	case r == nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	doc := NATReport{Head: cli.NewHead("NATReport"), OK: err == nil && r.OK(), Report: r}
	if shown := b.Show(cli.View{Doc: doc, People: func(s *terminal.Screen, _ bool) { showNAT(s, r) }}); shown != nil {
		return errors.Join(err, shown)
	}
	if err == nil && !doc.OK {
		err = interact.Errorf(interact.Internal, "lmosd testnet nat --keep   # leaves the logs of the nodes", "pairs or steps failed")
	}
	return err
}

// row prints a measured row for people.
func (b *bed) row(ok bool, text string) {
	mark := b.Talk.Paint(terminal.Green, "✓")
	if !ok {
		mark = b.Talk.Paint(terminal.Red, "✗")
	}
	if b.ForPeople() {
		b.Talk.Line(mark + " " + text)
	}
}

// showNAT prints a table of the pairs and one of the steps.
func showNAT(s *terminal.Screen, r *nat.Report) {
	if len(r.Pairs) > 0 {
		terminal.TableOf(r.Pairs, false, []terminal.Column[nat.Result]{
			{Name: "CALLER", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return string(p.Caller) })},
			{Name: "CALLED", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return string(p.Called) })},
			{Name: "OVER", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return string(p.Transport) })},
			{Name: "PATH", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return string(p.Path) })},
			{Name: "ANSWER", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return took(p.First) })},
			{Name: "DIRECT", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return took(p.Direct) })},
			{Name: "RESERVED", Keep: true, Cell: terminal.TextOf(func(p nat.Result) string { return took(p.Reserved) })},
			{Name: "ERROR", Cell: terminal.TextOf(func(p nat.Result) string { return p.Err })},
		}).Write(s)
	}
	if len(r.Steps) > 0 {
		terminal.TableOf(r.Steps, false, []terminal.Column[nat.Step]{
			{Name: "SCENARIO", Keep: true, Cell: terminal.TextOf(func(p nat.Step) string { return p.Scenario })},
			{Name: "STEP", Keep: true, Cell: terminal.TextOf(func(p nat.Step) string { return p.What })},
			{Name: "OK", Keep: true, Cell: terminal.TextOf(func(p nat.Step) string { return strconv.FormatBool(p.OK) })},
			{Name: "PATH", Keep: true, Cell: terminal.TextOf(func(p nat.Step) string { return string(p.Path) })},
			{Name: "TOOK", Keep: true, Cell: terminal.TextOf(func(p nat.Step) string { return took(p.Took) })},
			{Name: "CALLS", Keep: true, Cell: terminal.TextOf(func(p nat.Step) string { return strconv.Itoa(p.Calls) })},
			{Name: "ERROR", Cell: terminal.TextOf(func(p nat.Step) string { return p.Err })},
		}).Write(s)
	}
	s.Line(terminal.Count(r.Routers, "router", "routers") + " verified")
}

// took returns milliseconds as a text, "-" for 0.
func took(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", ms)
}
