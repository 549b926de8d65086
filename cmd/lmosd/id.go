package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/weblocation"
)

func newIDCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "id [did|agent]",
		Short: "show the identity of the node, a DID or an agent's owner",
		Long: "Shows the DID and the PeerID of the node and its addresses; without a running node, those of its key file. For " +
			"a DID or a PeerID, it shows both forms, the keys and the services of the DID document, which is fetched over " +
			"HTTPS for a did:web or did:webvh. For an agent, it shows the owner and the hosts.",
		Example: `  lmosd id
  lmosd id -o json --jq .did
  lmosd run --mesh.bootstrap "$(lmosd id --jq '.p2p[0]')"   # on another host
  lmosd id did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd
  lmosd id weather`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd show, lmosd keys"),
		Args:              cli.Takes(0, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return a.runID(cmd.Context())
			case strings.HasPrefix(args[0], "did:") && !strings.Contains(args[0], "/"):
				return a.showDID(cmd.Context(), args[0])
			}
			if id, ok := ofPeer(args[0]); ok {
				return a.showDID(cmd.Context(), string(id))
			}
			return a.showOwner(cmd.Context(), args[0])
		},
	}
}

// An identity is the document of lmosd id.
type identity struct {
	cli.Head
	DID     did.DID  `json:"did"`
	PeerID  string   `json:"peer_id"`
	Name    string   `json:"name,omitempty"`
	Running bool     `json:"running"`
	Addrs   []string `json:"p2p"` // multiaddrs with /p2p; empty unless running
}

func (a *app) runID(ctx context.Context) error {
	id, err := a.identify(ctx)
	if err != nil {
		return err
	}
	s := &terminal.Sheet{}
	s.Add("did", string(id.DID))
	s.Add("peer", id.PeerID)
	s.Add("name", id.Name)
	s.Add("p2p", id.Addrs...)
	if !id.Running {
		s.Add("state", "not running")
	}
	return a.Show(cli.View{Doc: id, Names: []string{string(id.DID)}, People: cli.Body(s)})
}

// identify returns the identity of the node; if no node runs, that of the key file.
func (a *app) identify(ctx context.Context) (*identity, error) {
	status, err := a.status(ctx)
	if err == nil {
		return &identity{cli.NewHead("Identity"), status.DID, status.PeerID, status.Name, true, render.Addresses(status.Addrs)}, nil
	}
	if interact.AsError(err).Code != interact.NotRunning || a.target == nil || a.target.DataDir == "" {
		return nil, err
	}
	conf, confErr := configcmd.Load(a.Console, nil)
	if confErr != nil {
		return nil, confErr
	}
	key, keyErr := keys.Existing(ctx, a.Console, conf)
	switch {
	case errors.Is(keyErr, keys.ErrNoKey):
		return nil, err
	case keyErr != nil:
		return nil, keyErr
	}
	return &identity{cli.NewHead("Identity"), key.DID(), key.DID().PeerText(), "", false, []string{}}, nil
}

// A keyOfDID is a verification method of a DID document.
type keyOfDID struct {
	ID       string   `json:"id"`
	KeyType  string   `json:"key_type,omitempty"` // empty: an unknown algorithm
	Purposes []string `json:"purposes"`
}

// A serviceOfDID is a service of a DID document.
type serviceOfDID struct {
	ID       string          `json:"id"`
	Type     []string        `json:"type"`
	Endpoint json.RawMessage `json:"endpoint"`
}

// A didSummary is the document of lmosd id DID.
type didSummary struct {
	cli.Head
	DID         did.DID         `json:"did"`
	PeerID      string          `json:"peer_id,omitempty"` // of a did:key
	Controller  []did.DID       `json:"controller,omitempty"`
	AlsoKnownAs []string        `json:"also_known_as,omitempty"`
	Keys        []keyOfDID      `json:"keys"`
	Services    []serviceOfDID  `json:"services"`
	Document    json.RawMessage `json:"document"`
}

// showDID resolves a DID and shows its document.
func (a *app) showDID(ctx context.Context, text string) error {
	id, err := did.ParseForeign(text)
	if err != nil {
		return cli.Usage("copy the whole DID, for example from lmosd id", "%q is not a DID: %v", text, err)
	}
	fetch := weblocation.Options{}
	doc, err := did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), aries.Resolver()),
		"web": web.New(fetch), "webvh": webvh.New(fetch)}).Resolve(ctx, id)
	switch {
	case errors.Is(err, did.ErrMethod):
		return cli.Usage("lmosd resolves did:key, did:web and did:webvh", "the method of %s is not supported", id)
	case errors.Is(err, did.ErrNotFound):
		return interact.Errorf(interact.NotFound, "check the spelling", "the DID %s does not exist", id)
	case err != nil:
		return &interact.Error{Code: interact.Unreachable, Title: "the DID " + string(id) + " cannot be resolved", Err: err,
			Hint: "check that its web server is reachable"}
	}
	sum := summary(doc)
	return a.Show(cli.View{Doc: sum, Names: []string{string(id)}, People: cli.Body(sum.sheet())})
}

// summary returns what lmosd id shows of a document.
func summary(doc *did.Document) *didSummary {
	s := &didSummary{Head: cli.NewHead("DID"), DID: doc.ID, PeerID: doc.ID.PeerText(), Controller: doc.Controller, AlsoKnownAs: doc.AlsoKnownAs,
		Keys: []keyOfDID{}, Services: []serviceOfDID{}, Document: doc.Raw}
	for _, m := range doc.VerificationMethod {
		k := keyOfDID{m.ID, m.KeyType, []string{}}
		for _, purpose := range []string{"authentication", did.PurposeAssertion, "keyAgreement", "capabilityInvocation", "capabilityDelegation"} {
			if doc.Allows(purpose, m.ID) {
				k.Purposes = append(k.Purposes, purpose)
			}
		}
		s.Keys = append(s.Keys, k)
	}
	for _, v := range doc.Service {
		s.Services = append(s.Services, serviceOfDID{v.ID, v.Type, v.Endpoint})
	}
	return s
}

func (d *didSummary) sheet() *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("did", string(d.DID))
	s.Add("peer", d.PeerID)
	for _, c := range d.Controller {
		s.Add("controller", string(c))
	}
	s.Add("also known as", d.AlsoKnownAs...)
	for _, k := range d.Keys {
		kind := k.KeyType
		if kind == "" {
			kind = "unknown algorithm"
		}
		s.Add("key", render.Join(" · ", strings.TrimPrefix(k.ID, string(d.DID)), kind, strings.Join(k.Purposes, ", ")))
	}
	for _, v := range d.Services {
		s.Add("service", render.Join(" · ", strings.TrimPrefix(v.ID, string(d.DID)), strings.Join(v.Type, ", "), string(v.Endpoint)))
	}
	return s
}

// ofPeer returns the DID of a PeerID in its text form, "12D3KooW…".
func ofPeer(text string) (did.DID, bool) {
	if !strings.HasPrefix(text, "12D3KooW") {
		return "", false
	}
	raw, err := did.DecodeBase58("z" + text) // PeerIDs have no multibase prefix (libp2p peer ids)
	if err != nil {
		return "", false
	}
	id, err := did.FromPeer(raw)
	return id, err == nil
}

// A party is a node that owns or hosts an agent.
type party struct {
	DID    did.DID `json:"did"`
	PeerID string  `json:"peer_id,omitempty"`
}

func newParty(id did.DID) party { return party{id, id.PeerText()} }

// An agentIdentity is the document of lmosd id AGENT.
type agentIdentity struct {
	cli.Head
	Agent string  `json:"agent"`
	Ref   string  `json:"ref"`
	Owner party   `json:"owner"`
	Hosts []party `json:"hosts"`
}

// showOwner shows the owner and the hosts of an agent.
func (a *app) showOwner(ctx context.Context, ref string) error {
	detail, err := a.agent(ctx, ref)
	if err != nil {
		return err
	}
	doc := newAgentIdentity(detail.Agent)
	s := &terminal.Sheet{}
	s.Add("agent", render.Name(detail.Agent))
	s.Add("owner", string(doc.Owner.DID))
	s.Add("peer", doc.Owner.PeerID)
	for _, h := range doc.Hosts {
		s.Add("host", string(h.DID))
		s.Add("peer", h.PeerID)
	}
	return a.Show(cli.View{Doc: doc, Names: []string{string(doc.Owner.DID)}, People: cli.Body(s)})
}

func newAgentIdentity(g api.Agent) *agentIdentity {
	doc := &agentIdentity{cli.NewHead("AgentIdentity"), g.Name, g.Ref, newParty(g.Owner), []party{}}
	for _, h := range g.Hosts {
		doc.Hosts = append(doc.Hosts, newParty(h))
	}
	return doc
}
