package trust

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A member is a node of a test with its trust.
type member struct {
	*Trust
	t    *testing.T
	key  *keystore.Key
	host host.Host
	dir  string
	skew atomic.Int64 // of its clock, in nanoseconds

	addrsOfIssuers []string // while it does not dial them

	mu      sync.Mutex
	changes map[did.DID]int               // calls of OnChange; owned by mu
	last    map[did.DID][2]*did.Principal // the principals of the last call; owned by mu
}

// newMember starts a node that listens on loopback.
func newMember(t *testing.T) *member {
	t.Helper()
	return start(t, didtest.NewKey(), t.TempDir())
}

func start(t *testing.T, key *keystore.Key, dir string) *member {
	t.Helper()
	m := &member{t: t, key: key, dir: dir, host: testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0"), changes: map[did.DID]int{},
		last: map[did.DID][2]*did.Principal{}}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", key.DID().Short())
	}
	pending, err := rotation.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	m.Trust, err = New(Options{Dir: dir, Self: key.DID(), Network: "test", Log: log, confirmPause: 50 * time.Millisecond, Rotation: pending,
		OnChange: func(id did.DID, before, after *did.Principal) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.changes[id]++
			m.last[id] = [2]*did.Principal{before, after}
		},
		Now: func() time.Time { return time.Now().Round(0).Add(time.Duration(m.skew.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	m.Trust.Start(m.host, m.addrs)
	t.Cleanup(m.stop)
	return m
}

func (m *member) stop() { _ = m.Trust.Close() }

// halt ends the node.
func (m *member) halt() {
	m.stop()
	_ = m.host.Close()
}

// restart starts the node again after its end.
func (m *member) restart() *member {
	m.t.Helper()
	return start(m.t, m.key, m.dir)
}

func (m *member) addrs() (all []string) {
	for _, a := range m.host.Addrs() {
		all = append(all, fmt.Sprintf("%s/p2p/%s", a, m.host.ID()))
	}
	return all
}

func (m *member) did() did.DID { return m.key.DID() }

// must fails the test if err is not nil.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// founds makes an organization.
func (m *member) founds(domain string) *api.Organization {
	m.t.Helper()
	return must(m.Init(m.t.Context(), api.OrganizationInit{Domain: domain, RecoveryFile: filepath.Join(m.t.TempDir(), "recovery.pem")}))(m.t)
}

// admits makes another node a member.
func (m *member) admits(other *member, issuer bool, roles ...string) {
	m.t.Helper()
	i := must(m.Invite(m.t.Context(), api.InvitationRequest{Kind: api.InviteNode, Roles: roles, Issuer: issuer}))(m.t)
	must(other.Join(m.t.Context(), api.Acceptance{Invitation: i.Text}))(m.t)
}

// federates makes the organizations of two nodes partners.
func (m *member) federates(other *member) {
	m.t.Helper()
	i := must(m.Invite(m.t.Context(), api.InvitationRequest{Kind: api.InvitePartner}))(m.t)
	must(other.Accept(m.t.Context(), api.Acceptance{Invitation: i.Text}))(m.t)
}

// connect connects two nodes and waits until both have said hello. It dials again: a connection to a node that has restarted may be the one to
// the ended node, which closes a moment later.
func (m *member) connect(other *member) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	var err error
	poll.Until(m.t, "the hello", func() bool {
		err = m.host.Connect(ctx, peer.AddrInfo{ID: other.host.ID(), Addrs: other.host.Addrs()})
		return err != nil || other.helloDone(m.did()) && m.helloDone(other.did())
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) helloDone(id did.DID) bool {
	m.Trust.mu.RLock()
	defer m.Trust.mu.RUnlock()
	n := m.nodes[id]
	return n != nil && n.done
}

// becomes waits until m knows a node with a relation and a role; an empty role is any.
func (m *member) becomes(other *member, want did.Relation, role string) {
	m.t.Helper()
	poll.Until(m.t, fmt.Sprintf("%s is %s at %s with %q", other.did().Short(), want, m.did().Short(), role), func() bool {
		m.maintain()
		p := m.Principal(other.did())
		has := role == ""
		for _, r := range p.Roles {
			has = has || r == role
		}
		return p.Relation == want && has && p.Barred == "" && p.Pending == ""
	})
}

// bars waits until m refuses a node.
func (m *member) bars(other *member) {
	m.t.Helper()
	poll.Until(m.t, other.did().Short()+" is barred at "+m.did().Short(), func() bool { return m.Principal(other.did()).Barred != "" })
}

// advances sets the clocks of nodes forward.
func advances(by time.Duration, all ...*member) {
	for _, m := range all {
		m.skew.Add(int64(by))
	}
}

func untilTrue(t *testing.T, cond func() bool) {
	t.Helper()
	poll.Until(t, "the condition", cond)
}
