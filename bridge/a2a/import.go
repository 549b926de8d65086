package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/client"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

const (
	// defaultRecheck is the interval at which a card is fetched again.
	defaultRecheck = time.Minute
	// pause is the shortest interval between two fetches of a card.
	pause = 5 * time.Second
)

// An imported agent is a remote A2A agent as a Thing.
type imported struct {
	o       Options
	url     *url.URL
	target  string
	as      bridge.Import
	client  *http.Client
	secrets *credentialSet
	keys    did.Resolver // of signatures
	owners  owners
	waiting interact.InputWaiter
	cached  atomic.Pointer[cachedCard]
	stale   chan struct{} // receives a value when the card may be outdated; has room for one

	mu     sync.Mutex
	busy   map[*openCall]bool // open calls
	closed bool
}

// An openCall is one call of an agent.
type openCall struct {
	cancel context.CancelFunc
	done   chan struct{} // closed at its end
}

// A cachedCard is the last fetched card. It is read-only.
type cachedCard struct {
	card       *card.Card
	found      client.Found
	agent      protocol.Agent
	skills     map[string]string  // skill ids by action name
	signature  *card.Verification // nil: the signature is not verified
	unverified error              // the reason if it is not
}

func newImported(o Options, u *url.URL, target string, as bridge.Import) *imported {
	i := &imported{o: o, url: u, target: target, as: as, client: client.Client(u), stale: make(chan struct{}, 1)}
	i.keys = newKeyring(u, i.client, o.KeyOrigins)
	i.secrets = &credentialSet{store: o.Credentials, thing: "a2a:" + target, client: i.client, lock: make(chan struct{}, 1)}
	i.busy, i.owners = map[*openCall]bool{}, newOwners()
	return i
}

// load fetches the card, and reports whether it has changed.
func (i *imported) load(ctx context.Context) (changed bool, err error) {
	var before client.Found
	if k := i.cached.Load(); k != nil {
		before = k.found
	}
	found, err := client.Fetch(ctx, i.client, i.url, i.secrets.optional("card"), before)
	if err != nil || before.Raw != nil && bytes.Equal(found.Raw, before.Raw) {
		return false, err
	}
	c, err := card.Parse(found.Raw)
	if err != nil {
		return false, &interact.Error{Code: interact.AgentFailed, Title: "invalid agent card",
			Hint: "report it to the operator of the agent", Err: err}
	}
	k := &cachedCard{card: c, found: found, skills: map[string]string{}}
	if k.signature, k.unverified = i.verify(ctx, found.Raw); errors.Is(k.unverified, card.ErrSignature) {
		return false, &interact.Error{Code: interact.BadSignature, Title: "the card of " + i.target + " was changed after it was signed",
			Err:  k.unverified,
			Hint: "do not use the agent until its operator has corrected the card"}
	}
	at, err := client.Choose(c)
	if err != nil {
		return false, err
	}
	for _, s := range c.Skills {
		name := key(s.ID)
		for name == verbatim || name == sendAction || k.skills[name] != "" {
			name += "_"
		}
		k.skills[name] = s.ID
	}
	k.agent = i.watchErrors(client.New(at, i.client, i.secrets.of(c)))
	i.cached.Store(k)
	return true, nil
}

func (i *imported) verify(ctx context.Context, raw []byte) (*card.Verification, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	return card.Verify(ctx, raw, i.keys)
}

// staleCodes are error codes that suggest an outdated card.
var staleCodes = []int{protocol.UnknownMethod, protocol.InvalidParams, protocol.UnsupportedOperation, protocol.ContentTypeUnsupported,
	protocol.ExtensionRequired, protocol.VersionUnsupported}

// watchErrors marks the card as stale when an error suggests that it is outdated.
func (i *imported) watchErrors(a protocol.Agent) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		return func(yield func(json.RawMessage, error) bool) {
			for result, err := range a.Do(ctx, op) {
				if err != nil && isStale(err) {
					select {
					case i.stale <- struct{}{}:
					default:
					}
				}
				if !yield(result, err) {
					return
				}
			}
		}
	})
}

func isStale(err error) bool {
	var remote *protocol.Error
	var here *interact.Error
	return errors.As(err, &remote) && slices.Contains(staleCodes, remote.Code) || errors.As(err, &here) && here.Code == interact.Unreachable
}

// closeTimeout bounds the wait of close for open calls: for cancellation at the agent, and for slow consumers.
const closeTimeout = 10 * time.Second

// close cancels open calls, and waits for them.
func (i *imported) close() {
	i.mu.Lock()
	i.closed = true
	all := slices.Collect(maps.Keys(i.busy))
	i.mu.Unlock()
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	for _, one := range all {
		one.cancel()
	}
	for _, one := range all {
		select {
		case <-one.done:
		case <-late.C:
			late.Reset(0)
		}
	}
	i.client.CloseIdleConnections()
}

// closedError is the error of a closed agent.
func closedError() *interact.Error {
	return interact.Errorf(interact.Unreachable, "it may come back", "the agent is not published here anymore").Then(interact.StepFind)
}

// begin registers a call, which ends with end, close, or the deadline of m.
func (i *imported) begin(ctx context.Context, m *interact.Message) (_ context.Context, end func(), err error) {
	one := &openCall{done: make(chan struct{})}
	if m.Deadline.IsZero() {
		ctx, one.cancel = context.WithCancel(ctx)
	} else {
		ctx, one.cancel = context.WithDeadline(ctx, m.Deadline)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		one.cancel()
		return nil, nil, closedError()
	}
	i.busy[one] = true
	return ctx, func() {
		one.cancel()
		close(one.done)
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.busy, one)
	}, nil
}

func (i *imported) warnings() (all []string) {
	k := i.cached.Load()
	if k.unverified != nil {
		all = append(all, k.unverified.Error())
	}
	return append(all, i.secrets.missing(k.card)...)
}

// changes yields a new draft when the card has changed. It fetches the card periodically, and when the card may be outdated. If the card
// cannot be fetched, or has an invalid signature, the previous card stays in use.
func (i *imported) changes(ctx context.Context) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for next := time.NewTimer(i.o.CardRefresh); ; next.Reset(i.o.CardRefresh) {
			read := time.Now()
			select {
			case <-ctx.Done():
				next.Stop()
				return
			case <-next.C:
			case <-i.stale:
				_ = backoff.Sleep(ctx, pause-time.Since(read)) // load fails if ctx has ended
			}
			changed, err := i.load(ctx)
			if err != nil {
				i.o.Log.Debug("A2A card refresh failed", "target", i.target, "err", err)
			}
			if !changed {
				continue
			}
			if draft, err := i.describe(); err == nil && !yield(draft) {
				return
			}
		}
	}
}

// describe returns the draft of a Thing Description for the card.
func (i *imported) describe() ([]byte, error) {
	k := i.cached.Load()
	c := k.card
	doc := map[string]any{
		"@context": []any{td.Context10, td.Context11, map[string]any{"lmos": td.ContextLMOS, "a2a": namespace}},
		"@type":    "lmos:Agent", "title": cmp.Or(i.as.Name, c.Name), "actions": k.actions(), "lmosd:source": k.source(),
		"properties": map[string]any{tasksProperty: map[string]any{"title": "Tasks", "readOnly": true, "type": "object",
			"description": "The tasks of the caller (ListTasks of A2A)."}},
	}
	add(doc, "description", cmp.Or(i.as.Description, c.Description))
	add(doc, "lmos:capabilities", i.capabilities(c))
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

// actions returns the actions of the description: one per skill, and those of the agent itself.
func (k *cachedCard) actions() map[string]any {
	actions := map[string]any{
		verbatim: map[string]any{"@type": bridge.A2AOperation, "title": "A2A", "synchronous": true,
			"description": "Carries the Agent2Agent protocol: an operation {method, params, serviceParameters}. " +
				"A2A clients use it through their own node."},
		sendAction: map[string]any{"@type": bridge.TurnAction, "title": "Send a message", "synchronous": true,
			"input": map[string]any{}, "output": map[string]any{},
			"description": "Sends a message to the agent: text, data, or an A2A message."},
	}
	for name, id := range k.skills {
		s := k.card.Skills[slices.IndexFunc(k.card.Skills, func(s card.Skill) bool { return s.ID == id })]
		a := map[string]any{"@type": bridge.TurnAction, "title": cmp.Or(s.Name, s.ID), "synchronous": true,
			"input": map[string]any{}, "output": map[string]any{}, "a2a:skill": s.ID}
		add(a, "description", s.Description)
		add(a, "a2a:tags", s.Tags)
		add(a, "a2a:examples", s.Examples)
		add(a, "a2a:inputModes", s.InputModes)
		add(a, "a2a:outputModes", s.OutputModes)
		actions[name] = a
	}
	return actions
}

// source returns the origin of the description: the hash of the card, and its signer if the signature is verified.
func (k *cachedCard) source() map[string]any {
	sum := sha256.Sum256(k.found.Raw)
	source := map[string]any{"protocol": "a2a", "card": "sha256:" + hex.EncodeToString(sum[:]), "verified": k.signature != nil}
	if k.signature != nil {
		source["key"], source["payload"] = k.signature.Key, k.signature.Form
	}
	return source
}

// capabilities returns those of the skills, and those that the import adds.
func (i *imported) capabilities(c *card.Card) (all []any) {
	for _, s := range c.Skills {
		if id, ok := td.Normal(s.ID); ok && len(all) < td.MaxCaps/2 {
			capability := map[string]any{"id": id, "name": cmp.Or(s.Name, s.ID)}
			add(capability, "description", s.Description)
			add(capability, "examples", s.Examples)
			all = append(all, capability)
		}
	}
	for _, id := range i.as.Capabilities {
		all = append(all, map[string]any{"id": id, "name": id})
	}
	return all
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

// publicPart returns the public members of a card: without the interfaces and the security of the agent.
func publicPart(c *card.Card) []byte {
	p := *c
	p.Interfaces, p.Schemes, p.Requirements, p.Signatures = nil, nil, nil, nil
	p.Skills = slices.Clone(c.Skills)
	for n := range p.Skills {
		p.Skills[n].Requirements = nil
	}
	return protocol.Encode(&p)
}

// add sets a member to a non-empty value.
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
