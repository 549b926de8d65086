package localnet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/testnet"
)

// NewDemoCommand returns `lmosd demo`.
func NewDemoCommand(c *cli.Console) *cobra.Command {
	var keep bool
	var story string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "run a scripted demo on this machine, offline",
		Long: "Starts three nodes and an agent as processes on 127.0.0.1, checks each step of a story, and removes everything " +
			"again. Exit code 0 means that every step passed. The story federation has two organizations that become " +
			"partners, a refused node, a failed issuer and a revoked node. In the story group, nodes of two organizations " +
			"and one with a foreign credential form a group, remove a member, and dissolve the group.",
		Example: `  lmosd demo
  lmosd demo --story federation
  lmosd demo --story group
  lmosd demo -o json
  lmosd demo --keep`,
		Args: cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), c, story, keep) },
	}
	cmd.Flags().StringVar(&story, "story", storyMesh, "the `STORY` of the demo: mesh, federation, group")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the folder of the demo, with its logs")
	return cmd
}

// A demo is one run: the mesh, the agent, and the results so far.
type demo struct {
	console *cli.Console
	dir     string
	steps   []storyStep
	net     *testnet.Net
	weather *weather
	first   *api.Publication // the weather agent
	second  *api.Publication // the other agent of the same node
	why     []string         // of the current step
	report  DemoReport
}

// A DemoReport is the document of `lmosd demo`.
type DemoReport struct {
	cli.Head
	OK    bool       `json:"ok"`
	Took  float64    `json:"took_ms"`
	Steps []demoStep `json:"steps"`
	Sizes demoSizes  `json:"sizes"`
}

// A demoStep is one checked step.
type demoStep struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Took   float64 `json:"took_ms"`
	Detail string  `json:"detail"`
	// Why are the explanations of the nodes and lines of their audit logs.
	Why []string `json:"why,omitempty"`
}

// The stories of the demo.
const (
	storyMesh       = "mesh"
	storyFederation = "federation"
	storyGroup      = "group"
)

// A storyStep is a step that runs and is checked.
type storyStep struct {
	name string
	do   func(context.Context) (detail string, err error)
}

// demoSizes are the sizes of the TD and the record of one agent.
type demoSizes struct {
	TD     int `json:"td_bytes"`
	Record int `json:"record_bytes"`
}

const (
	weatherCapability = "urn:example:weather:forecast"
	otherCapability   = "urn:example:climate:report"
)

func runDemo(ctx context.Context, c *cli.Console, story string, keep bool) error {
	if !slices.Contains([]string{storyMesh, storyFederation, storyGroup}, story) {
		return cli.Usage("lmosd demo --story federation", "unknown story %q", story)
	}
	defer outlive()()
	dir, err := os.MkdirTemp("", "lmosd-demo-")
	if err != nil {
		return &interact.Error{Code: interact.Internal, Title: "the demo cannot make a folder in " + os.TempDir(), Err: cli.Reason(err),
			Hint: "TMPDIR=DIR lmosd demo   # a folder that can be written"}
	}
	d := &demo{console: c, dir: dir, report: DemoReport{Head: cli.NewHead("Demo"), Steps: []demoStep{}}}
	f := &federation{demo: d}
	switch d.steps = d.mesh(); story {
	case storyFederation:
		d.steps = f.steps()
	case storyGroup:
		d.steps = (&groupStory{federation: f}).steps()
	}
	start := time.Now()
	err = errors.Join(d.run(ctx), f.close(), d.end(keep))
	d.report.Took, d.report.OK = api.Milliseconds(time.Since(start)), err == nil
	if ctx.Err() != nil {
		return ctx.Err() // the cause of any error
	}
	if shown := c.Show(cli.View{Doc: d.report, People: d.summary}); shown != nil {
		return errors.Join(err, shown)
	}
	if keep {
		c.Talk.Line("kept: " + dir + ", with the logs of the nodes: node-1/log and so on")
	}
	switch {
	case d.report.OK && story == storyGroup:
		c.Next("lmosd group create NAME", "lmosd group --help")
	case d.report.OK && story == storyFederation:
		c.Next("lmosd org init DOMAIN", "lmosd trust invite")
	case d.report.OK:
		c.Next("lmosd testnet up -n 5 --demo-agents", "lmosd testnet exec 3 -- find weather", "lmosd run")
	}
	if err != nil && c.Programs() {
		return cli.SilentError(cli.ExitInternal) // the document contains the error
	}
	return err
}

// mesh returns the steps of the story mesh.
func (d *demo) mesh() []storyStep {
	return []storyStep{
		{"three nodes up and meshed", d.start},
		{"agent published", d.publish},
		{"found by capability", d.find},
		{"called across", d.call},
		{"property read", d.read},
		{"tampered description refused", d.tamper},
		{"record with a wrong owner key refused", d.forge},
		{"withdrawn and gone", d.withdraw},
		{"killed node's agent unreachable", d.kill},
	}
}

// run runs the steps in order and stops at the first failure, because later ones depend on it.
func (d *demo) run(ctx context.Context) error {
	for _, s := range d.steps {
		start := time.Now()
		d.why = nil
		detail, err := s.do(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		step := demoStep{Name: s.name, OK: err == nil, Took: api.Milliseconds(time.Since(start)), Detail: detail, Why: d.why}
		if err != nil {
			step.Detail = err.Error()
		}
		d.report.Steps = append(d.report.Steps, step)
		d.show(step)
		if err != nil {
			return &interact.Error{Code: interact.Internal, Title: fmt.Sprintf("the step %q failed", s.name), Err: err,
				Hint: "lmosd demo --keep   # leaves the logs of the nodes"}
		}
	}
	return nil
}

// show prints a step. On a terminal the detail is below, so that it fits.
func (d *demo) show(s demoStep) {
	if !d.console.ForPeople() {
		return
	}
	out := d.console.Out
	mark := out.Paint(terminal.Green, "✓")
	if !s.OK {
		mark = out.Paint(terminal.Red, "✗")
	}
	if out.TTY {
		out.Line(fmt.Sprintf("%s %s %s", mark, s.Name, out.Paint(terminal.Dim, fmt.Sprintf("%.0f ms", s.Took))))
		out.Item("  ", 2, s.Detail)
	} else {
		out.Item(fmt.Sprintf("%s %-38s %6.0f ms   ", mark, s.Name, s.Took), 53, s.Detail)
	}
	for _, text := range s.Why {
		out.Item("    "+out.Paint(terminal.Dim, "›")+" ", 6, text)
	}
}

// start runs node 1 – node 2 – node 3 in a line: 1 and 3 are connected only through 2. The nodes do not announce their addresses; the
// signed record contains the address of the host.
func (d *demo) start(ctx context.Context) (string, error) {
	binary, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d.net, err = testnet.Processes(ctx, 3, testnet.Options{Network: fmt.Sprintf("demo-%d", os.Getpid()), Seed: time.Now().UnixNano(),
		Topology: "line", Dir: d.dir, Binary: binary})
	if err != nil {
		return "", err
	}
	if err := d.net.Settle(ctx); err != nil {
		return "", err
	}
	d.weather, err = startWeather(ctx, d.dir)
	return "three processes and the weather agent as a fourth; 1 – 2 – 3 in a line; console: " + consoleOf(d.net.Members[0].API), err
}

// consoleOf returns the address of the console of a node.
func consoleOf(api string) string { return api + "/console/" }

func (d *demo) publish(ctx context.Context) (detail string, err error) {
	if d.first, err = d.net.Members[0].Publish(ctx, d.weather.td); err != nil {
		return "", err
	}
	other := bytes.ReplaceAll(d.weather.td, []byte(weatherCapability), []byte(otherCapability))
	other = bytes.Replace(other, []byte(`"title": "Weather"`), []byte(`"title": "Climate"`), 1)
	if d.second, err = d.net.Members[0].Publish(ctx, other); err != nil {
		return "", err
	}
	d.report.Sizes = demoSizes{TD: d.first.TDSize, Record: d.first.RecordSize}
	if d.first.Replicas == 0 || d.first.GossipPeers == 0 {
		return "", fmt.Errorf("no other node has it: %d of %d replicas, %d gossip peers", d.first.Replicas, d.first.Wanted, d.first.GossipPeers)
	}
	return fmt.Sprintf("on node 1: %d of %d DHT replicas, gossip to %s", d.first.Replicas, d.first.Wanted,
		terminal.Count(d.first.GossipPeers, "peer", "peers")), nil
}

// find searches at node 3, which is connected only to node 2.
func (d *demo) find(ctx context.Context) (string, error) {
	asker, publisher := d.net.Members[2], d.net.Members[0]
	peers, err := asker.Peers(ctx)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(peers.Items, func(p api.Peer) bool { return p.DID == publisher.DID }) {
		return "", errors.New("node 3 is connected to node 1, so finding its agent would show nothing")
	}
	list, err := d.until(ctx, asker, weatherCapability, func(as []api.Agent) bool { return len(as) == 1 })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("from node 3, not connected to node 1: %s, owner %s; asked %d, answered %d", list.Items[0].Name,
		list.Items[0].Owner.Short(), list.Coverage.Asked, list.Coverage.Answered), nil
}

// until searches at m for a capability until the result is as expected, for at most 1 s.
func (d *demo) until(ctx context.Context, m *testnet.Member, capability string, ok func([]api.Agent) bool) (
	list *api.AgentList, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	wait := testnet.Until(ctx, fmt.Sprintf("node %d answers for %s as it must", m.N, capability), func() bool {
		list, err = m.Find(ctx, td.Query{Capability: []string{capability}}, time.Second)
		return err == nil && ok(list.Items)
	})
	return list, errors.Join(err, wait)
}

func (d *demo) call(ctx context.Context) (string, error) {
	const question = "Rain in Bonn?"
	input, err := json.Marshal(map[string]string{"question": question, "interactionMode": "text"})
	if err != nil {
		return "", err
	}
	out, _, err := d.net.Members[2].Call(ctx, d.first.Ref, "getWeather", interact.JSON, input)
	if err != nil {
		return "", err
	}
	var answer string
	if err := json.Unmarshal(out, &answer); err != nil || answer == "" {
		return "", fmt.Errorf("expected text as the output, got %s", out)
	}
	return fmt.Sprintf("%s %s", question, answer), nil
}

func (d *demo) read(ctx context.Context) (string, error) {
	out, _, err := d.net.Members[2].Read(ctx, d.first.Ref, "modelConfiguration")
	if err != nil {
		return "", err
	}
	var model struct{ ModelName string }
	if err := json.Unmarshal(out, &model); err != nil || model.ModelName == "" {
		return "", fmt.Errorf("expected a model configuration, got %s", out)
	}
	return "modelConfiguration " + string(out), nil
}

// tamper changes one word in the signed description and sends it to node 2, which must reject it.
func (d *demo) tamper(ctx context.Context) (string, error) {
	detail, err := d.net.Members[1].Agent(ctx, d.first.Ref)
	if err != nil {
		return "", err
	}
	changed := bytes.Replace(detail.TD, []byte("a city"), []byte("a town"), 1)
	if bytes.Equal(changed, detail.TD) {
		return "", errors.New("the description has no word to change")
	}
	_, err = d.net.Members[1].Publish(ctx, changed)
	if err == nil {
		return "", errors.New("node 2 accepted a description that was changed after it was signed")
	}
	if code := interact.AsError(err).Code; code != interact.BadSignature {
		return "", fmt.Errorf("refused for another reason than its signature: %w", err)
	}
	why, _, _ := strings.Cut(err.Error(), "; remove") // drop the hint for an owner
	return "by node 2: " + why, nil
}

// forge sends a record that the owner did not sign to node 2 and node 3, without the checks of this project. They accept the same record
// with the signature of the owner, so it is the key that they check.
func (d *demo) forge(ctx context.Context) (string, error) {
	s, err := testnet.NewAdversary(d.net.Network)
	if err != nil {
		return "", err
	}
	defer s.Close()
	detail, err := d.net.Members[0].Agent(ctx, d.first.Ref)
	if err != nil {
		return "", err
	}
	t, err := td.Parse(detail.TD)
	if err != nil {
		return "", err
	}
	forged, err := td.Sign(t, s.Forger(d.first.Owner), td.Lease{Seq: d.first.Seq + 1, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		return "", err
	}
	key := td.Key(d.first.Owner, t.ID)
	for _, m := range d.net.Members[1:] {
		if err := s.Store(ctx, m.Addrs[0], key, detail.Record); err != nil {
			return "", fmt.Errorf("node %d does not accept the valid record: %w", m.N, err)
		}
		if err := s.Store(ctx, m.Addrs[0], key, forged.Record); !errors.Is(err, testnet.ErrRefused) {
			return "", fmt.Errorf("node %d accepted a record that the owner did not sign (%v)", m.N, err)
		}
	}
	return "by nodes 2 and 3, signed by " + s.Key.DID().Short() + " for " + d.first.Owner.Short(), nil
}

func (d *demo) withdraw(ctx context.Context) (string, error) {
	if _, err := d.net.Members[0].Unpublish(ctx, d.first.Ref); err != nil {
		return "", err
	}
	for _, m := range d.net.Members {
		if _, err := d.until(ctx, m, weatherCapability, func(as []api.Agent) bool { return len(as) == 0 }); err != nil {
			return "", err
		}
	}
	_, _, err := d.net.Members[2].Read(ctx, d.first.Ref, "modelConfiguration")
	if interact.AsError(err) == nil || interact.AsError(err).Code != interact.Withdrawn {
		return "", fmt.Errorf("asking a withdrawn agent gave %v", err)
	}
	return "on all three nodes", nil
}

// kill ends node 1 without a shutdown. A call of its other agent fails, and the next find shows it.
func (d *demo) kill(ctx context.Context) (string, error) {
	asker := d.net.Members[2]
	if _, err := d.until(ctx, asker, otherCapability, func(as []api.Agent) bool { return len(as) == 1 && as[0].State == api.StateReachable }); err != nil {
		return "", err
	}
	if err := d.net.Members[0].Kill(); err != nil {
		return "", err
	}
	_, _, err := asker.Read(ctx, d.second.Ref, "modelConfiguration")
	if interact.AsError(err) == nil || interact.AsError(err).Code != interact.Unreachable {
		return "", fmt.Errorf("asking the agent of a dead node gave %v", err)
	}
	list, err := asker.Find(ctx, td.Query{Capability: []string{otherCapability}}, time.Second)
	if err != nil {
		return "", err
	}
	if len(list.Items) != 1 || list.Items[0].State != api.StateUnreachable {
		return "", fmt.Errorf("find does not show the agent as unreachable: %+v", list.Items)
	}
	return fmt.Sprintf("find on node 3: %s, unreachable", list.Items[0].Name), nil
}

// end stops the running processes.
func (d *demo) end(keep bool) error {
	var errs []error
	if d.net != nil {
		errs = append(errs, d.net.Close())
	}
	if d.weather != nil {
		errs = append(errs, d.weather.stop())
	}
	if !keep {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

func (d *demo) summary(out *terminal.Screen, _ bool) {
	passed := 0
	for _, s := range d.report.Steps {
		if s.OK {
			passed++
		}
	}
	line := fmt.Sprintf("\n%d of %d steps passed in %.1f s", passed, len(d.steps), d.report.Took/1000)
	if n := d.report.Sizes; n.TD > 0 {
		line += fmt.Sprintf(" · description %s, record %s with the description inside", terminal.Size(n.TD), terminal.Size(n.Record))
	}
	out.Line(line)
}
