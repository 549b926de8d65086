package oauth

import (
	"crypto/elliptic"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v3/jwt"

	"github.com/lmosd/lmosd/interact/credentials"
)

// A client with a key has its tokens revoked by that; what is wrong is said without the token, and no redirect is followed.
func TestRevoke(t *testing.T) {
	t.Parallel()
	key := curve(t, elliptic.P256())
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"revoked":            {200, "", ""},
		"a kind that stays":  {400, `{"error":"unsupported_token_type"}`, ErrTokenType.Error()},
		"it knows us not":    {401, `{"error":"invalid_client"}`, "401 invalid_client"},
		"it repeats a token": {400, `{"error":"no acc\n"}`, "400 (its words repeat a secret)"},
		"elsewhere":          {307, "", "307"},
	} {
		var form url.Values
		asked := 0
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			_ = r.ParseForm()
			form = r.PostForm
			w.Header().Set("Location", "/other")
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		s := Server{Issuer: "https://as.example"}
		client, err := s.Client(credentials.Credential{Username: "me", PrivateKeyFile: keyFile(t, key)})
		if err != nil {
			t.Fatal(err)
		}
		h := site.Client()
		got := ""
		if err := s.Revoke(t.Context(), h, client, site.URL+"/revoke", "acc", AccessToken); err != nil {
			got = err.Error()
			if errors.Is(err, ErrTokenType) != (c.want == ErrTokenType.Error()) {
				t.Errorf("%s: %v", name, err)
			}
		}
		h.CloseIdleConnections()
		site.Close()
		if asked != 1 || !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, asked %d times", name, got, asked)
		}
		if form.Get("token") != "acc" || form.Get("token_type_hint") != "access_token" || form.Has("client_id") {
			t.Errorf("%s: sent %v", name, form)
		}
		var claims jwt.Claims
		if signed, err := jwt.ParseSigned(form.Get("client_assertion")); err != nil || signed.Claims(key.Public(), &claims) != nil || claims.Issuer != "me" {
			t.Errorf("%s: it is signed by %q, %v", name, claims.Issuer, err)
		}
	}
}
