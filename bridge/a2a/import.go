package a2a

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/remote"
	"github.com/lmosd/lmosd/bridge/a2a/wire"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// recheck is how often a card is read again.
const recheck = time.Minute

// An imported agent is a foreign A2A agent as a thing.
type imported struct {
	o       Options
	url     *url.URL
	target  string
	as      bridge.Import
	client  *http.Client
	secrets *secrets
	claims  claims
	parking interact.Parking
	known   atomic.Pointer[known]
}

// A known is what the card said when it was last read. It is read-only.
type known struct {
	card    *card.Card
	raw     []byte
	agent   wire.Agent
	skills  map[string]string // ids by the names of their actions
	verdict *card.Verdict     // nil: nobody vouches for the card
	why     error             // why not
}

func newImported(o Options, u *url.URL, target string, as bridge.Import) *imported {
	i := &imported{o: o, url: u, target: target, as: as, client: remote.Client(u)}
	i.secrets = &secrets{store: o.Credentials, thing: "a2a:" + target, client: i.client}
	return i
}

// load reads the card.
func (i *imported) load(ctx context.Context) error {
	raw, err := remote.Fetch(ctx, i.client, i.url, i.secrets.optional("card"))
	if err != nil {
		return err
	}
	c, err := card.Parse(raw)
	if err != nil {
		return &interact.Error{Code: interact.AgentFailed, Title: "the agent's card cannot be used",
			Hint: "its operator should mend it", Err: err}
	}
	k := &known{card: c, raw: raw, skills: map[string]string{}}
	if k.verdict, k.why = card.Verify(ctx, raw, did.Keys()); errors.Is(k.why, card.ErrSignature) {
		return &interact.Error{Code: interact.BadSignature, Title: "the card of " + i.target + " was changed after it was signed",
			Err:  k.why,
			Hint: "ask the operator of the agent; do not use it until the card is right"}
	}
	at, err := remote.Choose(c)
	if err != nil {
		return err
	}
	for _, s := range c.Skills {
		name := key(s.ID)
		for name == Verbatim || name == sendAction || k.skills[name] != "" {
			name += "_"
		}
		k.skills[name] = s.ID
	}
	k.agent = remote.New(at, i.client, i.secrets.of(c))
	i.known.Store(k)
	return nil
}

func (i *imported) close() { i.client.CloseIdleConnections() }

func (i *imported) warnings() (all []string) {
	k := i.known.Load()
	if k.why != nil {
		all = append(all, k.why.Error())
	}
	return append(all, i.secrets.missing(k.card)...)
}

// changes yields a new draft when the card has changed. A card that cannot be read, or whose signature is wrong, changes nothing.
func (i *imported) changes(ctx context.Context) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		tick := time.NewTicker(recheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			before := i.known.Load()
			if err := i.load(ctx); err != nil {
				i.o.Log.Debug("the card of an A2A agent cannot be read again", "target", i.target, "err", err)
				continue
			}
			if string(i.known.Load().raw) == string(before.raw) {
				continue
			}
			if draft, err := i.describe(); err == nil && !yield(draft) {
				return
			}
		}
	}
}

// describe makes the draft of a description of what the card says.
func (i *imported) describe() ([]byte, error) {
	k := i.known.Load()
	c := k.card
	actions := map[string]any{
		Verbatim: map[string]any{"@type": bridge.A2AOperation, "title": "A2A", "synchronous": true,
			"description": "Carries the Agent2Agent protocol: an operation {method, params, serviceParameters}. " +
				"A2A clients use it through their own node."},
		sendAction: map[string]any{"title": "Send a message", "synchronous": true, "input": map[string]any{},
			"output":      map[string]any{},
			"description": "Says something to the agent: a text, data, or a message of A2A."},
	}
	var capabilities []any
	for name, id := range k.skills {
		s := c.Skills[slices.IndexFunc(c.Skills, func(s card.Skill) bool { return s.ID == id })]
		a := map[string]any{"title": cmp.Or(s.Name, s.ID), "synchronous": true, "input": map[string]any{}, "output": map[string]any{},
			"a2a:skill": s.ID}
		add(a, "description", s.Description)
		add(a, "a2a:tags", s.Tags)
		add(a, "a2a:examples", s.Examples)
		add(a, "a2a:inputModes", s.InputModes)
		add(a, "a2a:outputModes", s.OutputModes)
		actions[name] = a
		if id, ok := td.Normal(s.ID); ok && len(capabilities) < td.MaxCaps/2 {
			capability := map[string]any{"id": id, "name": cmp.Or(s.Name, s.ID)}
			add(capability, "description", s.Description)
			add(capability, "examples", s.Examples)
			capabilities = append(capabilities, capability)
		}
	}
	for _, id := range i.as.Capabilities {
		capabilities = append(capabilities, map[string]any{"id": id, "name": id})
	}
	sum := sha256.Sum256(k.raw)
	source := map[string]any{"protocol": "a2a", "card": "sha256:" + hex.EncodeToString(sum[:]), "verified": k.verdict != nil}
	if k.verdict != nil {
		source["key"] = k.verdict.Key
	}
	doc := map[string]any{
		"@context": []any{td.Context10, td.Context11, map[string]any{"lmos": td.ContextLMOS, "a2a": Namespace}},
		"@type":    "lmos:Agent", "title": cmp.Or(i.as.Name, c.Name), "actions": actions, "lmos:source": source,
		"properties": map[string]any{tasksProperty: map[string]any{"title": "Tasks", "readOnly": true, "type": "object",
			"description": "The tasks of whoever asks (ListTasks of A2A)."}},
	}
	add(doc, "description", cmp.Or(i.as.Description, c.Description))
	add(doc, "lmos:capabilities", capabilities)
	if c.Version != "" {
		doc["version"] = map[string]any{"instance": c.Version}
	}
	if c.Provider != nil {
		doc["lmos:metadata"] = map[string]any{"lmos:vendor": map[string]any{"lmos:name": c.Provider.Organization,
			"lmos:url": c.Provider.URL}}
	}
	i.addLinks(doc, c)
	if public := publicPart(c); len(public) < td.MaxTD/2 {
		doc["a2a:card"] = json.RawMessage(public)
	}
	return json.Marshal(doc)
}

func (i *imported) addLinks(doc map[string]any, c *card.Card) {
	var links []any
	for rel, href := range map[string]string{"icon": c.Icon, "service-doc": c.Documentation} {
		if u, err := url.Parse(href); err == nil && u.IsAbs() {
			links = append(links, map[string]any{"rel": rel, "href": href})
		}
	}
	add(doc, "links", links)
}

// publicPart is what others may know of a card: not where the agent is, nor what it asks of this node.
func publicPart(c *card.Card) []byte {
	p := *c
	p.Interfaces, p.Schemes, p.Requirements, p.Signatures = nil, nil, nil, nil
	p.Skills = slices.Clone(c.Skills)
	for n := range p.Skills {
		p.Skills[n].Requirements = nil
	}
	return wire.Encode(&p)
}

// add sets a member that is not empty.
func add(to map[string]any, name string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	case []any:
		if len(v) == 0 {
			return
		}
	}
	to[name] = value
}
