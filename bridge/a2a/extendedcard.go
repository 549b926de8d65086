package a2a

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"iter"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/a2a/server"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// descriptionExtension is the URI of the A2A extension that identifies the Thing Description of a card (A2A 1.0 §4.6): {"thing": its id,
// "owner": the DID that signed it, "sha256": of its bytes, "href": its URL}. All are non-empty strings, because verifiers treat other values
// differently (see card.canonical).
const descriptionExtension = "https://lmosd.dev/a2a/extensions/description/v1"

// provenance adds the descriptionExtension to a card, in place of that of another node.
func provenance(c *card.Card, d *td.Description, at server.Endpoint) {
	others := slices.DeleteFunc(slices.Clone(c.Capabilities.Extensions), func(x card.Extension) bool { return x.URI == descriptionExtension })
	c.Capabilities.Extensions = append(others, card.Extension{URI: descriptionExtension,
		Description: "The signed description of this agent. The node that serves the agent signs this card; the owner signs the description.",
		Params: protocol.Encode(map[string]string{"thing": d.ID, "owner": string(d.Record.Owner), "sha256": hex.EncodeToString(d.Record.Hash[:]),
			"href": strings.TrimSuffix(at.Base, "/a2a") + "/things/" + url.PathEscape(d.Ref())})})
}

// declareExtended declares an extended card. Clients learn its authentication from the error: the card has no security schemes, because the
// JavaScript library loses them when it verifies a signature.
func declareExtended(c *card.Card) {
	yes := true
	c.Capabilities.ExtendedCard, c.Schemes, c.Requirements = &yes, nil, nil
}

// extendedFor handles GetExtendedAgentCard: for operators only (A2A 1.0 §3.1.11, §13.3). get is nil for an agent without one.
func extendedFor(a protocol.Agent, c server.Caller, get func(context.Context, *protocol.Operation) (json.RawMessage, error)) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		switch {
		case op.Method != protocol.ExtendedCard:
			return a.Do(ctx, op)
		case get == nil:
			return protocol.Once(nil, protocol.Errorf(protocol.UnsupportedOperation, "the agent has no extended card"))
		case !c.Operator:
			return protocol.Once(nil, interact.Errorf(interact.Unauthenticated, "send Authorization: Bearer and the token of the node",
				"the extended card is for the operator of the node"))
		}
		return protocol.Once(get(ctx, op))
	})
}

// within rejects operations that the card of an imported agent excludes (A2A 1.0 §3.3.4): streams of an agent without streaming, and messages
// of clients that do not declare a required extension.
func within(a protocol.Agent, can card.Capabilities) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		if protocol.Streams(op.Method) && !card.Supported(can.Streaming) {
			return protocol.Once(nil, protocol.Errorf(protocol.UnsupportedOperation, "the agent does not support streaming"))
		}
		if op.Method != protocol.SendMessage && op.Method != protocol.SendStreamingMessage {
			return a.Do(ctx, op)
		}
		knows := strings.FieldsFunc(op.Service[protocol.ExtensionsParam], func(r rune) bool { return r == ',' || r == ' ' })
		for _, x := range can.Extensions {
			if x.Required && !slices.Contains(knows, x.URI) {
				return protocol.Once(nil, protocol.Errorf(protocol.ExtensionRequired, "the agent requires the extension %s", x.URI).
					With(map[string]string{"extension": x.URI}))
			}
		}
		return a.Do(ctx, op)
	})
}

// extend adds the members that the public card omits: all schemas, and the properties as skills.
func extend(c *card.Card, t *td.Thing) {
	all := withProperties(t)
	for _, name := range executor.Actions(all) {
		if a := all.Actions[name]; t.Actions[name] == nil {
			c.Skills = append(c.Skills, card.Skill{ID: name, Name: a.Title, Description: a.Description, Tags: a.Types})
		}
	}
	c.Skills = slices.DeleteFunc(c.Skills, func(s card.Skill) bool { return all.Actions[s.ID] == nil && len(all.Actions) > 0 }) // "none"
	others := slices.DeleteFunc(slices.Clone(c.Capabilities.Extensions), func(x card.Extension) bool { return x.URI == schemasExtension })
	c.Capabilities.Extensions = append(others, schemas(all, math.MaxInt)...)
}

// Name prefixes of the skills of properties.
const (
	getPrefix = "get_"
	setPrefix = "set_"
)

// withProperties returns t with skills for its properties. An action with the same name takes precedence.
func withProperties(t *td.Thing) *td.Thing {
	c := *t
	c.Actions = maps.Clone(t.Actions)
	if c.Actions == nil {
		c.Actions = map[string]*td.Action{}
	}
	sync := true
	add := func(skill, does string, name string, p *td.Property, in, out *td.Schema) {
		if c.Actions[skill] == nil {
			about := strings.TrimSpace(does + " " + cmp.Or(p.Title, name) + ". " + p.Description)
			c.Actions[skill] = &td.Action{Input: in, Output: out, Synchronous: &sync,
				Affordance: td.Affordance{Title: skill, Description: about, Types: []string{"property"}}}
		}
	}
	for name, p := range t.Properties {
		if !p.WriteOnly {
			add(getPrefix+name, "Reads", name, p, nil, p.Schema)
		}
		if !p.ReadOnly {
			add(setPrefix+name, "Writes", name, p, p.Schema, nil)
		}
	}
	return &c
}

// served returns the agent of a Thing. Only messages that name the skill of a property use it: all others select an action.
func (e *exporter) served(s executor.Agent, principal string) protocol.Agent {
	plain := e.executor.Agent(s, principal)
	if len(s.Desc.Properties) == 0 {
		return plain
	}
	all := s
	all.Desc, all.Thing = withProperties(s.Desc), &properties{s.Thing, s.Desc}
	more := e.executor.Agent(all, principal)
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		var p protocol.Send
		if op.Method != protocol.SendMessage && op.Method != protocol.SendStreamingMessage || protocol.Read(op.Params, &p) != nil || p.Message == nil {
			return plain.Do(ctx, op)
		}
		name, _ := executor.SkillOf(p.Message) // Do reports the error
		if strings.HasPrefix(name, getPrefix) || strings.HasPrefix(name, setPrefix) {
			return more.Do(ctx, op)
		}
		return plain.Do(ctx, op)
	})
}

// properties is a Thing with actions for its properties.
type properties struct {
	interact.Thing
	desc *td.Thing
}

// Do implements [interact.Thing].
func (p *properties) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	access := *m
	read, isRead := strings.CutPrefix(m.Name, getPrefix)
	write, isWrite := strings.CutPrefix(m.Name, setPrefix)
	switch {
	case m.Type != interact.InvokeAction || p.desc.Actions[m.Name] != nil:
		return p.Thing.Do(ctx, m)
	case isRead && p.desc.Properties[read] != nil:
		access.Type, access.Name, access.Data = interact.ReadProperty, read, nil
	case isWrite && p.desc.Properties[write] != nil:
		access.Type, access.Name = interact.WriteProperty, write
	}
	return func(yield func(*interact.Message, error) bool) {
		r, err := interact.Call(ctx, p.Thing, &access)
		if err != nil {
			yield(nil, err)
			return
		}
		yield(m.ReplyStatus(interact.StatusCompleted, r.ContentType, r.Data), nil)
	}
}
