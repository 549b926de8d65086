package trust

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/trust/exchange"
)

// A notebook has the checkpoints of a node of a test. Their lines are texts.
type notebook struct {
	mu   sync.Mutex
	own  []string             // owned by mu
	kept map[did.DID][]string // owned by mu
}

// Checkpoint implements [Checkpoints].
func (b *notebook) Checkpoint() (n uint64, hash string, line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.own) == 0 {
		return 0, "", nil
	}
	text := b.own[len(b.own)-1]
	return uint64(len(b.own)), "hash of " + text, []byte(text)
}

// Lacks implements [Checkpoints].
func (b *notebook) Lacks(node did.DID, _ uint64, hash string) bool {
	return !slices.ContainsFunc(b.of(node), func(text string) bool { return "hash of "+text == hash })
}

// Take implements [Checkpoints].
func (b *notebook) Take(node did.DID, line []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept == nil {
		b.kept = map[did.DID][]string{}
	}
	b.kept[node] = append(b.kept[node], string(line))
	return nil
}

// Kept implements [Checkpoints].
func (b *notebook) Kept(node did.DID) (all [][]byte) {
	for _, text := range b.of(node) {
		all = append(all, []byte(text))
	}
	return all
}

func (b *notebook) of(node did.DID) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.kept[node])
}

func (b *notebook) sign(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own = append(b.own, text)
}

// keeps gives a node a notebook, before it meets others.
func (m *member) keeps(own ...string) *notebook {
	b := &notebook{own: own}
	m.o.Checkpoints = b
	return b
}

// Members have the newest checkpoint of each other, after they have met and after a change, at most one a minute. They return it to the node whose
// it is. Partners and untrusted nodes get none.
func TestCheckpointsOfMembers(t *testing.T) {
	t.Parallel()
	acme, colleague, partner, outsider := newMember(t), newMember(t), newMember(t), newMember(t)
	own := acme.keeps("first")
	others := map[*member]*notebook{colleague: colleague.keeps("of the colleague"), partner: partner.keeps("of the partner"), outsider: outsider.keeps()}
	acme.founds("acme.example")
	partner.founds("globex.example")
	acme.admits(colleague, false)
	acme.federates(partner)
	outsider.connect(acme)
	colleague.becomes(acme, did.Own, "")
	acme.becomes(colleague, did.Own, "")
	partner.becomes(acme, did.Partner, "")
	acme.becomes(partner, did.Partner, "")
	kept := func(want ...string) {
		t.Helper()
		colleague.waits(func() bool {
			acme.maintain()
			return slices.Equal(others[colleague].of(acme.did()), want)
		})
	}
	kept("first")
	acme.waits(func() bool { return slices.Equal(own.of(colleague.did()), []string{"of the colleague"}) })
	acme.waits(func() bool { acme.maintain(); return announcedOf(acme) == "hash of first" })

	own.sign("second")
	acme.maintain()
	if got := announcedOf(acme); got != "hash of first" {
		t.Errorf("announced %q less than a minute after the one before", got)
	}
	advances(announceEvery, acme)
	kept("first", "second")

	want := []api.KeptCheckpoints{{Node: colleague.did(), Lines: []string{"first", "second"}}}
	if got := acme.KeptCheckpoints(t.Context()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the members keep %v, want %v", got, want)
	}
	for _, m := range []*member{partner, outsider} {
		for _, q := range []*exchange.Request{{Op: exchange.OpKept}, {Op: exchange.OpGet, Known: []exchange.Known{{SCID: acme.org.SCID(), Kind: exchange.KindCheckpoint}}}} {
			if _, err := m.net.Ask(t.Context(), acme.did(), q); err == nil || err.Error() != refused.Error() {
				t.Errorf("%s asks for checkpoints: %v", m.did().Short(), err)
			}
		}
		if got := others[m].of(acme.did()); len(got) > 0 {
			t.Errorf("%s, which is no member, keeps %q", m.did().Short(), got)
		}
		if _, err := m.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpHave, Known: []exchange.Known{{SCID: acme.org.SCID(), Kind: exchange.KindCheckpoint, Version: 1, Head: "x"}}}); m == outsider && err == nil {
			t.Error("an untrusted node announces a checkpoint")
		}
		if got := own.of(m.did()); len(got) > 0 {
			t.Errorf("%q of a node that is no member is kept", got)
		}
	}
}

func announcedOf(m *member) string {
	m.Trust.mu.RLock()
	defer m.Trust.mu.RUnlock()
	return m.announced
}

// A member that does not answer is named.
func TestMemberWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	acme, colleague := newMember(t), newMember(t)
	acme.keeps("first")
	acme.founds("acme.example")
	acme.admits(colleague, false)
	acme.becomes(colleague, did.Own, "")
	got := acme.KeptCheckpoints(t.Context())
	if len(got) != 1 || got[0].Node != colleague.did() || got[0].Error == "" || len(got[0].Lines) > 0 {
		t.Errorf("got %+v", got)
	}
}
