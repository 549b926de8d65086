package expose

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// What agents of the LMOS platform say beside their Thing Descriptions: DID documents whose service WotThing is the TD (LMOS, digital
// identity), and capabilities.json, to which a link of relation service-meta leads (LMOS, control plane). A server that the
// administrator names may lead to documents at its own host and port only: what it says must not make this node ask others.

// capabilitiesPlace is where operators look for capabilities.json.
const capabilitiesPlace = "/.well-known/capabilities.json"

// maxEndpoints bounds the services of a DID document that are tried.
const maxEndpoints = 4

// identified is the agent that a DID document at the address from leads to; nil if raw is no such document, or leads to none.
func identified(ctx context.Context, s Spec, raw []byte, from *url.URL) *Agent {
	var head identity
	if json.Unmarshal(raw, &head) != nil || !strings.HasPrefix(string(head.ID), "did:") {
		return nil
	}
	endpoints := web.Endpoints(&did.Document{Service: head.services()}, web.WotThing)
	for _, endpoint := range endpoints[:min(len(endpoints), maxEndpoints)] {
		at, err := sameHost(from, endpoint)
		if err != nil {
			continue
		}
		thing, err := fetch(ctx, at.String())
		if err != nil {
			continue
		}
		if _, err := td.Parse(thing); err == nil {
			if a, err := described(s, withCapabilities(ctx, thing, at)); err == nil {
				return a
			}
		}
	}
	return nil
}

// An identity is what of a DID document leads to a TD. Its keys sign nothing here, and those in the pages of LMOS are made up.
type identity struct {
	ID      did.DID `json:"id"`
	Service []struct {
		Type     string          `json:"type"`
		Endpoint json.RawMessage `json:"serviceEndpoint"`
	} `json:"service"`
}

func (i identity) services() (all []did.Service) {
	for _, s := range i.Service {
		all = append(all, did.Service{Type: []string{s.Type}, Endpoint: s.Endpoint})
	}
	return all
}

// withCapabilities returns a TD from the address from with the capabilities that its agent says elsewhere, if it has none itself:
// behind its link of relation service-meta, else at the place where operators look. One that is signed stays as it is.
func withCapabilities(ctx context.Context, raw []byte, from *url.URL) []byte {
	t, err := td.Parse(raw)
	if err != nil || len(t.Capabilities) > 0 || !isLMOS(t) {
		return raw
	}
	members, err := jcs.Members(raw)
	if err != nil {
		return raw
	}
	for _, m := range members {
		if m.Name == "proof" || m.Name == "lmos:capabilities" {
			return raw
		}
	}
	places := []string{capabilitiesPlace}
	for _, l := range t.Links {
		if l.Rel == "service-meta" {
			places = []string{l.Href, capabilitiesPlace}
			break
		}
	}
	for _, place := range places {
		at, err := sameHost(from, place)
		if err != nil {
			continue
		}
		if list := readCapabilities(ctx, at); list != nil {
			more := jcs.Join(append(members, jcs.Member{Name: "lmos:capabilities", Raw: list}))
			if _, err := td.Parse(more); err == nil {
				return more
			}
		}
	}
	return raw
}

// isLMOS reports whether a thing is an agent or tool of LMOS, or links to what they say: others are not asked.
func isLMOS(t *td.Thing) bool {
	for _, l := range t.Links {
		if l.Rel == "service-meta" {
			return true
		}
	}
	for _, typ := range t.Types {
		if typ = typ[strings.LastIndexAny(typ, ":#/")+1:]; typ == "Agent" || typ == "Tool" {
			return true
		}
	}
	return false
}

// readCapabilities reads the list in a capabilities.json (LMOS, control plane); nil if there is none.
func readCapabilities(ctx context.Context, at *url.URL) json.RawMessage {
	raw, err := fetch(ctx, at.String())
	if err != nil {
		return nil
	}
	var doc struct {
		Capabilities []json.RawMessage `json:"capabilities"`
	}
	if json.Unmarshal(raw, &doc) != nil || len(doc.Capabilities) == 0 {
		return nil
	}
	list, err := json.Marshal(doc.Capabilities)
	if err != nil {
		return nil
	}
	return list
}

// sameHost resolves a reference against the address from. The error says that it leads to another host.
func sameHost(from *url.URL, ref string) (*url.URL, error) {
	at, err := from.Parse(ref)
	if err != nil || at.Scheme != from.Scheme || at.Host != from.Host {
		return nil, fmt.Errorf("%s does not lead to %s", ref, from.Host)
	}
	return at, nil
}
