package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

func newShowCommand(a *app) *cobra.Command {
	var pretty, raw, verify bool
	cmd := &cobra.Command{
		Use:   "show <agent>",
		Short: "show an agent: description, owner, hosts, signature",
		Long: "Shows the verified description of an agent: its owner, its hosts, the signer and the time of the signature, and\n" +
			"its capabilities. --verify checks record, description and proof again in this process, without trust in the\n" +
			"node.",
		Example: `  lmosd show weather
  lmosd show weather@z6MkpTHR8VNs --td
  lmosd show weather --verify`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd find, lmosd call, lmosd help names"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if pretty && raw || raw && verify || verify && pretty {
				return cli.Usage("lmosd show --help", "--td, --raw and --verify are different answers; choose one")
			}
			if !pretty && !raw && !verify {
				detail, err := a.agent(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.showAgent(cmd.Context(), detail)
			}
			detail, content, err := a.described(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case verify:
				return a.verify(cmd.Context(), detail, content)
			case hashOf(content) != detail.Signature.Hash:
				return interact.Errorf(interact.BadSignature, "lmosd show "+terminal.Shell(args[0])+" --verify",
					"what the node gave is not the description that was signed")
			case raw:
				return a.Print(content)
			}
			return a.showTD(content)
		},
	}
	cmd.Flags().BoolVar(&pretty, "td", false, "print the Thing Description, indented on a terminal")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the Thing Description byte for byte as it was signed")
	cmd.Flags().BoolVar(&verify, "verify", false, "check record, description and proof here, step by step")
	return cmd
}

// agent asks the node for the agent that ref names.
func (a *app) agent(ctx context.Context, ref string) (*api.AgentDetail, error) {
	if err := nameless(ref); err != nil {
		return nil, err
	}
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	detail, err := client.Agent(ctx, ref)
	return detail, clarify(err, ref, func(ref string) string { return "lmosd show " + ref })
}

// described asks for an agent and the bytes of its description. If the agent was updated between the two questions, they are
// asked again.
func (a *app) described(ctx context.Context, ref string) (detail *api.AgentDetail, content []byte, err error) {
	client, err := a.client()
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	for range 3 {
		if detail, err = a.agent(ctx, ref); err != nil {
			return nil, nil, err
		}
		if content, err = client.Thing(ctx, detail.Agent.Ref); err != nil {
			return nil, nil, err
		}
		if hashOf(content) == detail.Signature.Hash {
			break
		}
	}
	return detail, content, nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (a *app) showTD(content []byte) error {
	if !a.Out.TTY {
		return a.Print(append(bytes.TrimSpace(content), '\n'))
	}
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(content), "", "  "); err != nil {
		return err
	}
	return a.Print([]byte(terminal.Printable(b.String()) + "\n"))
}

func (a *app) showAgent(ctx context.Context, d *api.AgentDetail) error {
	// A description of a newer version may not parse here; what the node says about it is still shown.
	t, err := td.Parse(d.TD)
	if err != nil {
		t = &td.Thing{}
		a.Note("the description is not understood here: %v", err)
	}
	err = a.Show(cli.View{Doc: d, Names: []string{d.Agent.Ref}, People: func(s *terminal.Screen, _ bool) {
		sheet := agentSheet(d, t, time.Now())
		a.addMore(ctx, sheet, d.Agent.Ref, t)
		sheet.Add("for WoT", a.consumerTD(ctx, d.Agent.Ref))
		sheet.Write(s)
	}})
	if err != nil {
		return err
	}
	a.doubts(d.Warnings)
	a.nextAfterShow(d.Agent, t)
	return nil
}

// consumerTD is where consumers of the Web of Things get the description with addresses of the node; empty if it serves no URL.
func (a *app) consumerTD(ctx context.Context, ref string) string {
	base := a.target.Addr
	if !strings.HasPrefix(base, "http") {
		status, err := a.status(ctx)
		if err != nil || status.API == "" {
			return ""
		}
		base = status.API
	}
	return strings.TrimSuffix(base, "/") + "/things/" + url.PathEscape(ref) + "/td"
}

// nextAfterShow leads to what the agent can do.
func (a *app) nextAfterShow(g api.Agent, t *td.Thing) {
	name := terminal.Shell(copyable(g))
	switch {
	case len(g.Actions) > 0:
		var schema *td.Schema
		if action := t.Actions[g.Actions[0]]; action != nil {
			schema = action.InputWithVariables()
		}
		a.Next(strings.TrimSpace("lmosd call " + name + " " + terminal.Shell(g.Actions[0]) + " " + input.Sample(schema)))
	case len(g.Properties) > 0:
		a.Next("lmosd read " + name + " " + terminal.Shell(g.Properties[0]))
	default:
		a.Next("lmosd find")
	}
}

func agentSheet(d *api.AgentDetail, t *td.Thing, now time.Time) *terminal.Sheet {
	g := d.Agent
	s := &terminal.Sheet{}
	s.Add("agent", copyable(g))
	if d.MovedFrom != "" {
		s.Add("moved from", d.MovedFrom)
	}
	s.Add("title", g.Title)
	s.Add("about", g.Description)
	s.Add("id", g.ID)
	s.Add("owner", string(g.Owner))
	var found struct {
		At string `json:"lmosd:discovered"`
	}
	if json.Unmarshal(d.TD, &found) == nil && found.At != "" {
		s.Add("found at", found.At)
	}
	for _, h := range g.Hosts {
		s.Add("host", string(h))
	}
	s.Add("signature", verdict(d.Signature, g.Owner))
	s.Add("record", fmt.Sprintf("revision %d · %s · sha256 %s", d.Signature.Seq, terminal.Size(d.Signature.Size), d.Signature.Hash))
	for _, other := range d.Namesakes {
		s.Add("namesake", other+" · has the name too; this one is of this node, or trusted")
	}
	if e := d.Agent.Equivocation; e != nil {
		s.Add("warning", fmt.Sprintf("equivocation: its owner signed two different records of revision %d, seen %s ago; two programs may use its key",
			e.Seq, terminal.Ago(e.Seen, now)))
	}
	s.Add("state", fmt.Sprintf("%s · seen %s ago · expires in %s", state(g), terminal.Ago(g.LastSeen, now), terminal.Span(g.Expires.Sub(now))))
	for _, c := range t.Capabilities {
		if c.Name == c.ID {
			c.Name = ""
		}
		s.Add("capability", joinNotEmpty(" · ", c.ID, c.Name, c.Version, c.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		s.Add("action", joinNotEmpty(" · ", strings.TrimSpace(name+" "+input.Usage(t.Actions[name].InputWithVariables())), t.Actions[name].Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Properties)) {
		s.Add("property", joinNotEmpty(" · ", name, access(t.Properties[name]), t.Properties[name].Affordance.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Events)) {
		s.Add("event", joinNotEmpty(" · ", name, t.Events[name].Description))
	}
	return s
}

// verdict says in words what was verified.
func verdict(s api.Signature, owner did.DID) string {
	if !s.Verified {
		return "✗ not verified: do not rely on anything here"
	}
	key := ""
	if s.Method != string(owner)+"#"+owner.Multibase() {
		key = ", key " + s.Method // one of several that the owner has
	}
	return fmt.Sprintf("✓ verified: signed by the owner %s at %s (%s%s)", owner.Short(), s.Created.Format(time.RFC3339), s.Suite, key)
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

// verify checks an agent here. If it fails, the steps are still the answer, and the exit code says so.
func (a *app) verify(ctx context.Context, d *api.AgentDetail, content []byte) error {
	v := verifyAgent(ctx, d, content, time.Now())
	err := a.Show(cli.View{Doc: v, Names: []string{d.Agent.Ref}, People: func(s *terminal.Screen, _ bool) {
		for _, step := range v.Items {
			mark := s.Paint(terminal.Green, "✓")
			if !step.OK {
				mark = s.Paint(terminal.Red, "✗")
			}
			s.Item("  "+mark+" "+fmt.Sprintf("%-8s", step.Name), 12, step.Message)
		}
	}})
	switch {
	case err != nil || v.Verified:
		return err
	case a.Programs():
		return cli.SilentError(cli.ExitRefused) // the document says what failed
	}
	return v.err
}

// verifyAgent trusts neither the node nor what it said about the agent: record and description have to agree with each
// other and with the owner's key, and the answer about the agent with them.
func verifyAgent(ctx context.Context, d *api.AgentDetail, content []byte, now time.Time) *verification {
	v := &verification{APIVersion: api.APIVersion, Kind: "Verification", ID: d.Agent.ID}
	r, err := td.NewVerifier(did.Resolvers(map[string]did.Resolver{"key": did.Keys()})).Record(d.Record, now)
	if err != nil {
		v.step("record", "", err)
		return v
	}
	if r.Owner != d.Agent.Owner || r.Thing != d.Agent.ID {
		err = fmt.Errorf("it is about %s of %s", r.Thing, r.Owner)
	}
	if !v.step("record", fmt.Sprintf("revision %d, signed by its owner %s, valid until %s", r.Seq, r.Owner,
		r.Expires.UTC().Format(time.RFC3339)), err) {
		return v
	}
	if hash := hashOf(content); hash != hex.EncodeToString(r.Hash[:]) {
		err = fmt.Errorf("the description has the sha256 %s, the record says %x", hash, r.Hash)
	}
	if !v.step("hash", fmt.Sprintf("the description has the sha256 that the record says, %x", r.Hash), err) {
		return v
	}
	t, err := td.Parse(content)
	if v.step("td", "valid Thing Description, "+terminal.Size(len(content)), err) && v.proof(ctx, r.Owner, content) && t.ID != r.Thing {
		v.step("id", "", fmt.Errorf("the description is of %s, not of %s", t.ID, r.Thing))
	}
	return v
}

// proof checks the proof inside the description.
func (v *verification) proof(ctx context.Context, owner did.DID, content []byte) bool {
	doc, err := jcs.Decode(content, td.MaxTD)
	object, ok := doc.(map[string]any)
	if err == nil && !ok {
		err = errors.New("the description is no object")
	}
	if !v.step("json", "strict JSON, one meaning for every reader", err) {
		return false
	}
	signed, err := proof.Verify(ctx, object, proof.Check{})
	if err != nil {
		return v.step("proof", "", err)
	}
	if signed.Owner != owner {
		err = fmt.Errorf("signed by %s, and the owner is %s", signed.Owner, owner)
	}
	return v.step("proof", fmt.Sprintf("Data Integrity proof of %s, created %s", signed.Owner, signed.Created.Format(time.RFC3339)), err)
}
