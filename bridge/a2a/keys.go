package a2a

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// keysTimeout is the time limit for fetching the keys of a card.
const keysTimeout = 30 * time.Second

// A keyring resolves the keys of card signatures: those of did:key and did:web, and those in key sets (card.SetFinder) at the origin of
// the card, or at a trusted origin. Addresses are checked when they are dialed.
type keyring struct {
	did.Resolver
	client  *http.Client // of the agent
	site    string       // the origin of the card
	trusted []string     // origins
}

func newKeyring(target *url.URL, client *http.Client, trusted []string) *keyring {
	byMethod := map[string]did.Resolver{"key": did.Keys(), "web": web.New(weblocation.Options{Dial: netguard.Public().DialContext})}
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
		return nil, fmt.Errorf("invalid URL of a key set: %q", jku)
	}
	if origin := credentials.Origin(u); origin != k.site && (u.Scheme != "https" || !slices.Contains(k.trusted, origin)) {
		return nil, fmt.Errorf("the origin of the keys, %s, is neither that of the card nor in a2a.key_origins", origin)
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
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responds with %d", jku, answer.StatusCode)
	}
	raw, err := httpbody.ReadAll(answer.Body, answer.ContentLength, card.MaxKeySet)
	if errors.Is(err, httpbody.ErrTooLarge) {
		return nil, fmt.Errorf("the key set at %s exceeds %d bytes", jku, card.MaxKeySet)
	}
	return raw, err
}
