package node

import (
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// An access token permits what its scopes state: at agents of this node and of others, and until it is revoked.
func TestAccessTokens(t *testing.T) {
	t.Parallel()
	far, o := start(t, quiet()), quiet()
	o.HTTP, o.Dir = &HTTP{Listen: "127.0.0.1:0"}, t.TempDir()
	n := start(t, o)
	connect(t, n, far)
	agent := newAgent(t)
	one, other := publish(t, n, toolAt("One", "urn:x:one", agent.url)), publish(t, n, toolAt("Other", "urn:x:other", agent.url))
	remote := publish(t, far, toolAt("Remote", "urn:x:remote", agent.url))
	knows(t, n, remote)
	dial := func(scopes ...string) *api.Client {
		made, err := n.Client().CreateToken(t.Context(), api.TokenRequest{Name: scopes[0][:4] + scopes[len(scopes)-1][:4], Scopes: scopes})
		if err != nil {
			t.Fatal(scopes, err)
		}
		c, err := api.Dial(n.API(), made.Token)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	call := func(c *api.Client, ref string) error {
		_, _, err := c.Call(t.Context(), ref, "echo", interact.JSON, []byte(`"x"`))
		return err
	}
	read := func(c *api.Client, ref string) error {
		_, _, err := c.Read(t.Context(), ref, "version")
		return err
	}
	scoped, reads, far1, finds := dial("invoke:one/echo"), dial("find", "read:urn:x:one"), dial("call:remote"), dial("find")
	for name, c := range map[string]struct {
		got  error
		code interact.Code // 0: it succeeds
	}{
		"an action in the scope":      {call(scoped, one), 0},
		"a property outside":          {read(scoped, one), interact.Forbidden},
		"another agent":               {call(scoped, other), interact.NotFound}, // it may not find it
		"an agent of another node":    {call(scoped, remote), interact.NotFound},
		"a property in the scope":     {read(reads, one), 0},
		"an action outside":           {call(reads, one), interact.Forbidden},
		"a visible agent":             {read(reads, other), interact.Forbidden},
		"another node's agent":        {call(far1, remote), 0},
		"an agent of this node":       {call(far1, one), interact.NotFound},
		"no right to call":            {call(finds, one), interact.Forbidden},
		"without a token on loopback": {call(n.Client(), other), 0},
	} {
		switch e := interact.AsError(c.got); {
		case c.code == 0 && e != nil:
			t.Errorf("%s: %v", name, e)
		case c.code != 0 && (e == nil || e.Code != c.code):
			t.Errorf("%s: got %v, want %v", name, e, c.code)
		}
	}
	if d, err := scoped.Agent(t.Context(), "urn:x:one"); err != nil || d.Agent.ID != "urn:x:one" {
		t.Errorf("its agent: %v", err)
	}
	if _, err := scoped.Agent(t.Context(), "urn:x:other"); codeOf(err) != interact.Forbidden {
		t.Errorf("another agent: %v", err)
	}
	if err := n.Client().RevokeToken(t.Context(), "invoinvo"); err != nil {
		t.Fatal(err)
	}
	if err := call(scoped, one); codeOf(err) != interact.TokenRejected {
		t.Errorf("after the end: %v", err)
	}
}
