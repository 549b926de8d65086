package pubsub

import (
	"bytes"
	"crypto/sha256"
	"testing"
	"time"

	gossip "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

// checker returns a PubSub that only validates.
func checker(t testing.TB, o Options) *PubSub {
	t.Helper()
	o.Network = "main"
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return &PubSub{opts: o, log: o.Log, limiter: o.limiter, replay: replay{max: 8}, queue: make(chan delivery, 8)}
}

func (p *PubSub) verdict(shard byte, data []byte, own bool) gossip.ValidationResult {
	r, err := p.verify(shard, data)
	if err != nil {
		return verdictOf(err)
	}
	return p.compare(shard, r, "", own)
}

const (
	accept = gossip.ValidationAccept
	ignore = gossip.ValidationIgnore
	reject = gossip.ValidationReject
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	a, now := weather(t, 1), time.Now()
	good := a.signed(t, 5).Record
	tamper := func(at int) []byte {
		b := bytes.Clone(good)
		b[(at+len(b))%len(b)] ^= 1
		return b
	}
	bareRecord := withoutTD(t, &td.Signed{Record: good}).Record
	tombstone, err := td.SignTombstone(a.key, a.id, td.Lease{Seq: 9, Now: now, Lifetime: time.Hour, Audience: td.Partners}, false)
	if err != nil {
		t.Fatal(err)
	}
	restricted := tombstone.Record
	elsewhere := byte(0)
	for elsewhere == a.shard(t) || elsewhere == td.Shard("weather") {
		elsewhere++
	}
	for _, c := range []struct {
		name  string
		data  []byte
		shard byte
		want  gossip.ValidationResult
	}{
		{"good", good, a.shard(t), accept},
		{"without its TD", bareRecord, a.shard(t), accept},
		{"on the shard of its other capability", good, td.Shard("weather"), accept},
		{"on a shard where it does not belong", good, elsewhere, reject},
		{"tombstone, anywhere", a.tombstone(t, 9).Record, elsewhere, accept},
		{"restricted", restricted, a.shard(t), reject},
		{"nothing", nil, 0, reject},
		{"not CBOR", []byte("hello"), 0, reject},
		{"too large", append(bytes.Clone(good), make([]byte, td.MaxRecord)...), a.shard(t), reject},
		{"trailing bytes", append(bytes.Clone(good), 0), a.shard(t), reject},
		{"signature broken", tamper(-1), a.shard(t), reject},
		{"a byte of the owner changed", tamper(30), a.shard(t), reject},
		{"expired", a.signedAt(t, 5, now.Add(-2*time.Hour)).Record, a.shard(t), ignore},
		{"from the future", a.signedAt(t, 5, now.Add(time.Hour)).Record, a.shard(t), ignore},
		{"of another version", append([]byte{0xa1, 0x00, 0x18, 0x63}, nil...), 0, ignore},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := checker(t, Options{})
			if got := p.verdict(c.shard, c.data, false); got != c.want {
				_, err := p.verify(c.shard, c.data)
				t.Errorf("got %v (%v), want %v", got, err, c.want)
			}
			if got, want := len(p.queue), map[bool]int{true: 1}[c.want == accept]; got != want {
				t.Errorf("queued %d, want %d", got, want)
			}
		})
	}
}

// TestSwappedTDIsRejected checks that a record with a replaced TD is rejected and does not suppress the valid one.
func TestSwappedTDIsRejected(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	good := a.signed(t, 5)
	p := checker(t, Options{})
	r, err := p.verify(a.shard(t), good.Record)
	if err != nil || len(r.Inline) == 0 {
		t.Fatalf("%v, inline TD of %d bytes", err, len(r.Inline))
	}
	at := bytes.Index(good.Record, r.Inline)
	swapped := bytes.Clone(good.Record)
	for i := range len(r.Inline) - 8 {
		swapped[at+8+i] ^= byte(i) | 1
	}
	if got := p.verdict(a.shard(t), swapped, false); got != reject {
		t.Errorf("swapped: got %v, want reject", got)
	}
	if got := p.verdict(a.shard(t), good.Record, false); got != accept {
		t.Errorf("good, after it: got %v, want accept", got)
	}
}

func TestSequences(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	one, two := a.shard(t), td.Shard("weather")
	r4, r5, r6 := a.signed(t, 4).Record, a.signed(t, 5), a.signed(t, 6).Record
	type step struct {
		data  []byte
		shard byte
		own   bool
		want  gossip.ValidationResult
	}
	for _, c := range []struct {
		name  string
		steps []step
		news  int
	}{
		{"the same again", []step{{r5.Record, one, false, accept}, {r5.Record, one, false, ignore}}, 1},
		{"without its TD, again", []step{{r5.Record, one, false, accept}, {withoutTD(t, r5).Record, one, false, ignore}}, 1},
		{"on the other shard", []step{
			{r5.Record, one, false, accept}, {r5.Record, two, false, accept}, {r5.Record, two, false, ignore},
		}, 1},
		{"newer", []step{{r5.Record, one, false, accept}, {r6, one, false, accept}}, 2},
		{"older", []step{{r5.Record, one, false, accept}, {r4, one, false, ignore}, {r4, two, false, ignore}}, 1},
		{"own, again", []step{
			{r5.Record, one, true, accept}, {r5.Record, one, true, accept}, {r5.Record, one, false, ignore},
		}, 0},
		{"own, older", []step{{r5.Record, one, false, accept}, {r4, one, true, ignore}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := checker(t, Options{})
			for i, s := range c.steps {
				if got := p.verdict(s.shard, s.data, s.own); got != s.want {
					t.Errorf("step %d: got %v, want %v", i, got, s.want)
				}
			}
			if len(p.queue) != c.news {
				t.Errorf("%d records queued, want %d", len(p.queue), c.news)
			}
		})
	}
}

// TestEquivocationIsResolved checks that all nodes select the same of two records with one sequence number, in any order.
func TestEquivocationIsResolved(t *testing.T) {
	t.Parallel()
	a, now := weather(t, 1), time.Now()
	first, second := a.signedAt(t, 5, now), a.signedAt(t, 5, now.Add(time.Second))
	for _, order := range [][]*td.Signed{{first, second}, {second, first}} {
		p := checker(t, Options{})
		for _, s := range order {
			p.verdict(a.shard(t), s.Record, false)
		}
		r, err := p.opts.Verifier.Record(second.Record, now)
		if err != nil {
			t.Fatal(err)
		}
		// The second expires later, so it wins.
		if how := p.replay.note(a.shard(t), r); how != repeated {
			t.Errorf("got %v, want repeated", how)
		}
	}
}

func TestReplayIsBounded(t *testing.T) {
	t.Parallel()
	p := replay{max: 4}
	record := func(i int) *td.Record { return &td.Record{Owner: "did:key:z6Mk", Thing: string(rune('a' + i)), Seq: 1} }
	for i := range 9 {
		if how := p.note(0, record(i)); how != newest {
			t.Errorf("%d: got %v", i, how)
		}
		p.note(0, record(0)) // refreshed each time
	}
	if n := len(p.recent) + len(p.old); n > 8 {
		t.Errorf("got %d Things", n)
	}
	if how := p.note(0, record(0)); how != repeated {
		t.Errorf("a refreshed Thing was dropped: %v", how)
	}
	if how := p.note(0, record(1)); how != newest {
		t.Errorf("an old Thing is still stored: %v", how)
	}
}

func TestQueueDrops(t *testing.T) {
	t.Parallel()
	p := checker(t, Options{})
	for range cap(p.queue) + 3 {
		p.enqueue(delivery{})
	}
	if n := p.counts.dropped.Load(); n != 3 {
		t.Errorf("got %d dropped, want 3", n)
	}
}

func TestValidatorSurvivesAPanic(t *testing.T) {
	t.Parallel()
	p := checker(t, Options{})
	p.opts.Verifier = nil // a bug
	p.host = fakeHost{}
	a := weather(t, 1)
	m := &gossip.Message{Message: &pb.Message{Data: a.signed(t, 1).Record}}
	if got := p.validator(a.shard(t))(t.Context(), "peer", m); got != ignore {
		t.Errorf("got %v, want ignore", got)
	}
}

func TestMeshPeers(t *testing.T) {
	t.Parallel()
	var n meshPeers
	n.graft("a", 3)
	n.graft("b", 3)
	n.graft("a", 4)
	for _, c := range []struct {
		name      string
		shard     byte
		listeners []peer.ID
		from      peer.ID
		want      bool
	}{
		{"all in the mesh", 3, []peer.ID{"a", "b"}, "a", false},
		{"one is not", 3, []peer.ID{"a", "b", "c"}, "a", true},
		{"only the sender is not", 3, []peer.ID{"a", "c"}, "c", false},
		{"other shard", 4, []peer.ID{"a", "b"}, "a", true},
		{"no listeners", 5, nil, "a", false},
	} {
		if got := n.misses(c.shard, c.listeners, c.from); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if n.thin(3, 2) || !n.thin(3, 3) {
		t.Error("a mesh of two is not counted as two")
	}
	n.prune("b", 3)
	n.leave("a")
	if !n.thin(3, 1) || !n.thin(4, 1) {
		t.Error("a disconnected peer is still counted")
	}
}

func TestPendingIsBounded(t *testing.T) {
	t.Parallel()
	w := pending{max: 2}
	var dropped uint64
	for i := range 4 {
		dropped += w.keep(3, [32]byte{byte(i)}, []byte{byte(i)})
	}
	dropped += w.keep(3, [32]byte{1}, []byte{9}) // a newer one of the same thing
	if dropped != 2 {
		t.Errorf("dropped %d, want 2", dropped)
	}
	w.drop(3, [32]byte{0})
	if got := w.take(3); len(got) != 1 || got[[32]byte{1}][0] != 9 {
		t.Errorf("got %v", got)
	}
	if !w.empty(3) {
		t.Error("a record is still pending")
	}
}

// TestMessageID checks that the id depends on the topic, and on the boundary between topic and data.
func TestMessageID(t *testing.T) {
	t.Parallel()
	id := func(topic, data string) string { return messageID(&pb.Message{Topic: &topic, Data: []byte(data)}) }
	if len(id("a", "b")) != 20 {
		t.Errorf("got %d bytes, want 20", len(id("a", "b")))
	}
	sum := sha256.Sum256([]byte("a\x00b"))
	if got := id("a", "b"); got != string(sum[:20]) {
		t.Errorf("got %x, want the first 20 bytes of %x", got, sum)
	}
	if id("a", "b") == id("c", "b") || id("a", "b") == id("ab", "") {
		t.Error("the boundary between topic and data is lost")
	}
}

// FuzzValidator checks that the validator returns a verdict and accepts only records that belong on the shard.
func FuzzValidator(f *testing.F) {
	a := agent{key: didtest.Key(1), id: "urn:example:weather", cap: "urn:example:weather"}
	s := a.signed(f, 1)
	for _, seed := range [][]byte{s.Record, withoutTD(f, s).Record, a.tombstone(f, 2).Record, nil, []byte("x")} {
		f.Add(seed, a.shard(f))
	}
	p := checker(f, Options{})
	f.Fuzz(func(t *testing.T, data []byte, shard byte) {
		shard %= Shards
		r, err := p.verify(shard, data)
		if err != nil {
			if v := verdictOf(err); v != reject && v != ignore {
				t.Errorf("%v gives %v", err, v)
			}
			return
		}
		if !shardsOf(r).has(shard) || r.Owner != a.key.DID() {
			t.Errorf("accepted %+v on shard %d", r, shard)
		}
	})
}
