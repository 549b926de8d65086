package reconcile

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// memory counts the memory of a session.
type memory struct{ held, peak int }

func (a *memory) ReserveMemory(n int, _ uint8) error {
	a.held += n
	a.peak = max(a.peak, a.held)
	return nil
}

func (a *memory) ReleaseMemory(n int) { a.held -= n }

// session returns an end of a session.
func (n *node) session() *session { return newSession(n.Reconciler, &memory{}, nil, func() {}) }

// connect sets the stream of an end.
func (s *session) connect(rw io.ReadWriter) {
	s.in.Reset(rw)
	s.out.Reset(rw)
}

// runBoth runs both ends of a session, and returns them, the responder first.
func runBoth(t testing.TB, initiator, responder *session) []*session {
	t.Helper()
	x, y := net.Pipe()
	initiator.connect(x)
	responder.connect(y)
	done := make(chan error, 1)
	go func() { done <- initiator.initiate() }()
	if err := responder.respond(); err != nil {
		t.Error("responder:", err)
	}
	if err := <-done; err != nil {
		t.Error("initiator:", err)
	}
	_, _ = x.Close(), y.Close()
	return []*session{responder, initiator}
}

// large returns the record of a Thing whose TD does not fit into it.
func large(t testing.TB, n int) *td.Signed {
	t.Helper()
	noise := make([]byte, 8<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(noise)
	thing, err := td.Complete([]byte(fmt.Sprintf(`{"@context":"https://www.w3.org/2022/wot/td/v1.1","title":"Big","id":"urn:big:%d",
		"description":%q,"securityDefinitions":{"none":{"scheme":"nosec"}},"security":"none"}`, n, hex.EncodeToString(noise))), first.DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := td.Sign(thing, first, td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// frames returns the encoded messages of a misbehaving peer.
func frames(t testing.TB, all ...any) []byte {
	t.Helper()
	var b []byte
	for _, v := range all {
		frame, err := encodeFrame(v)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, frame...)
	}
	return b
}

func pack(items ...item) (b []byte) {
	for _, it := range items {
		b = it.append(b)
	}
	return b
}

func keysOf(items ...item) (b []byte) {
	for _, it := range items {
		b = append(b, it.key[:]...)
	}
	return b
}

// fingerprints returns the fingerprints of a node for the parts of a range.
func (n *node) fingerprints(at ...byte) (b []byte) {
	for i := range byte(parts) {
		b = n.set.view().fingerprint(append(bytes.Clone(at), i)).append(b)
	}
	return b
}

func itemOf(t testing.TB, s *td.Signed) item {
	t.Helper()
	r, err := verifier.Record(s.Record, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return item{r.Key(), r.Seq}
}

// A session with a peer that answers the first round with contradictions fails, and the peer is avoided.
func TestViolatingPeer(t *testing.T) {
	t.Parallel()
	same, few := newNode(), newNode() // the sets of the victims
	same.fill(0, 100)
	few.fill(0, 5)
	var announced []item
	var none []any
	for i := range 40 {
		announced = append(announced, filler(1000+i))
		none = append(none, &recordMessage{})
	}
	many := append([]any{&round{Announced: pack(announced...)}, &round{Records: 40}}, none...)
	// sends returns the frames that announce a Thing and then send the result of make.
	sends := func(make func(t *testing.T, good *td.Signed) *recordMessage) func(t *testing.T) []byte {
		return func(t *testing.T) []byte {
			good := signed(t, 1, 5)
			return frames(t, &round{Announced: pack(itemOf(t, good))}, &round{Records: 1}, make(t, good))
		}
	}
	all := func(vs ...any) func(t *testing.T) []byte {
		return func(t *testing.T) []byte { return frames(t, vs...) }
	}
	raw := func(b ...byte) func(t *testing.T) []byte { return func(*testing.T) []byte { return b } }
	differs := same.fingerprints()
	differs[5]++
	emptied := bytes.Clone(differs)
	copy(emptied, make([]byte, 4))
	for _, c := range []struct {
		name string
		few  bool // the victim has so few items that it lists them at once
		sent func(t *testing.T) []byte
		want error
	}{
		{"garbage", false, raw([]byte("\x07garbage")...), errWire},
		{"an endless length", false, raw(bytes.Repeat([]byte{0x80}, 100)...), streamserver.ErrFrame},
		{"a frame over the limit", false, raw(0xff, 0xff, 0x7f), streamserver.ErrFrame},
		{"a non-minimal length", false, raw(0x81, 0x80, 0x00), streamserver.ErrFrame},
		{"a second first round", false, all(&round{Root: make([]byte, fingerprintSize)}), errWire},
		{"equal parts", false, all(&round{Split: []part{{Of: same.fingerprints()}}}), errViolation},
		{"parts that were not requested", false, all(&round{Split: []part{{At: []byte{3}, Of: same.fingerprints(3)}}}), errViolation},
		{"the same parts twice", false, all(&round{Split: []part{{Of: differs}, {Of: differs}}}), errViolation},
		{"a false count", false, all(&round{Split: []part{{Of: emptied}}}), errViolation},
		{"equal items", true, all(&round{List: []part{{Of: pack(sortedItems(few)...)}}}), errViolation},
		{"a known item is announced", true, all(&round{Announced: pack(filler(3))}), errViolation},
		{"an item announced twice", true, all(&round{Announced: pack(filler(9), filler(9))}), errViolation},
		{"a request for an unannounced item", false, all(&round{Requested: keysOf(filler(3))}), errViolation},
		{"an item requested twice", true, all(&round{Requested: keysOf(filler(3), filler(3))}), errViolation},
		{"all announced records are missing", true, all(many...), errViolation},
		{"fewer records without more", true, all(&round{Announced: pack(filler(9))}, &round{}), errViolation},
		{"a record that was not requested", false, all(&round{Records: 1}, &recordMessage{}), errViolation},
		{"garbage as a record", true, all(&round{Announced: pack(filler(9))}, &round{Records: 1},
			&recordMessage{Record: []byte("garbage")}), errViolation},
		{"a record of another Thing", true, sends(func(t *testing.T, _ *td.Signed) *recordMessage {
			return &recordMessage{Record: signed(t, 2, 5).Record}
		}), errViolation},
		{"an older record", true, sends(func(t *testing.T, _ *td.Signed) *recordMessage {
			return &recordMessage{Record: signed(t, 1, 4).Record}
		}), errViolation},
		{"another TD", true, sends(func(_ *testing.T, good *td.Signed) *recordMessage {
			return &recordMessage{Record: good.Record, TD: []byte("{}")}
		}), errViolation},
		{"a forged record", true, sends(func(_ *testing.T, good *td.Signed) *recordMessage {
			return &recordMessage{Record: bytes.Replace(good.Record, []byte("Thing 1"), []byte("Think 1"), 1)}
		}), errViolation},
		{"half a frame", true, raw(50, 1, 2, 3), io.ErrUnexpectedEOF},
		{"no frame", true, raw(), io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				checkViolation(t, map[bool]int{false: 100, true: 5}[c.few], c.sent(t), c.want)
			})
		})
	}
}

// checkViolation runs a session of a node with items against a peer that answers with the bytes sent. The session must fail with want, and
// the node must avoid the peer, for failurePause, or for violationPause if want is a violation.
func checkViolation(t *testing.T, items int, sent []byte, want error) {
	s := simulate(t, 10*time.Millisecond)
	victim, violator := s.node(), s.Add()
	victim.fill(0, items)
	violator.SetStreamHandler(victim.proto, func(st network.Stream) {
		_, _ = st.Write(sent)
		_ = st.CloseWrite()
		_, _ = io.Copy(io.Discard, st)
	})
	s.Connect(victim.host, violator)
	r, err := victim.Sync(t.Context(), violator.ID())
	if !errors.Is(err, want) {
		t.Fatalf("got %+v, %v; want %v", r, err, want)
	}
	violated := errors.Is(want, streamserver.ErrViolation)
	if got := victim.Stats().Violations == 1; got != violated || len(victim.neighbors()) != 0 {
		t.Errorf("counted as a violation: %v; %d neighbors", got, len(victim.neighbors()))
	}
	time.Sleep(failurePause)
	if n := len(victim.neighbors()); (n == 0) != violated {
		t.Errorf("after failurePause: %d neighbors", n)
	}
	if st, err := violator.NewStream(t.Context(), victim.host.ID(), victim.proto); violated && err == nil {
		_, _ = st.Write(frames(t, &round{Root: emptyFingerprint.append(nil)}))
		if _, err := io.ReadAll(st); err == nil || victim.Stats().Refused != 1 {
			t.Error("a banned peer is served")
		}
	}
	time.Sleep(violationPause)
	if len(victim.neighbors()) != 1 || victim.ingested != 0 {
		t.Errorf("after violationPause: %d neighbors, %d records accepted", len(victim.neighbors()), victim.ingested)
	}
}

func sortedItems(n *node) (all []item) {
	for it := range n.set.view().all(nil) {
		all = append(all, it)
	}
	return all
}

// TestInvalidFirstFrames sends first rounds that violate the protocol.
func TestInvalidFirstFrames(t *testing.T) {
	t.Parallel()
	n := newNode()
	n.fill(0, 100)
	root := n.set.view().fingerprint(nil).append(nil)
	for name, in := range map[string]*round{
		"no fingerprint":          {More: true, Requested: make([]byte, keySize)},
		"a request":               {Root: root, Requested: make([]byte, keySize)},
		"a split":                 {Root: root, Split: []part{{At: nil, Of: n.fingerprints()}}},
		"a list of a part":        {Root: root, List: []part{{At: []byte{1}}}},
		"a list of another count": {Root: root, List: []part{{At: nil, Of: pack(filler(1))}}},
		"records":                 {Root: root, Records: 1},
		"a false count":           {Root: append(make([]byte, 4), root[4:]...)},
	} {
		s := n.session()
		var out bytes.Buffer
		s.connect(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(frames(t, in)), &out})
		if err := s.respond(); !errors.Is(err, errWire) && !errors.Is(err, errViolation) || out.Len() != 0 {
			t.Errorf("%s: got %v, %d bytes sent", name, err, out.Len())
		}
	}
}

// TestRandomSets reconciles random sets: no record is sent twice, and all items are exchanged.
func TestRandomSets(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 8))
	var things []*td.Signed
	for i := range 200 {
		things = append(things, signed(t, i%100, uint64(1+i/100)))
	}
	for i := range 30 {
		a, b := newNode(), newNode()
		common := []int{0, 20, 300, 5000}[rnd.IntN(4)]
		a.fill(0, common)
		b.fill(0, common)
		for _, s := range things {
			if rnd.IntN(30) < i {
				a.store(s)
			}
			if rnd.IntN(100) < 50 {
				b.store(s)
			}
		}
		ends := runBoth(t, a.session(), b.session())
		if a.set.view().fingerprint(nil) != b.set.view().fingerprint(nil) {
			t.Fatalf("set %d: %d and %d items", i, a.set.Len(), b.set.Len())
		}
		for _, s := range ends {
			if m := s.mem.(*memory); m.held != 0 || s.report.Rounds > 8 {
				t.Errorf("set %d: %d bytes held, %d rounds", i, m.held, s.report.Rounds)
			}
		}
	}
}

func TestPeersAreBounded(t *testing.T) {
	t.Parallel()
	var p peers
	now := time.Now()
	for i := range 3 * maxKnown {
		id := testID(i)
		p.ban(id, true, now)
		p.ban(id, false, now) // must not shorten the ban
		if !p.avoids(id, now.Add(violationPause-1)) || !p.isBanned(id, now) || !p.allow(id, now) {
			t.Fatal("a new entry is missing")
		}
	}
	if len(p.avoidUntil) > maxKnown || len(p.bannedUntil) > maxKnown || len(p.sessions) > maxKnown {
		t.Errorf("%d, %d and %d peers are remembered", len(p.avoidUntil), len(p.bannedUntil), len(p.sessions))
	}
}

func TestPeersLimitSessions(t *testing.T) {
	t.Parallel()
	var p peers
	id, now := testID(1), time.Now()
	for range maxConsecutive + 1 {
		if !p.allow(id, now) {
			t.Fatal("a session within the limit was refused")
		}
	}
	if p.allow(id, now.Add(sessionInterval-1)) || !p.allow(id, now.Add(sessionInterval)) || p.allow(id, now.Add(sessionInterval)) {
		t.Errorf("want one more session after %v", sessionInterval)
	}
}

func TestRecentIsBounded(t *testing.T) {
	t.Parallel()
	var r recent
	now := time.Now()
	for i := range 3 * maxRecent {
		r.add(filler(i), now)
	}
	if n := len(r.current) + len(r.old); n > 2*maxRecent || !r.has(filler(3*maxRecent-1), now) || r.has(filler(0), now) {
		t.Errorf("%d items are remembered", n)
	}
	newer := filler(3*maxRecent - 1)
	newer.seq++
	if r.has(newer, now) {
		t.Error("a newer item counts as received")
	}
	if r.has(filler(3*maxRecent-1), now.Add(2*recentTime)) {
		t.Error("an item is remembered after its time")
	}
}
