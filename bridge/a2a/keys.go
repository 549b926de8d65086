package a2a

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/netguard"
)

const (
	// keysFor bounds how long the keys of a card are looked for.
	keysFor = 30 * time.Second
	// maxKeySet bounds a set of keys, in bytes.
	maxKeySet = 64 << 10
)

// A keyring finds the keys of the signatures of foreign cards: those of did:key and did:web, and those in sets (card.SetFinder) at the
// card's own site, or at one that the operator trusts to say whose a key is. Where a name leads is looked at when it is dialled.
type keyring struct {
	did.Resolver
	client  *http.Client // of the agent
	site    string       // the origin of the card
	trusted []string     // origins
}

func newKeyring(target *url.URL, client *http.Client, trusted []string) *keyring {
	byMethod := map[string]did.Resolver{"key": did.Keys(), "web": web.New(web.Options{Dial: netguard.Public().DialContext})}
	k := &keyring{Resolver: did.Resolvers(byMethod), client: client, site: credentials.Origin(target)}
	for _, t := range trusted {
		k.trusted = append(k.trusted, credentials.OriginOf(t))
	}
	return k
}

// KeySet implements card.SetFinder.
func (k *keyring) KeySet(ctx context.Context, jku string) ([]byte, error) {
	u, err := url.Parse(jku)
	if err != nil || u.User != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%q is no address of keys", jku)
	}
	if origin := credentials.Origin(u); origin != k.site && (u.Scheme != "https" || !slices.Contains(k.trusted, origin)) {
		return nil, fmt.Errorf("the keys at %s are neither at the card's own site nor at one of a2a.key_origins", origin)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, jku, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", "application/jwk-set+json, application/json")
	answer, err := k.client.Do(q)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %d", jku, answer.StatusCode)
	case len(raw) > maxKeySet:
		return nil, fmt.Errorf("the keys at %s have more than %d bytes", jku, maxKeySet)
	}
	return raw, nil
}
