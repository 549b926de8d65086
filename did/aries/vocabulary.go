//go:build !noaries

package aries

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/hyperledger/aries-framework-go/component/models/ld/context/embed"
	"github.com/piprate/json-gold/ld"
)

// contextCredentials is the first context of each credential.
const contextCredentials = "https://www.w3.org/2018/credentials/v1"

// documentContexts are the contexts that a credential may have. Their terms are protected, or defined once: TestContextsDefineEachTermOnce.
var documentContexts = []string{
	contextCredentials,
	"https://w3id.org/security/suites/ed25519-2020/v1",
	"https://w3id.org/security/suites/jws-2020/v1",
	"https://w3id.org/security/jws/v1",
	"https://w3id.org/vc/status-list/2021/v1",
	ContextLinkage,
	ContextRoles,
}

// proofContexts are those that the module uses for proofs with a JWS, besides documentContexts.
var proofContexts = []string{"https://w3id.org/security/v1", "https://w3id.org/security/v2"}

//go:embed contexts/roles-v1.jsonld
var rolesV1 []byte

//go:embed contexts/did-configuration-v1.jsonld
var linkageV1 []byte

// contexts returns the decoded contexts by their URLs. Nothing changes them.
var contexts = sync.OnceValue(func() map[string]any {
	all := map[string]any{}
	add := func(url string, raw []byte) {
		var v any
		if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&v); err != nil {
			panic(fmt.Sprintf("context %s: %v", url, err))
		}
		all[url] = v
	}
	for _, c := range embed.Contexts {
		if slices.Contains(proofContexts, c.URL) || slices.Contains(documentContexts, c.URL) {
			add(c.URL, c.Content)
		}
	}
	add(ContextRoles, rolesV1)
	add(ContextLinkage, linkageV1)
	return all
})

// A loader returns the contexts of this package. It sends no requests.
type loader struct{}

// LoadDocument implements ld.DocumentLoader.
func (loader) LoadDocument(url string) (*ld.RemoteDocument, error) {
	v, ok := contexts()[url]
	if !ok {
		return nil, unknownContext(url)
	}
	return &ld.RemoteDocument{DocumentURL: url, Document: v}, nil
}

func unknownContext(url string) error {
	return fmt.Errorf("the context %.200q is not built in, and contexts are not fetched", url)
}
