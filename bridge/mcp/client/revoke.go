package client

import (
	"context"
	"errors"

	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// A RevokedGrant is a grant that was removed, and the result of its revocation.
type RevokedGrant struct {
	oauth.Grant
	// Err is nil if the issuer has revoked the tokens; otherwise they may still be valid.
	Err error
}

// Logout removes the grants of the server and requests their revocation from each issuer that supports it (RFC 7009). Without grants it
// returns nothing. The error is that of [credentials.Store.Forget]: then nothing was removed.
func (l *Login) Logout(ctx context.Context) ([]RevokedGrant, error) {
	forgotten, err := oauth.GrantsOf(l.o.Credentials).Forget(ctx, l.o.Server)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.revoked, l.active = forgotten, nil
	l.mu.Unlock()
	var all []RevokedGrant
	for _, g := range forgotten {
		all = append(all, RevokedGrant{g, l.revoke(ctx, g)})
	}
	return all, nil
}

// revoke requests the revocation of the tokens of g from its issuer.
func (l *Login) revoke(ctx context.Context, g oauth.Grant) error {
	as, err := l.authority(ctx, g.Issuer)
	if err != nil {
		return err
	}
	at := as.RevocationEndpoint
	switch origin := credentials.OriginOf(at); {
	case at == "":
		return errors.New("the authorization server does not support revocation")
	case origin != credentials.OriginOf(g.Issuer) && origin != credentials.OriginOf(g.TokenEndpoint):
		return errors.New("the revocation endpoint has another origin than the authorization server")
	}
	if err := l.checkURL(at); err != nil {
		return err
	}
	s, c, err := l.client(g)
	if err != nil {
		return err
	}
	if g.Refresh != "" { // most servers revoke the access tokens with it (RFC 7009 §2.1)
		if err := s.Revoke(ctx, l.http, c, at, g.Refresh, oauth.RefreshToken); err != nil {
			return err
		}
	}
	err = s.Revoke(ctx, l.http, c, at, g.Access, oauth.AccessToken)
	if errors.Is(err, oauth.ErrTokenType) && g.Refresh != "" {
		return nil // the server does not revoke access tokens
	}
	return err
}
