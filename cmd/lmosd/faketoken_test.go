package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// accessTokens are the access tokens of a fake node: it checks their scopes only.
type accessTokens struct {
	sync.Mutex
	all []api.Token
}

func (n *fakeNode) listTokens(w http.ResponseWriter, _ *http.Request) {
	n.tokens.Lock()
	defer n.tokens.Unlock()
	answer(w, api.TokenList{APIVersion: api.APIVersion, Kind: "TokenList", Items: append([]api.Token{}, n.tokens.all...)})
}

func (n *fakeNode) createToken(w http.ResponseWriter, r *http.Request) {
	var q api.TokenRequest
	err := json.NewDecoder(r.Body).Decode(&q)
	for _, s := range q.Scopes {
		if _, bad := tokens.ParseScope(s); bad != nil {
			err = bad
		}
	}
	life, bad := tokens.ParseLife(q.Lifetime)
	if err == nil {
		err = bad
	}
	if err != nil {
		problem.Write(w, r, err)
		return
	}
	now := time.Now().UTC().Truncate(time.Second)
	t := api.Token{Name: q.Name, Scopes: q.Scopes, Roles: q.Roles, Created: now, Expires: now.Add(life)}
	n.tokens.Lock()
	n.tokens.all = append(n.tokens.all, t)
	n.tokens.Unlock()
	t.APIVersion, t.Kind, t.Token = api.APIVersion, "Token", "lmos_"+strings.Repeat("x", 49)
	answer(w, t)
}

func (n *fakeNode) revokeToken(w http.ResponseWriter, r *http.Request) {
	n.tokens.Lock()
	defer n.tokens.Unlock()
	before := len(n.tokens.all)
	n.tokens.all = slices.DeleteFunc(n.tokens.all, func(t api.Token) bool { return t.Name == r.PathValue("name") })
	if len(n.tokens.all) == before {
		problem.Write(w, r, interact.Errorf(interact.NotFound, "list the tokens of the node", "no token has the name %q", r.PathValue("name")))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
