package tokens

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

func scopes(t testing.TB, texts ...string) (all []Scope) {
	t.Helper()
	for _, text := range texts {
		s, err := ParseScope(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

func wantCode(t *testing.T, err error, want interact.Code) {
	t.Helper()
	if e := interact.AsError(err); e == nil || e.Code != want {
		t.Errorf("got %v, want code %v", err, want)
	}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func create(t *testing.T, s *Store, name string, texts ...string) string {
	t.Helper()
	secret, _, err := s.Create(Token{Name: name, Scopes: scopes(t, texts...)})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// A text with a typing error is not a token.
func TestForm(t *testing.T) {
	t.Parallel()
	secret := newSecret()
	if other := newSecret(); other == secret || len(other) != len(secret) || len(secret) != 54 {
		t.Errorf("got %s and %s", secret, other)
	}
	swapped := []byte(secret)
	for i := 6; i < len(swapped); i++ {
		if swapped[i] != swapped[i-1] {
			swapped[i], swapped[i-1] = swapped[i-1], swapped[i]
			break
		}
	}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"a token":             {secret, true},
		"the smallest":        {withChecksum(prefix + strings.Repeat("0", payload)), true},
		"empty":               {"", false},
		"the prefix":          {prefix, false},
		"another prefix":      {"lmas_" + secret[5:], false},
		"a letter less":       {secret[:len(secret)-1], false},
		"a letter more":       {secret + "0", false},
		"two letters swapped": {string(swapped), false},
		"a space":             {" " + secret[1:], false},
		"beyond base 62":      {withChecksum(prefix + strings.Repeat("-", payload)), false},
	} {
		if got := Is(c.text); got != c.want {
			t.Errorf("%s: %q: %t", name, c.text, got)
		}
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Scope{
		"find": {Op: access.Find}, "*": {Op: all}, "call:weather": {access.Call, "weather"}, "invoke:weather/getWeather": {access.Invoke, "weather/getWeather"},
		"read:urn:x:weather": {access.Read, "urn:x:weather"}, "find:cap:urn:x": {access.Find, "cap:urn:x"}, "manage:node": {access.Manage, "node"},
		"invoke:weather/get*": {access.Invoke, "weather/get*"},
	} {
		s, err := ParseScope(text)
		if err != nil || s != want || s.String() != text {
			t.Errorf("%s: %+v, %v", text, s, err)
		}
	}
	if s := scopes(t, "find:*"); s[0] != (Scope{Op: access.Find}) {
		t.Errorf("find:* is %+v", s)
	}
	for name, text := range map[string]string{"empty": "", "unknown": "fly", "of the node": "connect", "upper case": "Find", "two": "find read", "no agent": "find:",
		"only an affordance": "invoke:/x", "a quote": `find:"x"`, "a backslash": `find:a\b`, "not ASCII": "find:wétter", "a control": "find:a\x00", "long": "find:" + strings.Repeat("x", 256)} {
		_, err := ParseScope(text)
		if wantCode(t, err, interact.Usage); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The scopes of a token, and nothing else, are its rights.
func TestGrants(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	weather := &access.Target{ID: "urn:x:weather", Names: []string{"weather"}, Capabilities: []string{"urn:x", "urn:x:forecast"}}
	lamp := &access.Target{ID: "urn:x:lamp", Names: []string{"lamp"}}
	targets := map[string]*access.Target{"all": nil, "weather": weather, "lamp": lamp}
	for name, c := range map[string]struct {
		scopes  string
		allowed string // operation@target
		calls   bool
	}{
		"find":          {"find", "find@all find@lamp find@weather", false},
		"manage":        {"manage", "manage@all manage@lamp manage@weather", false},
		"call":          {"call", "find@all find@lamp find@weather invoke@all invoke@lamp invoke@weather read@all read@lamp read@weather", true},
		"one.agent":     {"call:weather", "find@weather invoke@weather read@weather", true},
		"an.id":         {"read:urn:x:weather", "find@weather read@weather", true},
		"a.capability":  {"find:cap:urn:x", "find@weather", false},
		"two":           {"find read:lamp", "find@all find@lamp find@weather read@lamp", true},
		"an.affordance": {"invoke:weather/getWeather", "find@weather", true}, // see below
		"everything": {"*", "find@all find@lamp find@weather invoke@all invoke@lamp invoke@weather manage@all manage@lamp manage@weather " +
			"read@all read@lamp read@weather", true},
	} {
		g, err := s.Find(t.Context(), create(t, s, name, strings.Fields(c.scopes)...))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for target, at := range targets {
			for _, op := range []access.Op{access.Find, access.Read, access.Invoke, access.Manage} {
				if g.Allows(op, at) {
					got = append(got, string(op)+"@"+target)
				}
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.allowed || g.AllowsCalls() != c.calls || g.IsOperator() || g.IsUnlimited() != (name == "everything") {
			t.Errorf("%s: got %v, calls %t, unlimited %t", name, got, g.AllowsCalls(), g.IsUnlimited())
		}
		if p := g.Principal(); p.Via != did.Token || p.Name != name || p.Relation != did.Local || !p.Scoped() || !p.Expires.Equal(g.Expires) {
			t.Errorf("%s: principal %+v", name, p)
		}
	}
	b := access.NewBuilder(access.Options{})
	if err := s.Rules(b); err != nil {
		t.Fatal(err)
	}
	rules := b.Build()
	for affordance, want := range map[string]bool{"getWeather": true, "getReport": false} {
		d := rules.Decide(did.Consumer(did.Token, "an.affordance"), access.Request{Op: access.Invoke, Target: weather, Affordance: affordance})
		if d.Allow != want || d.Why() == "" {
			t.Errorf("%s: %+v", affordance, d)
		}
	}
}

func TestTheOperator(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	info, err := os.Stat(OperatorPath(dir))
	if err != nil || info.Mode().Perm() != 0o600 || len(s.Secret()) < 43 {
		t.Errorf("%d bytes, mode %v, %v", len(s.Secret()), info.Mode(), err)
	}
	g, err := s.Find(t.Context(), s.Secret())
	if err != nil || !g.IsOperator() || !g.IsUnlimited() || !g.AllowsCalls() || !g.Allows(access.Manage, nil) || g.Principal().Scoped() {
		t.Errorf("got %+v, %v", g, err)
	}
	if again := open(t, dir); again.Secret() != s.Secret() {
		t.Error("the next start has another token")
	}
	if one, two := open(t, ""), open(t, ""); one.Secret() == two.Secret() {
		t.Error("two starts without a directory have one token")
	}
	if len(s.List()) > 0 {
		t.Errorf("listed: %v", s.List())
	}
	wantCode(t, s.Revoke(did.Operator), interact.Usage)
	for name, text := range map[string]string{"empty": "", "short": "abc\n", "a crash before it was written": strings.Repeat(" ", 64)} {
		if err := os.WriteFile(OperatorPath(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s := open(t, dir); len(s.Secret()) < 43 {
			t.Errorf("%s: got %q; want a new one", name, s.Secret())
		}
	}
	own := strings.Repeat("s3cret", 10)
	if err := os.WriteFile(OperatorPath(dir), []byte("  "+own+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := open(t, dir); s.Secret() != own {
		t.Errorf("the user's own: %q", s.Secret())
	}
	if err := os.Chmod(OperatorPath(dir), 0o640); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir)
	wantCode(t, err, interact.KeyPermissions)
}

func TestNoTokens(t *testing.T) {
	t.Parallel()
	var none *Store
	for name, s := range map[string]*Store{"nil": none, "no operator": New("")} {
		if _, err := s.Find(t.Context(), ""); err == nil {
			t.Errorf("%s: the empty token is accepted", name)
		}
		s.OnChange(nil)
		if wantCode(t, s.Revoke("x"), interact.NotFound); len(s.List()) > 0 || s.Rules(access.NewBuilder(access.Options{})) != nil {
			t.Errorf("%s: it has tokens", name)
		}
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	secret, made, err := s.Create(Token{Name: "ci", Scopes: scopes(t, "call"), Roles: []string{"build-1", "ops"}})
	if err != nil || !Is(secret) || made.Expires.Sub(made.Created) != DefaultLife {
		t.Fatal(secret, made, err)
	}
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || bytes.Contains(raw, []byte(secret)) || bytes.Contains(raw, []byte(secret[5:48])) {
		t.Errorf("the secret is in the file, or %v", err)
	}
	for name, s := range map[string]*Store{"here": s, "after a restart": open(t, dir)} {
		g, err := s.Find(t.Context(), secret)
		if err != nil || g.Name != "ci" || !slices.Equal(g.Principal().Roles, []string{"build-1", "ops"}) || !g.Expires.Equal(made.Expires) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
		similar := secret[:len(secret)-1] + "x"
		if similar == secret {
			similar = secret[:len(secret)-1] + "y"
		}
		if _, err := s.Find(t.Context(), similar); err == nil {
			t.Errorf("%s: a similar token is accepted", name)
		}
		if list := s.List(); len(list) != 1 || list[0].Name != "ci" {
			t.Errorf("%s: %v", name, list)
		}
	}
	year := func(d time.Duration) time.Time { return time.Now().Add(MaxLife + d) }
	for name, c := range map[string]Token{
		"a name that exists": {Name: "ci", Scopes: scopes(t, "find")},
		"no name":            {Scopes: scopes(t, "find")},
		"upper case":         {Name: "CI", Scopes: scopes(t, "find")},
		"a long name":        {Name: strings.Repeat("x", 65), Scopes: scopes(t, "find")},
		"the operator":       {Name: did.Operator, Scopes: scopes(t, "*")},
		"local callers":      {Name: "local", Scopes: scopes(t, "find")},
		"unproven callers":   {Name: "unproven", Scopes: scopes(t, "find")},
		"no scope":           {Name: "x"},
		"many scopes":        {Name: "x", Scopes: slices.Repeat(scopes(t, "find"), maxScopes+1)},
		"over a year":        {Name: "x", Scopes: scopes(t, "find"), Expires: year(time.Hour)},
		"expired":            {Name: "x", Scopes: scopes(t, "find"), Expires: time.Now().Add(-time.Hour)},
		"an invalid role":    {Name: "x", Scopes: scopes(t, "find"), Roles: []string{"a b"}},
		"a role with a dot":  {Name: "x", Scopes: scopes(t, "find"), Roles: []string{".a"}},
		"an empty role":      {Name: "x", Scopes: scopes(t, "find"), Roles: []string{""}},
		"a role twice":       {Name: "x", Scopes: scopes(t, "find"), Roles: []string{"a", "a"}},
		"many roles":         {Name: "x", Scopes: scopes(t, "find"), Roles: strings.Fields(strings.Repeat("a ", maxRoles+1))},
	} {
		if secret, _, err := s.Create(c); err == nil || secret != "" || interact.AsError(err).Code != interact.Usage || interact.AsError(err).Hint == "" {
			t.Errorf("%s: %q, %v", name, secret, err)
		}
	}
	if len(s.List()) != 1 {
		t.Errorf("after the errors: %v", s.List())
	}
}

// A token ends at its time, and its name may then be used again.
func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New("operator")
		defer s.Close()
		secret, _, err := s.Create(Token{Name: "ci", Scopes: scopes(t, "call"), Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Find(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		var permitted []bool
		s.OnChange(func() error {
			b := access.NewBuilder(access.Options{})
			err := s.Rules(b)
			permitted = append(permitted, b.Build().Decide(g.Principal(), access.Request{Op: access.Invoke, Target: new(access.Target)}).Allow)
			return err
		})
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if _, err := s.Find(t.Context(), secret); err != nil || g.Context().Err() != nil {
			t.Errorf("a minute before: %v, %v", err, g.Context().Err())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		_, err = s.Find(t.Context(), secret)
		if wantCode(t, err, interact.TokenRejected); !strings.Contains(err.Error(), "expired") || g.Context().Err() == nil {
			t.Errorf("after: %v, %v", err, g.Context().Err())
		}
		if !slices.Equal(permitted, []bool{false}) {
			t.Errorf("the rules after the end permit %v", permitted)
		}
		again := create(t, s, "ci", "find")
		if g, err := s.Find(t.Context(), again); err != nil || len(s.List()) != 1 {
			t.Errorf("the next one: %+v, %v, %v", g, err, s.List())
		}
	})
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	secret, other := create(t, s, "ci", "call"), create(t, s, "b", "find")
	g, err := s.Find(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	var rulesFirst bool
	s.OnChange(func() error {
		rulesFirst = g.Context().Err() == nil
		return errors.New("the rules of the operator have an error")
	})
	if err := s.Revoke("ci"); err != nil || g.Context().Err() == nil || !rulesFirst {
		t.Errorf("got %v, the context has %v, rules before it: %t", err, g.Context().Err(), rulesFirst)
	}
	for name, s := range map[string]*Store{"here": s, "after a restart": open(t, dir)} {
		_, err := s.Find(t.Context(), secret)
		wantCode(t, err, interact.TokenRejected)
		if g, err := s.Find(t.Context(), other); err != nil || g.Context().Err() != nil {
			t.Errorf("%s: another token: %v", name, err)
		}
	}
	wantCode(t, s.Revoke("ci"), interact.NotFound)
}

// A token whose rules cannot be put in force is not created.
func TestRulesThatAreRejected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	kept := create(t, s, "kept", "find")
	fail := true
	s.OnChange(func() error {
		if fail {
			return interact.Errorf(interact.PolicyInvalid, "correct it", "access rules: line 3")
		}
		return nil
	})
	secret, _, err := s.Create(Token{Name: "ci", Scopes: scopes(t, "call")})
	if wantCode(t, err, interact.PolicyInvalid); secret != "" || len(s.List()) != 1 || len(open(t, dir).List()) != 1 {
		t.Errorf("got %q; the tokens are %v", secret, s.List())
	}
	if _, err := s.Find(t.Context(), kept); err != nil {
		t.Errorf("another token: %v", err)
	}
	fail = false
	create(t, s, "ci", "call")
}

// Clients of other protocols present a token as password.
func TestLogin(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	secret := create(t, s, "ci", "call")
	local := did.Consumer(did.Loopback, "")
	for name, c := range map[string]struct {
		anonymous *did.Principal
		password  string
		want      string
	}{
		"a token":                     {nil, secret, "local#ci"},
		"a token on loopback":         {local, secret, "local#ci"},
		"the operator":                {nil, s.Secret(), "local#operator"},
		"nothing":                     {nil, "", ""},
		"nothing on loopback":         {local, "", "local"},
		"another password":            {nil, "x", ""},
		"another one on loopback":     {local, "x", "local"},
		"an unknown token":            {nil, newSecret(), ""},
		"an unknown one, on loopback": {local, newSecret(), ""},
	} {
		p, ctx := s.Login(c.anonymous)("anybody", c.password)
		if p.ID() != c.want || (ctx == nil) != (p == nil) {
			t.Errorf("%s: got %q, want %q", name, p.ID(), c.want)
		}
	}
}

func TestLifetimes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30d": 30 * day, "365d": MaxLife, "12h": 12 * time.Hour, "1h30m": 90 * time.Minute, "1m": time.Minute} {
		if got, err := ParseLife(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "0d", "-1d", "366d", "8761h", "59s", "1w", "1.5d", "99999999999999999999d", "30"} {
		_, err := ParseLife(text)
		wantCode(t, err, interact.Usage)
	}
}

func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	create(t, s, "ci", "call")
	raw, err := os.ReadFile(filepath.Join(s.dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	good := string(raw)
	sum := s.digests["ci"]
	hexed, _ := sum.MarshalText()
	for name, text := range map[string]string{
		"empty":             "",
		"not JSON":          "x",
		"cut":               good[:len(good)/2],
		"another version":   strings.Replace(good, `"version": 1`, `"version": 2`, 1),
		"no version":        `{"tokens": []}`,
		"an unknown member": strings.Replace(good, `"name"`, `"admin": true, "name"`, 1),
		"text after it":     good + "{}",
		"a short digest":    strings.Replace(good, string(hexed), string(hexed[2:]), 1),
		"no digest":         strings.Replace(good, string(hexed), "", 1),
		"an unknown scope":  strings.Replace(good, `"call"`, `"fly"`, 1),
		"an invalid name":   strings.Replace(good, `"ci"`, `"C I"`, 1),
		"the operator":      strings.Replace(good, `"ci"`, `"operator"`, 1),
		"two of a name":     strings.Replace(good, "[\n    {", `[{"name":"ci","scopes":["find"],"created":"2026-01-01T00:00:00Z","expires":"2026-02-01T00:00:00Z","sha256":"`+strings.Repeat("0", 64)+"\"},\n    {", 1),
		"two of a secret":   strings.Replace(good, "[\n    {", `[{"name":"x","scopes":["find"],"created":"2026-01-01T00:00:00Z","expires":"2026-02-01T00:00:00Z","sha256":"`+string(hexed)+"\"},\n    {", 1),
		"no end":            strings.Replace(good, `"expires": "20`, `"expires": "29`, 1),
		"large":             good + strings.Repeat(" ", maxFile),
	} {
		if text == good {
			t.Fatalf("%s: the text did not change", name)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir)
		if e := interact.AsError(err); e == nil || e.Code != interact.StoreCorrupt || !strings.Contains(e.Error(), fileName) || e.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(filepath.Join(s.dir, fileName), 0o604); err != nil {
		t.Fatal(err)
	}
	_, err = Open(s.dir)
	wantCode(t, err, interact.KeyPermissions)
}

func FuzzToken(f *testing.F) {
	f.Add(newSecret())
	f.Add(prefix + strings.Repeat("z", payload+checksum))
	s := New("operator")
	f.Fuzz(func(t *testing.T, text string) {
		if Is(text) && (len(text) != secretLen || withChecksum(text[:secretLen-checksum]) != text) {
			t.Errorf("%q has the form of a token", text)
		}
		if _, err := s.Find(t.Context(), text); (err == nil) != (text == "operator") {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// Every scope that is parsed can be written, read again, and used as a rule.
func FuzzScope(f *testing.F) {
	for _, text := range []string{"find", "invoke:weather/getWeather", "read:urn:x:y", "find:cap:urn:x", "*:*", "manage:node", "call:a/*"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScope(text)
		if err != nil {
			return
		}
		if again, err := ParseScope(s.String()); err != nil || again != s {
			t.Errorf("%q: %+v, %v", text, again, err)
		}
		if _, err := compile(Token{Name: "x", Scopes: []Scope{s}}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// What is read can be written, and reads the same.
func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"tokens":[{"name":"ci","scopes":["call:x"],"roles":["a"],"created":"2026-01-01T00:00:00Z","expires":"2026-02-01T00:00:00Z","sha256":"` +
		strings.Repeat("0a", 32) + `"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parse(raw)
		if err != nil {
			return
		}
		text, err := json.Marshal(document{fileVersion, all})
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(text)
		if err != nil || len(again) != len(all) {
			t.Fatalf("%s: %v", text, err)
		}
		for _, e := range all {
			if _, err := compile(e.Token); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
}
