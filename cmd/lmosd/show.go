package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

func newShowCommand(a *app) *cobra.Command {
	var pretty, raw, verify bool
	cmd := &cobra.Command{
		Use:   "show <agent>",
		Short: "show an agent: description, owner, hosts, signature",
		Long: "Shows what the node knows about an agent and has verified: who owns it, which hosts reach it, who signed\n" +
			"its description and when, and what it can do. --verify checks the description and its proof here again,\n" +
			"without trust in the node.",
		Example: `  lmosd show weather
  lmosd show weather@z6MkpTHR8VNs --td
  lmosd show weather --verify`,
		Annotations:       map[string]string{"scope": scopeMesh, "impact": readOnly, "see": "lmosd find, lmosd call, lmosd help names"},
		Args:              takes(1, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if pretty && raw || raw && verify || verify && pretty {
				return usage("lmosd show --help", "--td, --raw and --verify are different answers; choose one")
			}
			detail, err := a.agent(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case pretty:
				return a.showTD(detail)
			case raw:
				return a.write(detail.TD)
			case verify:
				return a.verify(cmd.Context(), detail)
			}
			return a.showAgent(detail)
		},
	}
	cmd.Flags().BoolVar(&pretty, "td", false, "print the Thing Description, indented on a terminal")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the Thing Description as the node gave it")
	cmd.Flags().BoolVar(&verify, "verify", false, "check the description and its proof here, step by step")
	return cmd
}

// agent asks the node for the agent that ref names.
func (a *app) agent(ctx context.Context, ref string) (*gateway.AgentDetail, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Agent(ctx, ref)
}

func (a *app) showTD(d *gateway.AgentDetail) error {
	if !a.out.tty {
		return a.write(append(bytes.TrimSpace(d.TD), '\n'))
	}
	var b bytes.Buffer
	if err := json.Indent(&b, d.TD, "", "  "); err != nil {
		return err
	}
	return a.write([]byte(printable(b.String()) + "\n"))
}

func (a *app) showAgent(d *gateway.AgentDetail) error {
	// A description of a newer version may not parse here; what the node says about it is still shown.
	t, err := td.Parse(d.TD)
	if err != nil {
		t = &td.Thing{}
		a.note("the description is not understood here: %v", err)
	}
	err = a.show(view{doc: d, names: []string{d.Agent.Ref}, people: func(s *screen, _ bool) { agentSheet(d, t, time.Now()).write(s) }})
	if err != nil {
		return err
	}
	if len(d.Agent.Actions) == 0 {
		a.next("lmosd find")
		return nil
	}
	name, input := d.Agent.Actions[0], (*td.Schema)(nil)
	if action := t.Actions[name]; action != nil {
		input = action.Input
	}
	a.next("lmosd call %s %s %s", copyable(d.Agent), name, sample(input))
	return nil
}

func agentSheet(d *gateway.AgentDetail, t *td.Thing, now time.Time) *sheet {
	g := d.Agent
	s := &sheet{}
	s.add("agent", copyable(g))
	s.add("title", g.Title)
	s.add("about", g.Description)
	s.add("id", g.ID)
	s.add("owner", string(g.Owner))
	for _, h := range g.Hosts {
		s.add("host", string(h))
	}
	s.add("signature", verdict(d.Signature, g.Owner.Short()))
	s.add("record", fmt.Sprintf("revision %d · %s · sha256 %s", d.Signature.Seq, size(d.Signature.Size), d.Signature.Hash))
	s.add("state", fmt.Sprintf("%s · seen %s ago · expires in %s", state(g), ago(g.Seen, now), span(g.Expires.Sub(now))))
	for _, c := range t.Capabilities {
		s.add("capability", joinNotEmpty(" · ", c.ID, c.Name, c.Version, c.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		s.add("action", joinNotEmpty(" · ", strings.TrimSpace(name+" "+sample(t.Actions[name].Input)), t.Actions[name].Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Properties)) {
		s.add("property", joinNotEmpty(" · ", name, access(t.Properties[name]), t.Properties[name].Affordance.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Events)) {
		s.add("event", joinNotEmpty(" · ", name, t.Events[name].Description))
	}
	return s
}

// verdict says in words what was verified.
func verdict(s gateway.Signature, owner string) string {
	if !s.Verified {
		return "✗ not verified: do not rely on anything here"
	}
	return fmt.Sprintf("✓ verified: signed by the owner %s at %s (%s, key %s)", owner, s.Created.Format(time.RFC3339), s.Suite, s.Method)
}

// access says which way a property goes.
func access(p *td.Property) string {
	switch {
	case p.ReadOnly:
		return "read only"
	case p.WriteOnly:
		return "write only"
	}
	return "read, write"
}

func joinNotEmpty(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// A verification is what `lmosd show --verify` found, step by step; the first that fails is the last.
type verification struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"` // Verification
	ID         string             `json:"id"`
	Verified   bool               `json:"verified"`
	Items      []verificationStep `json:"items"`
	err        error
}

type verificationStep struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Message string `json:"message"`
}

func (v *verification) step(name, message string, err error) bool {
	if err != nil {
		message = err.Error()
		v.err = &interact.Error{Code: interact.BadSignature, Title: "the description does not verify: " + name, Err: err,
			Hint: "do not call this agent; its node may have been tampered with"}
	}
	v.Items = append(v.Items, verificationStep{name, err == nil, message})
	v.Verified = err == nil
	return err == nil
}

// verify checks d here. If it fails, the steps are still the answer, and the exit code says so.
func (a *app) verify(ctx context.Context, d *gateway.AgentDetail) error {
	v := verifyDetail(ctx, d)
	err := a.show(view{doc: v, names: []string{d.Agent.Ref}, people: func(s *screen, _ bool) {
		for _, step := range v.Items {
			mark := s.paint(green, "✓")
			if !step.OK {
				mark = s.paint(red, "✗")
			}
			s.line("  " + mark + " " + runewidth.FillRight(step.Name, 7) + oneLine(step.Message))
		}
	}})
	switch {
	case err != nil || v.Verified:
		return err
	case a.programs():
		return silentError(exitRefused) // the document says what failed
	}
	return v.err
}

func verifyDetail(ctx context.Context, d *gateway.AgentDetail) *verification {
	v := &verification{APIVersion: gateway.APIVersion, Kind: "Verification", ID: d.Agent.ID}
	t, err := td.Parse(d.TD)
	if !v.step("td", "valid Thing Description, "+size(len(d.TD)), err) {
		return v
	}
	doc, err := jcs.Decode(d.TD, td.MaxTD)
	object, ok := doc.(map[string]any)
	if err == nil && !ok {
		err = fmt.Errorf("the description is no object")
	}
	if !v.step("json", "strict JSON, one meaning for every reader", err) {
		return v
	}
	signed, err := proof.Verify(ctx, object, proof.Check{})
	if err != nil {
		v.step("proof", "", err)
		return v
	}
	v.step("proof", fmt.Sprintf("%s by %s, created %s", d.Signature.Suite, signed.Method, signed.Created.Format(time.RFC3339)), nil)
	if signed.Owner != d.Agent.Owner {
		err = fmt.Errorf("signed by %s, and the owner is %s", signed.Owner, d.Agent.Owner)
	}
	if v.step("owner", "the signer is the owner "+string(signed.Owner), err) && t.ID != d.Agent.ID {
		v.step("id", "", fmt.Errorf("the description is of %s, not of %s", t.ID, d.Agent.ID))
	}
	return v
}
