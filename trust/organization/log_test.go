package organization

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
)

func TestIssuersComeAndGo(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	m := join(t, o, 2, c)
	key := must(m.NewIssuerKey())(t)
	if again := must(m.NewIssuerKey())(t); again != key || m.IsIssuer() {
		t.Errorf("keys %s and %s, issuer %t", key, again, m.IsIssuer())
	}
	c.add(time.Minute)
	method := must(o.AddIssuer(key))(t)
	if method != string(o.DID())+"#i2" || must(o.AddIssuer(key))(t) != method || o.Log().Len() != 2 {
		t.Errorf("method %s, version %d", method, o.Log().Len())
	}
	noError(t, m.SetLog(o.Log()))
	if !m.IsIssuer() || m.HasRoot() || !slices.Equal(m.Issuers(), []string{string(o.DID()) + "#i1", method}) {
		t.Fatalf("issuer %t, issuers %v", m.IsIssuer(), m.Issuers())
	}
	s, named := func() (did.Signer, string) { s, n, err := m.Signer(); noError(t, err); return s, n }()
	if s.DID().Multibase() != key || named != method {
		t.Errorf("signs with %s as %s", s.DID(), named)
	}
	if !must(Open(m.dir, node(2), c.options()))(t).IsIssuer() {
		t.Error("not an issuer after a start")
	}
	// Both issue; credentials and lists of both verify.
	noError(t, m.Admit(node(3), ""))
	cred := must(m.Issue(node(3), nil, 0))(t)
	if cred.Method != method || cred.Status.List != "https://acme.example/.well-known/lmosd/status/i2.json" {
		t.Errorf("issued by %s, list %s", cred.Method, cred.Status.List)
	}
	must(vc.Verify(t.Context(), cred.Raw, vc.Check{Resolver: o, Now: c.at}))(t)

	// The limit, and numbers that are not used again.
	must(o.AddIssuer(node(11).Multibase()))(t)
	must(o.AddIssuer(node(12).Multibase()))(t)
	_, err := o.AddIssuer(node(13).Multibase())
	wantCode(t, err, interact.Usage, "4 issuers")
	noError(t, o.RemoveIssuer("#i4"))
	if method := must(o.AddIssuer(node(13).Multibase()))(t); method != string(o.DID())+"#i5" {
		t.Errorf("method %s", method)
	}
	noError(t, m.SetLog(o.Log()))
	noError(t, o.RemoveIssuer(method))
	noError(t, m.SetLog(o.Log()))
	if m.IsIssuer() || slices.Contains(m.Issuers(), method) {
		t.Error("it is an issuer after its removal")
	}
	_, err = m.Issue(node(3), nil, 0)
	wantError(t, err, ErrNotIssuer)
	if _, err := vc.Verify(t.Context(), cred.Raw, vc.Check{Resolver: o, Now: c.at}); err == nil {
		t.Error("a credential of a removed issuer verifies")
	}
	noError(t, o.RemoveIssuer("#i3"))
	noError(t, o.RemoveIssuer("#i5"))
	wantCode(t, o.RemoveIssuer("#i1"), interact.Usage, "only this issuer")
	wantCode(t, o.RemoveIssuer("#i2"), interact.Usage, "not an issuer")
	for _, bad := range []string{"", "z6Mk", "did:key:" + node(3).Multibase(), "z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc"} {
		_, err := o.AddIssuer(bad)
		wantCode(t, err, interact.Usage, "issuing key")
	}
}

// A member whose credential is of a removed issuer has no valid credential.
func TestTheCredentialOfARemovedIssuerIsDropped(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	b := join(t, o, 2, c)
	must(o.AddIssuer(must(b.NewIssuerKey())(t)))(t)
	noError(t, b.SetLog(o.Log()))
	m := join(t, b, 3, c)
	noError(t, o.RemoveIssuer("#i2"))
	noError(t, m.SetLog(o.Log()))
	if m.Credential() != nil || must(Open(m.dir, node(3), c.options()))(t).Credential() != nil {
		t.Error("the credential is still there")
	}
}

// contradicting returns two extensions of the log of o that contradict each other; both are signed by the root.
func contradicting(t *testing.T, o *Organization, c *clock) (a, b *webvh.Log) {
	t.Helper()
	twin := must(Open(o.dir, node(1), c.options()))(t)
	base := must(os.ReadFile(o.path(logFile)))(t)
	must(o.AddIssuer(node(21).Multibase()))(t)
	must(o.AddIssuer(node(22).Multibase()))(t)
	a = o.Log()
	must(twin.AddIssuer(node(23).Multibase()))(t)
	b = twin.Log()
	noError(t, os.WriteFile(o.path(logFile), base, 0o600))
	return a, b
}

func TestSetLogRejects(t *testing.T) {
	t.Parallel()
	c := newClock()
	o, globex := create(t, c), create(t, c)
	m := join(t, o, 2, c)
	first := o.Log()
	a, b := contradicting(t, o, c)
	noError(t, m.SetLog(a))
	noError(t, m.SetLog(a))
	wantError(t, m.SetLog(first), ErrRollback)
	wantError(t, m.SetLog(globex.Log()), did.ErrInvalid)
	err := m.SetLog(b)
	wantError(t, err, ErrForked)
	if e, ok := errors.AsType[*ForkedError](err); !ok || e.Stored.Head() != a.Head() || e.Other.Head() != b.Head() {
		t.Errorf("evidence: %v", err)
	}
	if m.Log().Head() != a.Head() || must(Open(m.dir, node(2), c.options()))(t).Log().Head() != a.Head() {
		t.Error("the log changed")
	}
}

func TestSetEndpoints(t *testing.T) {
	t.Parallel()
	o := create(t, newClock())
	list := func() []string { return must(o.Resolve(t.Context(), o.DID()))(t).Endpoints(did.MeshService) }
	if got := o.Endpoints(); len(got) != 0 {
		t.Errorf("a new organization lists %v", got)
	}
	first, second := "/ip4/203.0.113.7/tcp/1/p2p/a", "/ip4/203.0.113.8/tcp/1/p2p/b"
	for _, want := range [][]string{{first, second}, {second}, {}, {first}} {
		noError(t, o.SetEndpoints(want))
		if !slices.Equal(o.Endpoints(), want) || !slices.Equal(list(), want) {
			t.Errorf("got %v and %v, want %v", o.Endpoints(), list(), want)
		}
	}
	if doc := must(o.Resolve(t.Context(), o.DID()))(t); len(doc.Service) != 1 || len(doc.AssertionMethod) != 1 {
		t.Errorf("the document is %s", doc.Raw)
	}
	wantCode(t, o.SetEndpoints(make([]string, MaxEndpoints+1)), interact.Usage)
	noError(t, o.RemoveRoot())
	wantError(t, o.SetEndpoints(nil), ErrNoRoot)
}

func TestRotateRoot(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	old := must(os.ReadFile(o.path(rootFile)))(t)
	noError(t, o.RotateRoot())
	noError(t, o.RotateRoot())
	if !o.HasRoot() || !must(Open(o.dir, node(1), c.options()))(t).HasRoot() {
		t.Fatal("the root key is lost")
	}
	must(o.AddIssuer(node(7).Multibase()))(t)
	wantCode(t, o.ImportRoot(old), interact.Usage, "not the root key")
	noError(t, CheckLog(nil, o.Log()))
	m := join(t, o, 2, c)
	noError(t, m.SetLog(o.Log()))
	noError(t, o.Recover(must(os.ReadFile(recovery(o)))(t), recovery(o)+"2")) // the first recovery file is still the newest
	noError(t, m.SetLog(o.Log()))
}

func TestExportedRoot(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	var plain, sealed bytes.Buffer
	noError(t, o.ExportRoot(&plain, nil))
	noError(t, o.ExportRoot(&sealed, func(b []byte) ([]byte, error) { return bytes.ToUpper(b), nil }))
	if !bytes.Equal(bytes.ToUpper(plain.Bytes()), sealed.Bytes()) {
		t.Error("the root key was not encrypted")
	}
	failed := errors.New("no passphrase")
	wantError(t, o.ExportRoot(io.Discard, func([]byte) ([]byte, error) { return nil, failed }), failed)
	noError(t, o.RemoveRoot())
	if o.HasRoot() || must(Open(o.dir, node(1), c.options()))(t).HasRoot() {
		t.Error("the root key is still there")
	}
	_, err := o.AddIssuer(node(7).Multibase())
	wantError(t, err, ErrNoRoot)
	if !o.IsIssuer() {
		t.Error("it is not an issuer without the root key")
	}
	wantCode(t, o.ImportRoot([]byte("x")), interact.Usage)
	wantCode(t, o.ImportRoot(must(os.ReadFile(recovery(o)))(t)), interact.Usage, "not the root key")
	noError(t, o.ImportRoot(plain.Bytes()))
	must(o.AddIssuer(node(7).Multibase()))(t)
	checkModes(t, o.dir)
}

// A thief of the root key cannot exclude the next root key, whatever it signs.
func TestRecoveryFromAThief(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	m, late, fooled := join(t, o, 2, c), join(t, o, 3, c), join(t, o, 4, c)
	thief := must(keystore.Open(o.path(rootFile)))(t)
	text := must(os.ReadFile(recovery(o)))(t)
	own := didtest.Key(66)
	stolen := must(o.Log().Append(thief, webvh.Update{Now: c.at, UpdateKeys: []string{thief.DID().Multibase()}, NextKeyHashes: []string{hashOf(own), hashOf(didtest.Key(67))}}))(t)
	wantError(t, m.SetLog(stolen), ErrSuccession)
	wantError(t, CheckLog(nil, stolen), ErrSuccession)
	if _, err := Join(folder(t), stolen, nil, node(2), c.options()); !errors.Is(err, ErrSuccession) {
		t.Errorf("joined: %v", err)
	}
	// It can add an issuer, and replace the root key by its own.
	_, next := o.Log().UpdateKeys()
	stolen = must(o.Log().Append(thief, webvh.Update{Now: c.at, UpdateKeys: []string{thief.DID().Multibase()}, NextKeyHashes: []string{hashOf(own), next[1]}}))(t)
	stolen = must(stolen.Append(own, webvh.Update{Now: c.at, UpdateKeys: []string{own.DID().Multibase()}, NextKeyHashes: []string{hashOf(own), next[1]}}))(t)
	noError(t, fooled.SetLog(stolen))

	wantCode(t, o.Recover([]byte("x"), recovery(o)+"2"), interact.Usage)
	var root bytes.Buffer
	noError(t, o.ExportRoot(&root, nil))
	wantCode(t, o.Recover(root.Bytes(), recovery(o)+"2"), interact.Usage, "not the next root key")
	wantCode(t, o.Recover(nil, recovery(o)+"2"), interact.Usage, "not the next root key")
	wantCode(t, o.Recover(text, recovery(o)), interact.Usage, "never overwritten")
	if _, err := os.Stat(recovery(o) + "2"); err == nil {
		t.Fatal("a recovery file was left")
	}
	// Any member can recover, here one without the root key.
	noError(t, m.Recover(text, recovery(o)+"2"))
	if !m.HasRoot() || !must(Open(m.dir, node(2), c.options()))(t).HasRoot() {
		t.Fatal("the new root key is not there")
	}
	wantCode(t, m.Recover(text, recovery(o)+"3"), interact.Usage, "not the next root key")
	noError(t, o.SetLog(m.Log()))
	if o.HasRoot() || must(Open(o.dir, node(1), c.options()))(t).HasRoot() {
		t.Error("the replaced root key counts")
	}
	noError(t, late.SetLog(m.Log()))
	// A node with the log of the thief takes the one of the owner, and not the other way.
	noError(t, fooled.SetLog(m.Log()))
	wantError(t, late.SetLog(stolen), ErrForked)
	wantError(t, CheckLog(m.Log(), stolen), ErrForked)
	// The new keys work, and the thief's do not.
	must(m.AddIssuer(must(m.NewIssuerKey())(t)))(t)
	noError(t, late.SetLog(m.Log()))
	if _, err := m.Log().Append(thief, webvh.Update{Now: c.at, UpdateKeys: []string{thief.DID().Multibase()}, NextKeyHashes: next}); err == nil {
		t.Error("the thief extended the log")
	}
	noError(t, m.Recover(must(os.ReadFile(recovery(o)+"2"))(t), recovery(o)+"3"))
	if !m.IsIssuer() || !o.IsIssuer() {
		t.Error("the issuers are lost")
	}
}

func TestRecoverAuto(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := must(Create(folder(t), "laptop.local", node(1), Options{Now: c.now, Auto: true}))(t)
	noError(t, o.Recover(nil, o.dir+".recovery"))
	if o.Auto() || must(Open(o.dir, node(1), c.options()))(t).Auto() || !o.HasRoot() {
		t.Error("the next root key is in a file, but it is automatic")
	}
	noError(t, o.Recover(must(os.ReadFile(o.dir+".recovery"))(t), o.dir+".recovery2"))
}

// A crash during a change of the root key leaves the key that the log names.
func TestRootChangeIsAtomic(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	before := must(os.ReadFile(o.path(logFile)))(t)
	old := must(os.ReadFile(o.path(rootFile)))(t)
	noError(t, o.RotateRoot())
	fresh := must(os.ReadFile(o.path(rootFile)))(t)
	after := must(os.ReadFile(o.path(logFile)))(t)
	for name, crash := range map[string]struct {
		log, root, newRoot []byte
	}{
		"before the log has it":          {before, old, fresh},
		"before the new key has a name":  {after, old, fresh},
		"with a new key of another time": {after, fresh, old},
	} {
		noError(t, os.WriteFile(o.path(logFile), crash.log, 0o600))
		noError(t, os.WriteFile(o.path(rootFile), crash.root, 0o600))
		noError(t, os.WriteFile(o.path(newRootFile), crash.newRoot, 0o600))
		again := must(Open(o.dir, node(1), c.options()))(t)
		if !again.HasRoot() {
			t.Errorf("%s: the root key is lost", name)
		}
		if _, err := os.Stat(o.path(newRootFile)); err == nil {
			t.Errorf("%s: the file of the new key is left", name)
		}
		if _, err := again.AddIssuer(node(7).Multibase()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeactivate(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	m := join(t, o, 2, c)
	noError(t, o.Deactivate())
	wantError(t, o.Deactivate(), webvh.ErrDeactivated)
	_, err := o.AddIssuer(node(7).Multibase())
	wantError(t, err, webvh.ErrDeactivated)
	_, err = o.Issue(node(1), nil, 0)
	wantError(t, err, ErrNotIssuer)
	noError(t, m.SetLog(o.Log()))
	if m.Credential() != nil || len(m.Issuers()) != 0 {
		t.Error("the credential of an ended organization counts")
	}
	again := must(Open(o.dir, node(1), c.options()))(t)
	if again.IsIssuer() || again.Credential() != nil {
		t.Error("it is an issuer after a start")
	}
	wantCode(t, again.RemoveIssuer("#i1"), interact.Usage)
}

// Logs of other programs that commit to fewer than two keys have no next root.
func TestForeignLogs(t *testing.T) {
	t.Parallel()
	k, k2 := didtest.Key(1), didtest.Key(2)
	doc := firstDocument("acme.example", didtest.Key(3), nil)
	l := must(webvh.Create("acme.example", k, webvh.Update{Document: doc, Now: noon}))(t)
	l = must(l.Append(k, webvh.Update{Now: noon, UpdateKeys: []string{k2.DID().Multibase()}, NextKeyHashes: []string{hashOf(k)}}))(t)
	l = must(l.Append(k, webvh.Update{Now: noon, UpdateKeys: []string{k.DID().Multibase()}, NextKeyHashes: []string{hashOf(k2)}}))(t)
	noError(t, CheckLog(nil, l))
	o := must(Join(folder(t), l, nil, node(5), newClock().options()))(t)
	wantCode(t, o.Recover(nil, o.dir+"x"), interact.Usage)
}

func FuzzCheckSuccession(f *testing.F) {
	c := newClock()
	o := create(f, c)
	root := must(keystore.Open(o.path(rootFile)))(f)
	next := must(keystore.Open(recovery(o)))(f)
	keys := []*keystore.Key{root, next, didtest.Key(5)}
	f.Add([]byte{0, 1, 0, 0})
	f.Add([]byte{1, 0, 2, 1})
	// Each pair of bytes is a version: its signer, and the keys that it commits to. No log without a signature of the next root that passes
	// the rule lacks it.
	f.Fuzz(func(t *testing.T, steps []byte) {
		l, recovered := o.Log(), false
		for ; len(steps) >= 3; steps = steps[3:] {
			s := keys[int(steps[0])%3]
			committed := []string{hashOf(keys[int(steps[1])%3]), hashOf(keys[int(steps[2])%3])}
			longer, err := l.Append(s, webvh.Update{Now: c.at, UpdateKeys: []string{s.DID().Multibase()}, NextKeyHashes: slices.Compact(committed)})
			if err != nil {
				continue
			}
			l, recovered = longer, recovered || s == next
			if l.Len() > 8 {
				break
			}
		}
		_, committed := l.UpdateKeys()
		if CheckLog(o.Log(), l) == nil && !recovered && at(committed, 1) != hashOf(next) {
			t.Errorf("version %d commits to %v", l.Len(), committed)
		}
	})
}

func ExampleListID() {
	fmt.Println(ListID("did:webvh:QmPEQVM1JPTyrvEgBcDXwjK4TeyLGSX1PxjgyeAisdWM1p:acme.example#i1"))
	// Output: https://acme.example/.well-known/lmosd/status/i1.json
}
