package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Kinds of tokens (RFC 7009 §2.1).
const (
	RefreshToken = "refresh_token"
	AccessToken  = "access_token"
)

// ErrTokenType is the error of a server that does not revoke tokens of a type (RFC 7009 §2.2.1).
var ErrTokenType = errors.New("unsupported_token_type")

// maxAnswer limits the response to a revocation, in bytes.
const maxAnswer = 64 << 10

// Revoke revokes a token of c at the revocation endpoint of s. The caller checks that secrets may be sent there. A token that s
// does not know is revoked, too (RFC 7009 §2.2). The error is [ErrTokenType], or the reason why the result is unknown, without
// secrets.
func (s Server) Revoke(ctx context.Context, h *http.Client, c Client, endpoint, token, kind string) error {
	form := url.Values{"token": {token}, "token_type_hint": {kind}}
	switch c.Method {
	case SecretBasic:
	case PrivateKeyJWT:
		if err := c.assert(form); err != nil {
			return err
		}
	default:
		form.Set("client_id", c.ID)
		if c.Secret != "" {
			form.Set("client_secret", c.Secret)
		}
	}
	hidden := append(c.secrets(), token, form.Get("client_assertion"))
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return safe(err, hidden)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if c.Method == SecretBasic { // RFC 6749 §2.3.1
		req.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(c.Secret))
	}
	resp, err := straight(h).Do(req)
	if err != nil {
		return safe(err, hidden)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var body struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(raw, &body) // the body is optional
	if body.Error == ErrTokenType.Error() {
		return ErrTokenType
	}
	answer := strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", words(body.Error, hidden)))
	return fmt.Errorf("the revocation failed: %s", answer)
}

// straight returns h without redirects.
func straight(h *http.Client) *http.Client {
	c := *h
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}
