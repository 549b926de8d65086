package publication

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func address(t testing.TB, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A caller secret is in a file that only the owner reads, survives a restart and other publications, is replaced on request, and ends with the
// publication. It is for the origin of the agent only.
func TestCallerSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *CallerSecrets {
		t.Helper()
		c, err := LoadCallerSecrets(dir)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	f := newFixture(t)
	f.o.CallerSecrets = open()
	publish := func(wanted bool) string {
		t.Helper()
		ctx := t.Context()
		if wanted {
			ctx = WithCallerSecret(ctx)
		}
		r, err := f.Publisher.Publish(ctx, tool("Echo", "urn:x:echo"), nil, Registration{})
		if err != nil {
			t.Fatal(err)
		}
		return r.CallerSecret
	}
	if s := publish(false); s != "" {
		t.Errorf("a secret nobody requested: %s", s)
	}
	first := publish(true)
	second := publish(true)
	if first == second || len(second) < 30 || publish(false) != "" {
		t.Errorf("the secrets are %q and %q", first, second)
	}
	info, err := os.Stat(filepath.Join(dir, CallerSecretsFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	again := open()
	for to, want := range map[string]string{"http://127.0.0.1:1/echo": second, "HTTP://127.0.0.1:1": second, "http://127.0.0.1:2/echo": "",
		"https://127.0.0.1:1/echo": "", "http://127.0.0.1.example:1/echo": "", "http://x@127.0.0.2:1": ""} {
		if got := again.Of("urn:x:echo", address(t, to)); got != want {
			t.Errorf("%s gets %q", to, got)
		}
		if got := again.Of("urn:x:other", address(t, to)); got != "" {
			t.Errorf("another Thing at %s gets %q", to, got)
		}
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secrets", again)
	for _, text := range []string{log.String(), fmt.Sprint(again), fmt.Sprintf("%+v %#v", again, again), f.log.String()} {
		if strings.Contains(text, second) || strings.Contains(text, first) {
			t.Errorf("a text has a secret: %s", text)
		}
	}
	if _, err := f.Withdraw(t.Context(), "urn:x:echo"); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, CallerSecretsFile)); err != nil || string(raw) != "{}" {
		t.Errorf("after the end of the publication the file has %s, %v", raw, err)
	}
	if got := f.o.CallerSecrets.Of("urn:x:echo", address(t, "http://127.0.0.1:1")); got != "" {
		t.Errorf("after the end of the publication the agent gets %q", got)
	}
}

// A caller secret is for one origin of a server that the node calls. A refused one publishes nothing.
func TestRefusedCallerSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	handler := interact.Func(nil)
	td := string(tool("Echo", "urn:x:echo"))
	const form = `{"href":"http://127.0.0.1:1/echo"`
	for name, c := range map[string]struct {
		td    string
		inner interact.Thing
		has   bool
		want  string
	}{
		"no secrets":      {td, nil, false, "has no caller secrets"},
		"in this process": {td, handler, true, "calls over HTTP"},
		"over MQTT":       {strings.Replace(td, "http:", "mqtt:", 1), nil, true, "calls over HTTP"},
		"two origins":     {strings.Replace(td, form, `{"href":"http://127.0.0.1:2/echo"},`+form, 1), nil, true, "has forms at 2"},
	} {
		f.o.CallerSecrets = nil
		if c.has {
			f.o.CallerSecrets, _ = LoadCallerSecrets("")
		}
		_, err := f.Publisher.Publish(WithCallerSecret(t.Context()), []byte(c.td), c.inner, Registration{})
		if e := interact.AsError(err); e == nil || e.Code != interact.Invalid || !strings.Contains(e.Error(), c.want) || f.Index.Get("urn:x:echo") != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnusableCallerSecrets(t *testing.T) {
	t.Parallel()
	for content, mode := range map[string]os.FileMode{`{}`: 0o640, `{"a":{"origin":"http://x","secret":"hush"}`: 0o600, `null`: 0o600, `[]`: 0o600,
		`{"a":{"origin":"http://x/hush","secret":"hush"}}`: 0o600, `{"a":{"origin":"http://x"}}`: 0o600, `{"a":"hush","a":1}`: 0o600} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, CallerSecretsFile), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		_, err := LoadCallerSecrets(dir)
		want := interact.ConfigInvalid
		if mode != 0o600 {
			want = interact.KeyPermissions
		}
		if e := interact.AsError(err); e == nil || e.Code != want || strings.Contains(e.Error(), "hush") {
			t.Errorf("%s: %v", content, err)
		}
	}
	dir := t.TempDir()
	c, err := LoadCallerSecrets(filepath.Join(dir, "missing"))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := c.make("urn:x", "http://x"); interact.AsError(err).Code != interact.ConfigFile || c.Of("urn:x", address(t, "http://x")) != "" {
		t.Errorf("a secret that is not stored: %q, %v", s, err)
	}
}

func FuzzCallerSecrets(f *testing.F) {
	f.Add([]byte(`{"urn:x":{"origin":"http://127.0.0.1:9","secret":"s"}}`))
	f.Add([]byte(`{"a":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parseCallerSecrets(raw)
		if err == nil && all == nil {
			t.Error("neither secrets nor an error")
		}
		for thing, s := range all {
			c := &CallerSecrets{byThing: all}
			if got := c.Of(thing, address(t, s.Origin)); got != s.Secret || got == "" {
				t.Errorf("%q has the secret %q at its own origin", thing, got)
			}
		}
	})
}
