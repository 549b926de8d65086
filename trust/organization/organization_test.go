package organization

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// A clock is a time that a test sets.
type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) add(d time.Duration)     { c.at = c.at.Add(d) }
func (c *clock) options() Options        { return Options{Now: c.now} }
func newClock() *clock                   { return &clock{noon} }
func node(n int) did.DID                 { return didtest.Key(n).DID() }
func folder(t testing.TB) string         { return filepath.Join(t.TempDir(), "org") }
func recovery(o *Organization) string    { return filepath.Join(filepath.Dir(o.dir), "acme.recovery") }
func options(c *clock, f string) Options { return Options{Now: c.now, RecoveryFile: f} }

// create makes an organization with a recovery file beside its folder.
func create(t testing.TB, c *clock) *Organization {
	t.Helper()
	dir := folder(t)
	o, err := Create(dir, "acme.example", node(1), options(c, filepath.Join(filepath.Dir(dir), "acme.recovery")))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

func wantCode(t testing.TB, err error, code interact.Code, parts ...string) {
	t.Helper()
	e, ok := errors.AsType[*interact.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("got %v, want code %s", err, code)
	}
	for _, p := range parts {
		if !strings.Contains(e.Error(), p) {
			t.Errorf("%q does not contain %q", e, p)
		}
	}
}

// join makes a second node of the organization, admitted by o.
func join(t testing.TB, o *Organization, n int, c *clock, roles ...string) *Organization {
	t.Helper()
	noError(t, o.Admit(node(n), "", roles...))
	cred := must(o.Issue(node(n), nil, 0))(t)
	return must(Join(folder(t), o.Log(), cred, node(n), c.options()))(t)
}

func TestCreate(t *testing.T) {
	t.Parallel()
	c := newClock()
	dir := folder(t)
	file := filepath.Join(filepath.Dir(dir), "acme.recovery")
	o := must(Create(dir, "acme.example:8443", node(1), Options{Now: c.now, RecoveryFile: file, Endpoints: []string{"/ip4/203.0.113.7/udp/4667/quic-v1"}}))(t)
	if o.Name() != "acme.example:8443" || len(o.SCID()) != 46 || !o.IsIssuer() || !o.HasRoot() || o.Auto() || o.Node() != node(1) {
		t.Errorf("name %s, SCID %s, issuer %t, root %t, auto %t", o.Name(), o.SCID(), o.IsIssuer(), o.HasRoot(), o.Auto())
	}
	doc := must(o.Resolve(t.Context(), o.DID()))(t)
	if !slices.Equal(doc.AlsoKnownAs, []string{"did:web:acme.example%3A8443"}) || len(doc.AssertionMethod) != 1 || doc.AssertionMethod[0] != string(o.DID())+"#i1" {
		t.Errorf("document %s", doc.Raw)
	}
	if len(doc.Service) != 1 || !slices.Contains(doc.Service[0].Type, "LmosMesh") {
		t.Errorf("services %v", doc.Service)
	}
	cred := o.Credential()
	if cred == nil || cred.Subject != node(1) || !slices.Equal(cred.Roles, []string{NodeRole}) || cred.Until.Sub(cred.From) != Life {
		t.Fatalf("credential %+v", cred)
	}
	if want := "https://acme.example:8443/.well-known/lmosd/status/i1.json"; cred.Status.List != want {
		t.Errorf("list %s, want %s", cred.Status.List, want)
	}
	if _, err := o.Resolve(t.Context(), node(1)); !errors.Is(err, did.ErrNotFound) {
		t.Errorf("another DID was resolved: %v", err)
	}
	checkModes(t, dir)
	again := must(Open(dir, node(1), c.options()))(t)
	if again.DID() != o.DID() || !again.IsIssuer() || !again.HasRoot() || again.Credential() == nil || len(again.Members()) != 1 {
		t.Errorf("opened again: %s, issuer %t, root %t", again.DID(), again.IsIssuer(), again.HasRoot())
	}
	k := must(keystore.Open(file))(t)
	if _, next := o.Log().UpdateKeys(); len(next) != 2 || next[1] != webvh.KeyHash(k.DID().Multibase()) {
		t.Errorf("the recovery file is not the next root key")
	}
}

// checkModes checks that only this user can read the folder.
func checkModes(t *testing.T, dir string) {
	t.Helper()
	if info := must(os.Stat(dir))(t); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v", info.Mode())
	}
	for _, e := range must(os.ReadDir(dir))(t) {
		if info := must(e.Info())(t); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
}

func TestCreateRejects(t *testing.T) {
	t.Parallel()
	for name, domain := range map[string]string{"empty": "", "address": "192.0.2.1", "path": "acme.example/sales", "escape": "acme%2eexample",
		"two ports": "a:1:2", "port": "acme.example:0", "space": "acme example", "URL": "https://acme.example", "user": "me@acme.example"} {
		dir := folder(t)
		file := filepath.Join(filepath.Dir(dir), "r")
		_, err := Create(dir, domain, node(1), options(newClock(), file))
		wantCode(t, err, interact.Usage)
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: a recovery file was left", name)
		}
		if _, err := Open(dir, node(1), Options{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := folder(t)
	_, err := Create(dir, "acme.example", node(1), Options{})
	wantCode(t, err, interact.Usage, "file")
	file := filepath.Join(filepath.Dir(dir), "r")
	noError(t, os.WriteFile(file, []byte("precious"), 0o600))
	_, err = Create(dir, "acme.example", node(1), Options{RecoveryFile: file})
	wantCode(t, err, interact.Usage, "never overwritten")
	wantError(t, err, fs.ErrExist)
	// A container whose root is read-only; the tests may run as a user who may write everywhere.
	wantCode(t, recoveryError(&fs.PathError{Op: "open", Path: "/r", Err: syscall.EROFS}), interact.Usage, "cannot write the recovery file: read-only file system")
	if b := must(os.ReadFile(file))(t); string(b) != "precious" {
		t.Error("the file was overwritten")
	}
	if _, err := Open(dir, node(1), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an organization was left: %v", err)
	}
}

func TestASecondOrganizationIsRejected(t *testing.T) {
	t.Parallel()
	c := newClock()
	o, other := create(t, c), create(t, c)
	_, err := Create(o.dir, "globex.example", node(1), options(c, recovery(o)+"2"))
	wantError(t, err, ErrExists)
	_, err = Join(o.dir, other.Log(), nil, node(1), c.options())
	wantError(t, err, ErrExists)
	wantCode(t, err, interact.Usage, "acme.example")
	noError(t, o.Leave())
	if _, err := Open(o.dir, node(1), c.options()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Leave: %v", err)
	}
	must(Join(o.dir, other.Log(), nil, node(1), c.options()))(t)
}

func TestAutoIsReplaced(t *testing.T) {
	t.Parallel()
	c := newClock()
	dir := folder(t)
	auto := Options{Now: c.now, Auto: true}
	o := must(Create(dir, "laptop.local", node(1), auto))(t)
	if !o.Auto() || !must(Open(dir, node(1), c.options()))(t).Auto() {
		t.Fatal("it is not automatic")
	}
	checkModes(t, dir)
	acme := create(t, c)
	noError(t, acme.Admit(node(1), ""))
	cred := must(acme.Issue(node(1), nil, 0))(t)
	joined := must(Join(dir, acme.Log(), cred, node(1), c.options()))(t)
	if joined.SCID() != acme.SCID() || joined.Auto() || joined.IsIssuer() || joined.HasRoot() || joined.Credential() == nil {
		t.Errorf("joined %s", joined.DID())
	}
	checkModes(t, dir)

	dir = folder(t)
	o = must(Create(dir, "laptop.local", node(1), auto))(t)
	noError(t, o.Admit(node(2), ""))
	_, err := Create(dir, "acme.example", node(1), options(c, dir+".recovery"))
	wantError(t, err, ErrExists)

	dir = folder(t)
	o = must(Create(dir, "laptop.local", node(1), auto))(t)
	file := dir + ".recovery"
	noError(t, o.SaveRecovery(file))
	if o.Auto() || must(Open(dir, node(1), c.options()))(t).Auto() {
		t.Error("it is automatic after SaveRecovery")
	}
	if err := o.SaveRecovery(file + "2"); err == nil {
		t.Error("the key was saved twice")
	}
	noError(t, o.Recover(must(os.ReadFile(file))(t), file+"3"))
}

func TestJoinAndRenewLog(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	m := join(t, o, 2, c, "customer-service")
	if m.IsIssuer() || m.HasRoot() || m.Name() != "acme.example" || !m.Credential().HasRole("customer-service") || len(m.Members()) != 0 {
		t.Errorf("a joined node: %+v", m.Credential())
	}
	if _, _, err := m.Signer(); !errors.Is(err, ErrNotIssuer) {
		t.Errorf("signer: %v", err)
	}
	wantError(t, m.Admit(node(3), ""), ErrNotIssuer)
	_, err := m.Issue(node(3), nil, 0)
	wantError(t, err, ErrNotIssuer)
	_, err = m.Revoke(node(3))
	wantError(t, err, ErrNotIssuer)
	_, err = m.Restore(node(3), 0)
	wantError(t, err, ErrNotIssuer)
	_, err = m.List(true)
	wantError(t, err, ErrNotIssuer)
	_, err = m.Renew(o.Credential().Raw, 0)
	wantError(t, err, ErrNotIssuer)
	_, err = m.AddIssuer(node(3).Multibase())
	wantError(t, err, ErrNoRoot)
	wantError(t, m.RotateRoot(), ErrNoRoot)
	wantError(t, m.Deactivate(), ErrNoRoot)
	wantError(t, m.ExportRoot(&bytes.Buffer{}, nil), ErrNoRoot)

	// A node that joins again, with a newer log, keeps its folder.
	c.add(time.Hour)
	must(o.AddIssuer(node(7).Multibase()))(t)
	cred := must(o.Issue(node(2), nil, 0))(t)
	again := must(Join(m.dir, o.Log(), cred, node(2), c.options()))(t)
	if again.Log().Len() != 2 || again.Credential().ID != cred.ID {
		t.Errorf("joined again: version %d, %s", again.Log().Len(), again.Credential().ID)
	}
}

func TestSetCredential(t *testing.T) {
	t.Parallel()
	c := newClock()
	o, globex := create(t, c), create(t, c)
	m := join(t, o, 2, c)
	noError(t, globex.Admit(node(2), ""))
	noError(t, o.Admit(didtest.Key(9).DID(), node(2)))
	first := m.Credential()
	changed := *must(o.Issue(node(2), nil, 0))(t)
	changed.Raw = bytes.Replace(changed.Raw, []byte(`"node"`), []byte(`"boss"`), 1)
	for name, cred := range map[string]*vc.Credential{
		"of another node":       o.Credential(),
		"of an agent":           must(o.Issue(node(9), nil, 0))(t),
		"of another issuer":     must(globex.Issue(node(2), nil, 0))(t),
		"altered":               &changed,
		"without a signature":   {Raw: []byte(`{}`)},
		"something that is not": {Raw: []byte(`7`)},
	} {
		if err := m.SetCredential(cred); err == nil {
			t.Errorf("a credential %s was accepted", name)
		}
	}
	if m.Credential() != first {
		t.Error("the credential changed")
	}
	c.add(25 * time.Hour)
	wantError(t, m.SetCredential(first), vc.ErrExpired)
	c.add(-49 * time.Hour)
	wantError(t, m.SetCredential(first), vc.ErrTime)

	// An expired credential is still the newest one.
	c.at = noon.Add(100 * time.Hour)
	if got := must(Open(m.dir, node(2), c.options()))(t).Credential(); got == nil || got.ID != first.ID {
		t.Errorf("opened later: %v", got)
	}
	// A damaged or foreign one is not.
	noError(t, os.WriteFile(m.path(credentialFile), changed.Raw, 0o600))
	if got := must(Open(m.dir, node(2), c.options()))(t).Credential(); got != nil {
		t.Errorf("an altered file is the credential of %s", got.Subject)
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	dir := filepath.Join(t.TempDir(), "www", ".well-known")
	noError(t, o.Export(dir))
	l, err := webvh.Verify(must(os.ReadFile(filepath.Join(dir, "did.jsonl")))(t), webvh.Check{DID: o.DID(), Now: noon})
	if err != nil || l.Head() != o.Log().Head() {
		t.Errorf("did.jsonl: %v", err)
	}
	doc := must(os.ReadFile(filepath.Join(dir, "did.json")))(t)
	if web, err := did.ParseDocument(doc, "did:web:acme.example"); err != nil || !slices.Contains(web.AlsoKnownAs, string(o.DID())) {
		t.Errorf("did.json: %s, %v", doc, err)
	}
	if got := must(o.Document())(t); !bytes.Equal(got, doc) {
		t.Error("Document is not did.json")
	}
	list := must(os.ReadFile(filepath.Join(dir, "lmosd", "status", "i1.json")))(t)
	if l, err := vc.VerifyList(t.Context(), list, vc.Check{Resolver: o, Now: noon}); err != nil || l.ID != "https://acme.example"+o.ListPath() {
		t.Errorf("status list: %v, path %s", err, o.ListPath())
	}
	if o.ListPath() != "/.well-known/lmosd/status/i1.json" {
		t.Errorf("path %s", o.ListPath())
	}
	m := join(t, o, 2, c)
	noError(t, m.Export(filepath.Join(t.TempDir(), "m")))
	if m.ListPath() != "" {
		t.Errorf("path of a node that is not an issuer: %s", m.ListPath())
	}
	noError(t, o.Deactivate())
	if err := o.Export(dir); !errors.Is(err, webvh.ErrDeactivated) {
		t.Errorf("after the end: %v", err)
	}
}

func TestDamagedFolders(t *testing.T) {
	t.Parallel()
	c := newClock()
	for name, change := range map[string]struct {
		file string
		text []byte
		ok   bool
	}{
		"a log cut in the middle":       {logFile, []byte(`{"parameters":{"me`), false},
		"an empty log":                  {logFile, nil, false},
		"members cut in the middle":     {bookFile, []byte(`{"format":1,"members":[{"did":`), false},
		"members of a later program":    {bookFile, []byte(`{"format":2}`), false},
		"a status list cut":             {listFile, []byte(`{"credentialSubject":{"version":`), true},
		"a credential cut":              {credentialFile, []byte(`{"validFrom":"2026`), true},
		"a temporary file":              {".log.jsonl123", []byte(`{"par`), true},
		"an unused recovery key":        {recoveredFile, []byte("x"), true},
		"a damaged root key":            {rootFile, []byte("-----BEGIN PRIVATE KEY-----\n"), false},
		"a root key that is not in use": {rootFile, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := create(t, c)
			must(o.List(false))(t)
			text := change.text
			if name == "a root key that is not in use" {
				text = must(os.ReadFile(recovery(o)))(t)
			}
			noError(t, os.WriteFile(o.path(change.file), text, 0o600))
			again, err := Open(o.dir, node(1), c.options())
			if (err == nil) != change.ok {
				t.Fatalf("got %v", err)
			}
			if !change.ok && change.file != rootFile {
				wantCode(t, err, interact.StoreCorrupt, change.file)
			}
			if !change.ok {
				return
			}
			if _, err := again.List(true); err != nil {
				t.Error(err)
			}
			if again.HasRoot() != (change.file != rootFile) {
				t.Errorf("root %t", again.HasRoot())
			}
		})
	}
}

func TestOpenRejectsPermissions(t *testing.T) {
	t.Parallel()
	c := newClock()
	for _, name := range []string{rootFile, issuerFile} {
		o := create(t, c)
		noError(t, os.Chmod(o.path(name), 0o644))
		if _, err := Open(o.dir, node(1), c.options()); !errors.Is(err, keystore.ErrPermissions) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := create(t, c)
	noError(t, os.Chmod(o.dir, 0o777))
	if _, err := Open(o.dir, node(1), c.options()); !errors.Is(err, keystore.ErrPermissions) {
		t.Errorf("folder: %v", err)
	}
	noError(t, os.Chmod(o.dir, 0o700))
}

// A crash during the replacement of the folder leaves one complete organization or none.
func TestReplacementIsAtomic(t *testing.T) {
	t.Parallel()
	c := newClock()
	auto, acme := folder(t), create(t, c)
	must(Create(auto, "laptop.local", node(1), Options{Now: c.now, Auto: true}))(t)
	for name, step := range map[string]struct {
		folders []string // that exist at the crash: the one of "auto" is the old one
		want    string
	}{
		"before the old one is moved": {[]string{"auto", "fresh.new"}, "laptop.local"},
		"before the new one is moved": {[]string{"auto.old", "fresh.new"}, "acme.example"},
		"before the old one is gone":  {[]string{"auto.old", "fresh"}, "acme.example"},
		"in the first creation":       {[]string{"fresh.new"}, ""},
		"with the old one only":       {[]string{"auto.old"}, "laptop.local"},
		"when it is left":             {nil, ""},
	} {
		dir := folder(t)
		for _, f := range step.folders {
			kind, suffix, _ := strings.Cut(f, ".")
			if suffix != "" {
				suffix = "." + suffix
			}
			from := map[string]string{"auto": auto, "fresh": acme.dir}[kind]
			noError(t, os.CopyFS(dir+suffix, os.DirFS(from)))
			noError(t, os.Chmod(dir+suffix, 0o700))
			for _, e := range must(os.ReadDir(dir + suffix))(t) {
				noError(t, os.Chmod(filepath.Join(dir+suffix, e.Name()), 0o600))
			}
		}
		o, err := Open(dir, node(1), c.options())
		if step.want == "" {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || o.Name() != step.want {
			t.Errorf("%s: %v", name, err)
		}
		for _, suffix := range []string{freshSuffix, oldSuffix} {
			if _, err := os.Stat(dir + suffix); err == nil {
				t.Errorf("%s: %s is left", name, suffix)
			}
		}
	}
}

func TestAWrongClock(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	must(o.List(false))(t)
	c.add(-24 * time.Hour) // at the next start
	o = must(Open(o.dir, node(1), c.options()))(t)
	if o.Credential() == nil {
		t.Error("the credential is lost")
	}
	_, err := o.Issue(node(1), nil, 0)
	wantCode(t, err, interact.ClockSkew, "24h0m0s before")
	_, err = o.List(true)
	wantCode(t, err, interact.ClockSkew)
	_, err = o.AddIssuer(node(7).Multibase())
	wantCode(t, err, interact.ClockSkew)
	wantCode(t, o.RotateRoot(), interact.ClockSkew)
	err = o.Recover(must(os.ReadFile(recovery(o)))(t), recovery(o)+"2")
	wantCode(t, err, interact.ClockSkew)
	if _, err := os.Stat(recovery(o) + "2"); err == nil {
		t.Error("a recovery file was left")
	}
	c.at = noon
	if !must(Open(o.dir, node(1), c.options()))(t).HasRoot() {
		t.Error("the root key is lost")
	}

	// A list from a clock that was a day ahead is replaced, and its version is exceeded.
	c.add(24 * time.Hour)
	ahead := must(o.List(true))(t)
	c.at = noon.Add(time.Minute)
	now := must(o.List(false))(t)
	if now.From.After(c.at) || now.Version <= ahead.Version {
		t.Errorf("list from %s, version %d after %d", now.From, now.Version, ahead.Version)
	}
}

func FuzzParseBook(f *testing.F) {
	f.Add([]byte(`{"format":1,"version":7,"set":[1,5],"members":[{"did":"` + string(node(1)) + `","roles":["node"],"index":5,"admitted":"2026-11-20T12:00:00Z"}]}`))
	f.Add([]byte(`{"format":1,"set":[5,1]}`))
	f.Add([]byte(`{"format":1,"others":{"x":{"version":1,"revoked":{"did:key:z":"2026-11-20T12:00:00Z"},"set":[-1]}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := parseBook(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(b)
		if err != nil {
			t.Skip() // a time beyond the year 9999
		}
		if _, err := parseBook(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
		b.revoke(node(3), noon)
		if i, ok := b.find(node(3)); !ok || b.Members[i].Revoked.IsZero() {
			t.Error("not revoked")
		}
	})
}

var _ did.Resolver = (*Organization)(nil)
