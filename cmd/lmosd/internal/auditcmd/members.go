package auditcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// members are what the members of the organization keep of the log.
type members struct {
	// Asked are those that the node asked. Why is the reason why it asked none.
	Asked []keeper `json:"asked"`
	Why   string   `json:"why,omitempty"`
}

// A keeper is a member.
type keeper struct {
	Node did.DID `json:"node"`
	// Heads are those of the checkpoints that the member keeps and that a key of the node signed. Newest is the time of the newest.
	Heads  []audit.Head `json:"heads"`
	Newest time.Time    `json:"newest,omitzero"`
	// Error is the reason if the member did not answer, or has sent something else.
	Error string `json:"error,omitempty"`
}

// askTime limits the question to all members.
const askTime = 30 * time.Second

// askMembers asks the connected members, through the node of the log. No member can accuse the node falsely: each checkpoint has a signature by one
// of the keys.
func askMembers(ctx context.Context, socket string, keys []did.DID) members {
	m := members{Asked: []keeper{}}
	if socket == "" {
		m.Why = "the node has no socket (http.socket)"
		return m
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := api.Dial(socket, "")
	if err != nil {
		m.Why = err.Error()
		return m
	}
	defer client.Close()
	list, err := client.KeptCheckpoints(ctx)
	if err != nil {
		if m.Why = err.Error(); interact.AsError(err).Code == interact.NotRunning {
			m.Why = "the node does not run"
		}
		return m
	}
	for _, k := range list.Items {
		m.Asked = append(m.Asked, verified(k, keys))
	}
	if len(m.Asked) == 0 {
		m.Why = "no member of the organization is connected"
	}
	return m
}

// verified verifies what a member has sent.
func verified(k api.KeptCheckpoints, keys []did.DID) keeper {
	out := keeper{Node: k.Node, Heads: []audit.Head{}, Error: k.Error}
	for _, line := range k.Lines {
		c, err := audit.ParseCheckpoint([]byte(line))
		switch {
		case err != nil:
			out.Error = cmp.Or(out.Error, "it has sent a checkpoint that is not valid: "+err.Error())
		case !slices.Contains(keys, c.By):
			out.Error = cmp.Or(out.Error, "it has sent a checkpoint of "+c.By.Short())
		default:
			out.Heads = append(out.Heads, c.Head)
			if c.Time.After(out.Newest) {
				out.Newest = c.Time
			}
		}
	}
	return out
}

// heads returns the heads by member.
func (m *members) heads() map[did.DID][]audit.Head {
	all := map[did.DID][]audit.Head{}
	for _, k := range m.Asked {
		all[k.Node] = k.Heads
	}
	return all
}

// people prints who was asked. ok means that the log agrees with all heads.
func (m *members) people(s *terminal.Screen, ok bool) {
	if m.Why != "" {
		s.Item("  "+s.Paint(terminal.Dim, "–")+" members ", 11, "not asked for the heads that they keep: "+m.Why)
		return
	}
	var have, none, failed []string
	var newest uint64
	var at time.Time
	for _, k := range m.Asked {
		switch {
		case k.Error != "":
			failed = append(failed, k.Node.Short()+": "+k.Error)
		case len(k.Heads) == 0:
			none = append(none, k.Node.Short())
		default:
			have = append(have, k.Node.Short())
			for _, h := range k.Heads {
				newest = max(newest, h.N)
			}
			if k.Newest.After(at) {
				at = k.Newest
			}
		}
	}
	if len(have) > 0 {
		mark := s.Paint(terminal.Green, "✓")
		if !ok {
			mark = s.Paint(terminal.Red, "✗")
		}
		keep := "keep"
		if len(have) == 1 {
			keep = "keeps"
		}
		s.Item("  "+mark+" members ", 11, fmt.Sprintf("%s %s heads of this log, the newest of line %d at %s", strings.Join(have, ", "), keep, newest,
			at.Local().Format(time.DateTime)))
	}
	if len(none) > 0 {
		s.Item("  "+s.Paint(terminal.Dim, "–")+" members ", 11, strings.Join(none, ", ")+" keep no head of this log yet")
	}
	for _, text := range failed {
		s.Item("  "+s.Paint(terminal.Red, "✗")+" member  ", 11, text)
	}
}
