package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node/datadir"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

func TestZeroOptions(t *testing.T) {
	t.Parallel()
	n := start(t, Options{})
	s, err := n.Client().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.State != "ready" || s.Network != "lmos" || s.Profile != "default" || s.Name == "" || s.API != "" || len(s.Addrs) != 0 ||
		s.DataDir != "" {
		t.Errorf("got %+v", s)
	}
	p, err := n.Client().Publish(t.Context(), tool("Echo", ""))
	if err != nil || !p.Pending || !p.Created || p.Name != "echo" || p.Action != "echo" || p.Capability != "urn:example:tool:echo" {
		t.Errorf("got %+v, %v; want it published here and nowhere else", p, err)
	}
	if p.APIVersion != "lmosd/v1" || p.Kind != "Publication" || p.Owner != n.DID() || p.TDSize == 0 || p.RecordSize == 0 || p.Took <= 0 {
		t.Errorf("got %+v", p)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir, o.HTTP = t.TempDir(), &HTTP{Listen: "127.0.0.1:0"}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A flaw makes options that cannot work out of good ones, which have a data directory, a port and HTTP.
type flaw struct {
	apply func(t *testing.T, o *Options)
	want  interact.Code
	says  string
}

var flaws = map[string]flaw{
	"a network name with a slash": {func(t *testing.T, o *Options) { o.Network = "a/b" }, interact.ConfigInvalid, "mesh.network"},
	"a long network name":         {func(t *testing.T, o *Options) { o.Network = strings.Repeat("a", 33) }, interact.ConfigInvalid, "mesh.network"},
	"an unknown DHT mode":         {func(t *testing.T, o *Options) { o.DHTMode = "maybe" }, interact.ConfigInvalid, "mesh.dht.mode"},
	"invalid access rules":        {func(t *testing.T, o *Options) { o.Policy.File = rulesFile(t, "rules: []") }, interact.PolicyInvalid, "policy.yaml:1"},
	"an unknown engine":           {func(t *testing.T, o *Options) { o.Engine = "sqlite" }, interact.ConfigInvalid, "storage.engine"},
	"a life of a week":            {func(t *testing.T, o *Options) { o.Lifetime = 168 * time.Hour }, interact.ConfigInvalid, "mesh.dht.ttl"},
	"a life of a moment":          {func(t *testing.T, o *Options) { o.Lifetime = time.Millisecond }, interact.ConfigInvalid, "mesh.dht.ttl"},
	"no multiaddr to listen on":   {func(t *testing.T, o *Options) { o.Listen = []string{"127.0.0.1:1"} }, interact.ConfigInvalid, "listen.p2p"},
	"no multiaddr to announce":    {func(t *testing.T, o *Options) { o.Announce = []string{"example.org"} }, interact.ConfigInvalid, "listen.announce"},
	"no multiaddr to join":        {func(t *testing.T, o *Options) { o.Bootstrap = []string{"example.org"} }, interact.ConfigInvalid, "mesh.bootstrap"},
	"an address without a peer id": {func(t *testing.T, o *Options) { o.Bootstrap = []string{"/ip4/192.0.2.1/tcp/1"} }, interact.ConfigInvalid,
		"mesh.bootstrap"},
	"a TCP port that is busy": {func(t *testing.T, o *Options) { o.Listen = append(o.Listen, "/ip4/127.0.0.1/tcp/"+busyTCP(t)) },
		interact.PortBusy, "cannot listen on /ip4/127.0.0.1/tcp/"},
	"an HTTP port that is busy": {func(t *testing.T, o *Options) { o.HTTP = &HTTP{Listen: "127.0.0.1:" + busyTCP(t), Explicit: true} },
		interact.PortBusy, "in use"},
	"HTTP on all addresses without a token": {func(t *testing.T, o *Options) { o.HTTP = &HTTP{Listen: "0.0.0.0:0", NoAuth: true} },
		interact.WildcardBind, "authenticates"},
	"a socket whose path is too long": {func(t *testing.T, o *Options) { o.HTTP = &HTTP{Socket: "/tmp/" + strings.Repeat("a", 100)} },
		interact.ConfigInvalid, "socket"},
	"a data directory of another process": {func(t *testing.T, o *Options) {
		release, err := datadir.Lock(o.Dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = release() })
	}, interact.DataDirLocked, fmt.Sprintf("process %d", os.Getpid())},
	"a data directory below a file": {func(t *testing.T, o *Options) {
		writeFile(t, filepath.Join(o.Dir, "file"), "", 0o600)
		o.Dir = filepath.Join(o.Dir, "file", "data")
	}, interact.ConfigInvalid, "cannot be the data directory"},
	"a key that others can read": {func(t *testing.T, o *Options) {
		if err := didtest.NewKey().Save(o.Dir + "/identity.pem"); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(o.Dir+"/identity.pem", 0o644); err != nil {
			t.Fatal(err)
		}
	}, interact.KeyPermissions, "0644"},
	"a key that others can replace": {func(t *testing.T, o *Options) {
		if err := os.Chmod(o.Dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}, interact.KeyPermissions, "0777"},
	"a key that is none": {func(t *testing.T, o *Options) { writeFile(t, o.Dir+"/identity.pem", "garbage", 0o600) },
		interact.KeyPermissions, "cannot be used"},
	"a key of another kind": {func(t *testing.T, o *Options) { writeFile(t, o.Dir+"/identity.pem", ecKey(t), 0o600) },
		interact.KeyPermissions, "cannot be used"},
	"an offer that is damaged": {func(t *testing.T, o *Options) {
		s := openStores(t, "", o.Dir)
		if err := errors.Join(s.Own.Put(t.Context(), ds.NewKey("/x"), []byte("garbage")), s.Close()); err != nil {
			t.Fatal(err)
		}
	}, interact.StoreCorrupt, "read the publication /x"},
	"secrets that others can read": {func(t *testing.T, o *Options) { writeFile(t, o.Dir+"/credentials.json", "{}", 0o644) },
		interact.KeyPermissions, "credentials.json"},
	"a token that is a directory": {func(t *testing.T, o *Options) {
		if err := os.Mkdir(tokens.OperatorPath(o.Dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}, interact.ConfigInvalid, "api.token"},
}

// TestNewFailsCleanly: each flaw is an error with a code and a hint, and nothing stays open: no directory, port or goroutine (TestMain
// checks).
func TestNewFailsCleanly(t *testing.T) {
	t.Parallel()
	for name, f := range flaws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quiet()
			o.Dir, o.HTTP, o.Listen = t.TempDir(), &HTTP{Listen: "127.0.0.1:0", Explicit: true}, []string{"/ip4/127.0.0.1/udp/0/quic-v1"}
			f.apply(t, &o)
			n, err := New(o)
			if err == nil {
				t.Fatal(errors.Join(errors.New("the node started"), n.Close()))
			}
			if e := wantCode(t, err, f.want); !strings.Contains(e.Error(), f.says) {
				t.Errorf("%q does not say %q", e, f.says)
			}
			if f.want == interact.DataDirLocked || strings.Contains(o.Dir, "file") {
				return
			}
			release, err := datadir.Lock(o.Dir)
			if err != nil {
				t.Fatalf("the data directory stays locked: %v", err)
			}
			if err := release(); err != nil {
				t.Error(err)
			}
		})
	}
}

func writeFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// ecKey is a private key that is no Ed25519 one.
func ecKey(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(newECDH(t))
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// busyTCP returns a port of 127.0.0.1 that is in use until the test ends.
func busyTCP(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestBusyDefaultPortIsReplaced(t *testing.T) {
	t.Parallel()
	var j journal
	tcp, api := busyTCP(t), busyTCP(t)
	o := quiet()
	o.Listen = []string{"/ip4/127.0.0.1/tcp/" + tcp}
	o.ListenExplicit, o.HTTP, o.Log = false, &HTTP{Listen: "127.0.0.1:" + api}, j.logger()
	n := opened(t, o)
	if len(n.Addrs()) != 1 || n.API() == "" {
		t.Fatalf("the node listens on %v and %s, want an address and an API", n.Addrs(), n.API())
	}
	for _, addr := range append(n.Addrs(), n.API()) {
		for _, busy := range []string{"/" + tcp + "/", ":" + api} {
			if strings.Contains(addr+"/", busy) {
				t.Errorf("%s has the busy port %s", addr, busy)
			}
		}
	}
	if !j.has("busy=/ip4/127.0.0.1/tcp/" + tcp) {
		t.Errorf("the log does not say so: %s", j.text.String())
	}
}

func TestDirectoryKeepsTheNode(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir, o.Engine = filepath.Join(t.TempDir(), "data"), EnginePebble
	n := start(t, o)
	p, err := n.Client().Publish(t.Context(), tool("Echo", "urn:x:echo"))
	if err != nil {
		t.Fatal(err)
	}
	publish(t, n, tool("Gone", "urn:x:gone"))
	if _, err := n.Client().Unpublish(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, o)
	if again.DID() != n.DID() {
		t.Errorf("the node came back as %s, was %s", again.DID(), n.DID())
	}
	d, err := again.Client().Agent(t.Context(), "echo")
	if err != nil || !d.Agent.Local || d.Signature.Seq <= p.Seq {
		t.Errorf("got %+v, %v; want its thing with a newer record", d, err)
	}
	if _, err := again.Client().Agent(t.Context(), "urn:x:gone"); codeOf(err) != interact.Withdrawn {
		t.Errorf("what was withdrawn gives %v, want %v", err, interact.Withdrawn)
	}
	for _, file := range []string{"identity.pem", "lock"} {
		if info, err := os.Stat(filepath.Join(o.Dir, file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v; want 0600", file, info.Mode(), err)
		}
	}
}

// TestWithdrawalSurvivesACrash: the directory's own store is not synced, and may have lost that a thing was withdrawn.
func TestWithdrawalSurvivesACrash(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir = t.TempDir()
	n := start(t, o)
	publish(t, n, tool("Echo", "urn:x:echo"))
	// The tombstone is stored as always; the directory does not hear of it.
	storeTombstone(t, n.stores.Own, n.key, "urn:x:echo", time.Now(), false)
	if !has(n, "urn:x:echo") {
		t.Fatal("the directory knows already")
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if again := opened(t, o); has(&running{Node: again}, "urn:x:echo") {
		t.Error("a withdrawn thing is back after a crash")
	}
}

// TestSeqExceedsThatOfTheMesh: after the loss of its store, a node learns its last seq from others, because lower ones are rejected.
func TestSeqExceedsThatOfTheMesh(t *testing.T) {
	t.Parallel()
	key := didtest.NewKey()
	ahead := uint64(time.Now().Add(time.Hour).UnixMilli()) // its clock was wrong
	old := signed(t, key, tool("Echo", "urn:x:echo"), td.Lease{Seq: ahead})
	o := quiet()
	o.Key = key
	n := opened(t, o)
	d, err := old.Verify(t.Context(), n.mesh.verifier, time.Now())
	if err == nil {
		_, err = n.mesh.directory.Add(d)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Client().Publish(t.Context(), tool("Echo", "urn:x:echo"))
	if err != nil || p.Seq <= ahead {
		t.Errorf("got %+v, %v; want a seq after %d", p, err, ahead)
	}
}

func TestHostWithAnotherKeyIsRefusedAndClosed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"another key": func(o *Options) { o.Key = didtest.NewKey() },
		"bad options": func(o *Options) { o.Network = "a/b" },
	} {
		key := didtest.NewKey()
		h, err := p2p.New(p2p.Options{Key: key, Network: "test"})
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Key: key, Host: h}
		change(&o)
		if n, err := New(o); err == nil {
			t.Errorf("%s: the node started (%v)", name, n.Close())
		}
		if err := h.Network().Listen(addrs(t, "/ip4/127.0.0.1/tcp/0")...); err == nil {
			t.Errorf("%s: the host is still open (%v)", name, h.Close())
		}
	}
}

// TestEveryTransport opens what profiles turn on, but for mDNS and the port mapping, which would ask the local network.
func TestEveryTransport(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.NAT = p2p.NAT{Relay: true, AutoNAT: true}
	o.Diversity, o.PublicOnly, o.DHTMode = true, true, "auto"
	o.Listen = []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}
	n := start(t, o)
	if len(n.Addrs()) != 0 {
		t.Errorf("peers learn %v, want no address that only this machine has", n.Addrs())
	}
	lean := quiet()
	lean.NoNoise, lean.GossipDegree, lean.DHTMode = true, 4, "client"
	lean.Policy = policy.Rules{Options: rules.Options{Untrusted: access.UntrustedFind}}
	l := start(t, lean)
	connect(t, start(t, quiet()), l)
}

func TestRunReportsTheFailureOfAPart(t *testing.T) {
	t.Parallel()
	if err := ignoreEnd(fmt.Errorf("work: %w", context.Canceled)); err != nil {
		t.Errorf("to be stopped is an error: %v", err)
	}
	if err := ignoreEnd(context.DeadlineExceeded); err == nil {
		t.Error("a deadline was taken for a stop")
	}
}

func newECDH(t testing.TB) any {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestWithdrawalThatCannotBeRepeated: a wrong clock is no reason not to start, a damaged entry is one.
func TestWithdrawalThatCannotBeRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ahead  time.Duration
		damage bool
		want   interact.Code
	}{
		"now":                     {},
		"of a clock that is slow": {ahead: 48 * time.Hour},
		"damaged":                 {damage: true, want: interact.StoreCorrupt},
	} {
		o := quiet()
		o.Dir, o.Key = t.TempDir(), didtest.NewKey()
		s := openStores(t, "", o.Dir)
		storeTombstone(t, s.Own, o.Key, "urn:x:gone", time.Now().Add(c.ahead), c.damage)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		n, err := New(o)
		if codeOf(err) != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if err == nil {
			err = n.Close()
		}
		if c.want == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
