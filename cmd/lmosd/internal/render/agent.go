package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// maxExplained is the number of actions up to which their inputs are explained, one on a line.
const maxExplained = 8

// Agent returns the sheet of an agent, whose description is t.
func Agent(d *api.AgentDetail, t *td.Thing, now time.Time) *terminal.Sheet {
	g := d.Agent
	s := &terminal.Sheet{}
	s.Add("agent", Name(g))
	s.Add("moved from", d.MovedFrom)
	s.Add("title", g.Title)
	s.Add("about", g.Description)
	s.Add("id", g.ID)
	s.Add("owner", string(g.Owner))
	s.Add("organization", AffiliationText(g.Organization))
	var found struct {
		At string `json:"lmosd:discovered"`
	}
	if json.Unmarshal(d.TD, &found) == nil {
		s.Add("found at", found.At)
	}
	s.Add("host", dids(g.Hosts)...)
	if grant := g.Grant; grant != nil {
		s.Add("grant", fmt.Sprintf("%d · by the owner for %s · until %s", grant.Number, terminal.Count(len(grant.Nodes), "node", "nodes"), Stamp(grant.Expires)))
	}
	s.Add("signature", signature(d.Signature, g.Owner))
	s.Add("record", fmt.Sprintf("revision %d · %s · sha256 %s", d.Signature.Seq, terminal.Size(d.Signature.Size), d.Signature.Hash))
	for _, other := range d.Namesakes {
		s.Add("namesake", other+" · has the name too; this one is of this node, or trusted")
	}
	if e := d.Agent.Equivocation; e != nil {
		s.Add("warning", fmt.Sprintf("equivocation: its owner signed two different records of revision %d, seen %s ago; two programs may use its key",
			e.Seq, terminal.Ago(e.Seen, now)))
	}
	s.Add("state", fmt.Sprintf("%s · seen %s ago · expires in %s", stateText(g), terminal.Ago(g.LastSeen, now), terminal.Span(g.Expires.Sub(now))))
	for _, c := range t.Capabilities {
		if c.Name == c.ID {
			c.Name = ""
		}
		s.Add("capability", Join(" · ", c.ID, c.Name, c.Version, c.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		s.Add("action", Join(" · ", strings.TrimSpace(name+" "+input.Usage(t.Actions[name].InputWithVariables())), t.Actions[name].Description))
	}
	if len(t.Actions) <= maxExplained {
		for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
			schema := t.Actions[name].InputWithVariables()
			for _, line := range input.Explain(schema) {
				s.Add("input", name+" "+line)
			}
			if !bridge.IsTunnel(t.Actions[name].Types) {
				s.Add("example", strings.TrimSpace("lmosd call "+terminal.Shell(Name(g))+" "+terminal.Shell(name)+" "+input.Sample(schema)))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Properties)) {
		s.Add("property", Join(" · ", name, access(t.Properties[name]), t.Properties[name].Affordance.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Events)) {
		s.Add("event", Join(" · ", name, t.Events[name].Description))
	}
	return s
}

// signature returns the result of the verification as text.
func signature(s api.Signature, owner did.DID) string {
	if !s.Verified {
		return "✗ not verified: do not rely on anything here"
	}
	key := ""
	if s.Method != string(owner)+"#"+owner.Multibase() {
		key = ", key " + s.Method // one of several keys of the owner
	}
	return fmt.Sprintf("✓ verified: signed by the owner %s at %s (%s%s)", owner.Short(), s.Created.Format(time.RFC3339), s.Suite, key)
}

// access returns the operations of a property.
func access(p *td.Property) string {
	switch {
	case p.ReadOnly:
		return "read only"
	case p.WriteOnly:
		return "write only"
	}
	return "read, write"
}

// Stamp returns a time as text; empty if it is zero.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}
