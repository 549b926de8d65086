// Package lmos reads the documents of LMOS agents other than Thing Descriptions: DID documents whose services are Thing Descriptions (LMOS,
// digital identity), and capabilities.json, the target of a link with the relation service-meta (LMOS, control plane). It follows references
// to the same host and port only, so that a server cannot make this node send requests to others.
package lmos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// capabilitiesPath is the path at which LMOS operators expect capabilities.json.
const capabilitiesPath = "/.well-known/capabilities.json"

// maxEndpoints limits the endpoints of a DID document that are tried.
const maxEndpoints = 4

// A Fetch returns the document at a URL.
type Fetch func(ctx context.Context, at *url.URL) ([]byte, error)

// Endpoints returns the URLs of Thing Descriptions in raw, a DID document at the address from: the endpoints of its services of the types.
// It returns none if raw is another document. It does not read the keys, because lmosd verifies no signature with them.
func Endpoints(raw []byte, from *url.URL, types ...string) (all []*url.URL) {
	doc, err := did.ParseServices(raw, "")
	if err != nil {
		return nil
	}
	for _, typ := range types {
		for _, endpoint := range web.Endpoints(doc, typ) {
			if at, err := sameHost(from, endpoint); err == nil && len(all) < maxEndpoints {
				all = append(all, at)
			}
		}
	}
	return all
}

// WithCapabilities returns raw, a TD from the URL from. If the TD declares no capabilities, it adds those of the agent's capabilities.json:
// the target of the link with relation service-meta, else the path that operators use. A TD with a proof is unchanged.
func WithCapabilities(ctx context.Context, raw []byte, from *url.URL, fetch Fetch) []byte {
	t, err := td.Parse(raw)
	if err != nil || len(t.Capabilities) > 0 || !isLMOS(t) {
		return raw
	}
	members, err := jcs.Members(raw)
	if err != nil || slices.ContainsFunc(members, func(m jcs.Member) bool { return m.Name == "proof" || m.Name == "lmos:capabilities" }) {
		return raw
	}
	refs := []string{capabilitiesPath}
	if i := slices.IndexFunc(t.Links, isServiceMeta); i >= 0 {
		refs = []string{t.Links[i].Href, capabilitiesPath}
	}
	for _, ref := range refs {
		at, err := sameHost(from, ref)
		if err != nil {
			continue
		}
		if list := readCapabilities(ctx, at, fetch); list != nil {
			more := jcs.Join(append(slices.Clip(members), jcs.Member{Name: "lmos:capabilities", Raw: list}))
			if _, err := td.Parse(more); err == nil {
				return more
			}
		}
	}
	return raw
}

func isServiceMeta(l td.Link) bool { return l.Rel == "service-meta" }

// isLMOS reports whether a Thing is an LMOS agent or tool, or links to capabilities. lmosd requests capabilities.json only from these.
func isLMOS(t *td.Thing) bool {
	return slices.ContainsFunc(t.Links, isServiceMeta) || slices.ContainsFunc(t.Types, func(typ string) bool {
		typ = typ[strings.LastIndexAny(typ, ":#/")+1:]
		return typ == "Agent" || typ == "Tool"
	})
}

// readCapabilities reads the list in a capabilities.json (LMOS, control plane); nil if there is none.
func readCapabilities(ctx context.Context, at *url.URL, fetch Fetch) json.RawMessage {
	raw, err := fetch(ctx, at)
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

// sameHost resolves a reference against the address from. It returns an error if the host differs.
func sameHost(from *url.URL, ref string) (*url.URL, error) {
	at, err := from.Parse(ref)
	if err != nil || at.Scheme != from.Scheme || at.Host != from.Host {
		return nil, fmt.Errorf("expected a URL of %s, got %s", from.Host, ref)
	}
	return at, nil
}
