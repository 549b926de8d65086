package server

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
)

// token returns a token of two delegations, as Lmos-Capability has it.
func token(t testing.TB, form ucan.Form) string {
	t.Helper()
	host, lender, delegate := didtest.Key(1), didtest.Key(2), didtest.Key(3)
	var links [][]byte
	for _, l := range []struct {
		by did.Signer
		to did.DID
	}{{host, lender.DID()}, {lender, delegate.DID()}} {
		d, err := ucan.Delegation{Audience: l.to, Subject: host.DID(), Command: "/lmos/invoke/x/pay", Expires: time.Now().Add(time.Hour).Truncate(time.Second)}.Sign(l.by)
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, d.Bytes())
	}
	text, err := ucan.Pack(form, links...)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCapability(t *testing.T) {
	t.Parallel()
	process := did.Consumer(did.Process, "")
	for _, form := range []ucan.Form{ucan.Base64, ucan.Base64URL, ucan.Base64URLGzip} {
		c, err := Capability(process, token(t, form))
		if err != nil || c.Host != didtest.Key(1).DID() {
			t.Errorf("form %q: %+v, %v", form, c, err)
			continue
		}
		if links, err := ucan.Unpack(c.Tokens); err != nil || len(links) != 2 {
			t.Errorf("form %q: %d links, %v", form, len(links), err)
		}
	}
	good := token(t, ucan.Base64URL)
	for name, c := range map[string]struct {
		from *did.Principal
		text string
		want interact.Code
	}{
		"an unproven consumer": {did.Consumer(did.Unproven, ""), good, interact.Forbidden},
		"its session":          {did.Consumer(did.Unproven, "").InSession(time.Time{}), good, interact.Forbidden},
		"a token":              {did.Consumer(did.Token, "crm"), good, interact.Forbidden},
		"no caller":            {nil, good, interact.Forbidden},
		"half of a token":      {process, good[:len(good)/2], interact.DelegationInvalid},
		"no token":             {process, "Bearer x", interact.DelegationInvalid},
		"a large one":          {process, "C" + strings.Repeat("A", 100_000), interact.DelegationInvalid},
	} {
		if _, err := Capability(c.from, c.text); interact.AsError(err) == nil || interact.AsError(err).Code != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCapability(f *testing.F) {
	f.Add(token(f, ucan.Base64URL))
	f.Add(token(f, ucan.Base64URLGzip))
	process := did.Consumer(did.Process, "")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Capability(process, text)
		if err != nil {
			if e := interact.AsError(err); e.Code != interact.DelegationInvalid || e.Hint == "" {
				t.Errorf("%v", err)
			}
			return
		}
		if c.Host.Method() != "key" || len(c.Tokens) > interact.MaxCapability {
			t.Errorf("%+v", c)
		}
	})
}
