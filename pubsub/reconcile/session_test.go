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

// accounts is the memory of a session.
type accounts struct{ held, peak int }

func (a *accounts) ReserveMemory(n int, _ uint8) error {
	a.held += n
	a.peak = max(a.peak, a.held)
	return nil
}

func (a *accounts) ReleaseMemory(n int) { a.held -= n }

// session returns an end of a session that talk connects.
func (n *node) session() *session { return newSession(n.Reconciler, &accounts{}, nil, func() {}) }

// connect sets the stream of an end.
func (s *session) connect(rw io.ReadWriter) {
	s.in.Reset(rw)
	s.out.Reset(rw)
}

// talk runs two ends until they end, and returns them, the second one first.
func talk(t testing.TB, lead, follow *session) []*session {
	t.Helper()
	x, y := net.Pipe()
	lead.connect(x)
	follow.connect(y)
	done := make(chan error, 1)
	go func() { done <- lead.lead() }()
	if err := follow.follow(); err != nil {
		t.Error("follow:", err)
	}
	if err := <-done; err != nil {
		t.Error("lead:", err)
	}
	_, _ = x.Close(), y.Close()
	return []*session{follow, lead}
}

// large is a thing whose TD does not fit into its record.
func large(t testing.TB, n int) *td.Signed {
	t.Helper()
	noise := make([]byte, 8<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(noise)
	k := first
	thing, err := td.Complete([]byte(fmt.Sprintf(`{"@context":"https://www.w3.org/2022/wot/td/v1.1","title":"Big","id":"urn:big:%d",
		"description":%q,"securityDefinitions":{"none":{"scheme":"nosec"}},"security":"none"}`, n, hex.EncodeToString(noise))), k.DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := td.Sign(thing, k, td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// frames are the messages of a misbehaving peer.
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

// claims returns the claims of a node for the parts of a range.
func (n *node) claims(at ...byte) (b []byte) {
	for i := range byte(parts) {
		b = n.set.view().claim(append(bytes.Clone(at), i)).append(b)
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

// TestContradictingPeer has a peer that answers the first turn with contradictions. The session fails, and the peer is avoided.
func TestContradictingPeer(t *testing.T) {
	t.Parallel()
	same, few := newNode(), newNode() // the sets of the victims
	same.fill(0, 100)
	few.fill(0, 5)
	var told []item
	var none []any
	for i := range 40 {
		told = append(told, filler(1000+i))
		none = append(none, &given{})
	}
	many := append([]any{&turn{News: pack(told...)}, &turn{Give: 40}}, none...)
	// gives announces a Thing, and then sends the result of make.
	gives := func(make func(t *testing.T, good *td.Signed) *given) func(t *testing.T) []byte {
		return func(t *testing.T) []byte {
			good := signed(t, 1, 5)
			return frames(t, &turn{News: pack(itemOf(t, good))}, &turn{Give: 1}, make(t, good))
		}
	}
	all := func(vs ...any) func(t *testing.T) []byte {
		return func(t *testing.T) []byte { return frames(t, vs...) }
	}
	raw := func(b ...byte) func(t *testing.T) []byte { return func(*testing.T) []byte { return b } }
	differs := same.claims()
	differs[5]++
	emptied := bytes.Clone(differs)
	copy(emptied, make([]byte, 4))
	for _, c := range []struct {
		name string
		few  bool // the victim has so few items that it lists them at once
		says func(t *testing.T) []byte
		want error
	}{
		{"garbage", false, raw([]byte("\x07garbage")...), errWire},
		{"an endless length", false, raw(bytes.Repeat([]byte{0x80}, 100)...), streamserver.ErrFrame},
		{"a frame that is too long", false, raw(0xff, 0xff, 0x7f), streamserver.ErrFrame},
		{"a length that is not minimal", false, raw(0x81, 0x80, 0x00), streamserver.ErrFrame},
		{"it begins too", false, all(&turn{Root: make([]byte, claimSize)}), errWire},
		{"parts that are equal", false, all(&turn{Split: []part{{Of: same.claims()}}}), errViolation},
		{"parts of what was not claimed", false, all(&turn{Split: []part{{At: []byte{3}, Of: same.claims(3)}}}), errViolation},
		{"the same parts twice", false, all(&turn{Split: []part{{Of: differs}, {Of: differs}}}), errViolation},
		{"a count that is false", false, all(&turn{Split: []part{{Of: emptied}}}), errViolation},
		{"items that are equal", true, all(&turn{List: []part{{Of: pack(sortedItems(few)...)}}}), errViolation},
		{"news that are none", true, all(&turn{News: pack(filler(3))}), errViolation},
		{"news twice", true, all(&turn{News: pack(filler(9), filler(9))}), errViolation},
		{"wants what was not told", false, all(&turn{Want: keysOf(filler(3))}), errViolation},
		{"wants something twice", true, all(&turn{Want: keysOf(filler(3), filler(3))}), errViolation},
		{"has nothing of what it tells", true, all(many...), errViolation},
		{"gives fewer and says no more", true, all(&turn{News: pack(filler(9))}, &turn{}), errViolation},
		{"gives what was not wanted", false, all(&turn{Give: 1}, &given{}), errViolation},
		{"gives garbage", true, all(&turn{News: pack(filler(9))}, &turn{Give: 1}, &given{Record: []byte("garbage")}), errViolation},
		{"gives another thing", true, gives(func(t *testing.T, _ *td.Signed) *given {
			return &given{Record: signed(t, 2, 5).Record}
		}), errViolation},
		{"gives an older one", true, gives(func(t *testing.T, _ *td.Signed) *given {
			return &given{Record: signed(t, 1, 4).Record}
		}), errViolation},
		{"gives another TD", true, gives(func(_ *testing.T, good *td.Signed) *given {
			return &given{Record: good.Record, TD: []byte("{}")}
		}), errViolation},
		{"gives a forged one", true, gives(func(_ *testing.T, good *td.Signed) *given {
			return &given{Record: bytes.Replace(good.Record, []byte("Thing 1"), []byte("Think 1"), 1)}
		}), errViolation},
		{"says half", true, raw(50, 1, 2, 3), io.ErrUnexpectedEOF},
		{"says nothing", true, raw(), io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, 10*time.Millisecond)
				victim, liar := s.node(), s.bare()
				victim.fill(0, map[bool]int{false: 100, true: 5}[c.few])
				says := c.says(t)
				liar.SetStreamHandler(victim.proto, func(st network.Stream) {
					_, _ = st.Write(says)
					_ = st.CloseWrite()
					_, _ = io.Copy(io.Discard, st)
				})
				s.connect(victim.host, liar)
				r, err := victim.Sync(t.Context(), liar.ID())
				if !errors.Is(err, c.want) {
					t.Fatalf("got %+v, %v; want %v", r, err, c.want)
				}
				lied := errors.Is(c.want, streamserver.ErrViolation)
				if got := victim.Stats().Violations == 1; got != lied || len(victim.neighbours()) != 0 {
					t.Errorf("counted as a lie: %v; %d neighbours", got, len(victim.neighbours()))
				}
				time.Sleep(failTime)
				if n := len(victim.neighbours()); (n == 0) != lied {
					t.Errorf("after a moment %d neighbours", n)
				}
				if st, err := liar.NewStream(t.Context(), victim.host.ID(), victim.proto); lied && err == nil {
					_, _ = st.Write(frames(t, &turn{Root: nothing.append(nil)}))
					if _, err := io.ReadAll(st); err == nil || victim.Stats().Refused != 1 {
						t.Error("a liar is served")
					}
				}
				time.Sleep(lieTime)
				if len(victim.neighbours()) != 1 || victim.came != 0 {
					t.Errorf("%d neighbours at last, %d records taken", len(victim.neighbours()), victim.came)
				}
			})
		})
	}
}

func sortedItems(n *node) (all []item) {
	for it := range n.set.view().all(nil) {
		all = append(all, it)
	}
	return all
}

// TestInvalidFirstFrames has a peer that begins with messages that no correct peer sends.
func TestInvalidFirstFrames(t *testing.T) {
	t.Parallel()
	n := newNode()
	n.fill(0, 100)
	root := n.set.view().claim(nil).append(nil)
	for name, in := range map[string]*turn{
		"no claim":                   {More: true, Want: make([]byte, keySize)},
		"a want":                     {Root: root, Want: make([]byte, keySize)},
		"a split":                    {Root: root, Split: []part{{At: nil, Of: n.claims()}}},
		"a list of a part":           {Root: root, List: []part{{At: []byte{1}}}},
		"a list that belies its sum": {Root: root, List: []part{{At: nil, Of: pack(filler(1))}}},
		"records":                    {Root: root, Give: 1},
		"a false count":              {Root: append(make([]byte, 4), root[4:]...)},
	} {
		s := n.session()
		var out bytes.Buffer
		s.connect(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(frames(t, in)), &out})
		if err := s.follow(); !errors.Is(err, errWire) && !errors.Is(err, errViolation) || out.Len() != 0 {
			t.Errorf("%s: got %v, %d bytes said", name, err, out.Len())
		}
	}
}

// TestRandomSets reconciles random sets: nothing is sent twice, and all items are exchanged.
func TestRandomSets(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 8))
	var things []*td.Signed
	for i := range 200 {
		things = append(things, signed(t, i%100, uint64(1+i/100)))
	}
	for round := range 30 {
		a, b := newNode(), newNode()
		common := []int{0, 20, 300, 5000}[rnd.IntN(4)]
		a.fill(0, common)
		b.fill(0, common)
		for _, s := range things {
			if rnd.IntN(30) < round {
				a.learn(s)
			}
			if rnd.IntN(100) < 50 {
				b.learn(s)
			}
		}
		ends := talk(t, a.session(), b.session())
		if a.set.view().claim(nil) != b.set.view().claim(nil) {
			t.Fatalf("round %d: %d and %d items", round, a.set.Len(), b.set.Len())
		}
		for _, s := range ends {
			if m := s.mem.(*accounts); m.held != 0 || s.report.Turns > 8 {
				t.Errorf("round %d: %d bytes held, %d turns", round, m.held, s.report.Turns)
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
		p.ban(id, false, now) // must not shorten it
		if !p.shuns(id, now.Add(lieTime-1)) || !p.isBanned(id, now) || !p.may(id, now) {
			t.Fatal("a peer is forgotten at once")
		}
	}
	if len(p.until) > maxKnown || len(p.banned) > maxKnown || len(p.paid) > maxKnown {
		t.Errorf("%d, %d and %d peers are remembered", len(p.until), len(p.banned), len(p.paid))
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
		t.Error("a newer one did not come")
	}
	if r.has(filler(3*maxRecent-1), now.Add(2*recentTime)) {
		t.Error("it is remembered for ever")
	}
}
