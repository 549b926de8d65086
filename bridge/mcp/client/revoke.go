package client

import (
	"context"
	"errors"

	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// An Ending is what became of a grant that was forgotten.
type Ending struct {
	oauth.Grant
	// Err is why its tokens may be good for whoever has them still; nil if the issuer has revoked them.
	Err error
}

// End forgets what was granted for the server, and has each issuer revoke its tokens, as far as it does (RFC 7009). Nothing that
// was granted is no ending. The error is one of [credentials.Store.Forget]: then nothing is forgotten.
func (l *Login) End(ctx context.Context) ([]Ending, error) {
	forgotten, err := oauth.GrantsOf(l.o.Credentials).Forget(ctx, l.o.Server)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.ended, l.now = forgotten, nil
	l.mu.Unlock()
	var all []Ending
	for _, g := range forgotten {
		all = append(all, Ending{g, l.revoke(ctx, g)})
	}
	return all, nil
}

// revoke has the issuer of g revoke its tokens.
func (l *Login) revoke(ctx context.Context, g oauth.Grant) error {
	as, err := l.authority(ctx, g.Issuer)
	if err != nil {
		return err
	}
	at := as.RevocationEndpoint
	switch origin := credentials.OriginOf(at); {
	case at == "":
		return errors.New("the authorization server does not revoke tokens")
	case origin != credentials.OriginOf(g.Issuer) && origin != credentials.OriginOf(g.TokenEndpoint):
		return errors.New("the authorization server has tokens revoked somewhere else, where they have not been before")
	}
	if err := l.mayAsk(at); err != nil {
		return err
	}
	s, c, err := l.client(g)
	if err != nil {
		return err
	}
	if g.Refresh != "" { // most take the access tokens with it (RFC 7009 §2.1)
		if err := s.Revoke(ctx, l.http, c, at, g.Refresh, oauth.RefreshToken); err != nil {
			return err
		}
	}
	err = s.Revoke(ctx, l.http, c, at, g.Access, oauth.AccessToken)
	if errors.Is(err, oauth.ErrTokenType) && g.Refresh != "" {
		return nil // it cannot do more
	}
	return err
}
