package reconcile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// Limits of each end of a session. The next session continues.
const (
	maxTurns     = 40       // four levels of the tree hold a million Things
	maxSplit     = 4096     // ranges that are split; also ranges that wait for room in a turn
	maxAnnounced = 8192     // items in lists and news
	maxWants     = 4096     // records
	maxGive      = 16 << 20 // bytes of records and TDs given
	maxTDs       = 8 << 20  // bytes of TDs sent beside records; the others can be fetched by hash
	maxTaken     = 32 << 20 // received bytes: more than a correct peer sends
	maxTalk      = maxTurn - 16<<10
	listMost     = 16 // items of a range that are listed; with more it is split, which costs no more bytes

	// The memory of a session: announced, claimed, wanted and waiting items, and two buffers.
	sessionMemory = (maxAnnounced+maxWants+2*maxSplit)*2*itemSize + 2*bufferSize
	bufferSize    = 16 << 10
)

// A Report is the result of a session.
type Report struct {
	Peer did.DID
	// Received is the number of accepted records, Sent that of the records sent to the peer.
	Received, Sent int
	// Refused is the number of received records that are unusable here: their owner is not admitted, or they are expired or of another
	// version.
	Refused int
	// Missing is the number of records that the peer announced and did not send.
	Missing int
	// Turns is the number of turns of each end: one is a round trip between equal sets.
	Turns             int
	BytesIn, BytesOut int
	// Clock is the lead of the peer's clock over ours, to half a round trip, if Timed: the peer sent its time.
	Clock time.Duration
	Timed bool
	Took  time.Duration
	// More means that a limit ended the session, and another one should follow.
	More bool
}

// A session is one end of a comparison. It is used by one goroutine.
type session struct {
	rec   *Reconciler
	peer  did.DID // the other end
	mem   streamserver.Memory
	in    *bufio.Reader
	out   *bufio.Writer
	alive func() // called after each frame in either direction

	view      *tree               // our set at the start, against which claims of the peer are checked
	first     int                 // the part that is compared first; random, so that a limit cuts different parts
	root      bool                // the peer may answer our claim of the whole set
	claimed   map[string]uint16   // like root, for the parts of a range, a bit each
	waiting   []pending           // ranges that differ and did not fit into our last turn
	announced map[[32]byte]uint64 // items that the peer may want
	wanted    map[[32]byte]bool   // items wanted so far
	space     int                 // number of unknown Things that may still be wanted
	asked     []item              // wants of our last turn
	gives     []given             // records of our next turn
	tds       int                 // bytes of TDs given
	given     int                 // bytes given
	room      int                 // bytes left in our next turn
	final     bool                // the last turn was ours
	report    Report
}

// A pending range is one with a different claim of the peer.
type pending struct {
	at     []byte
	theirs claim
}

func newSession(r *Reconciler, m streamserver.Memory, rw io.ReadWriter, alive func()) *session {
	return &session{
		rec: r, mem: m, in: bufio.NewReaderSize(rw, bufferSize), out: bufio.NewWriterSize(rw, bufferSize), alive: alive,
		view: r.o.Set.view(), first: rand.IntN(parts), space: r.o.Room(),
		claimed: map[string]uint16{}, announced: map[[32]byte]uint64{}, wanted: map[[32]byte]bool{},
	}
}

// lead runs the session of the initiator.
func (s *session) lead() error {
	out := s.open()
	for i := range maxTurns {
		asked := s.rec.now()
		if err := s.say(out); err != nil {
			return err
		}
		if out.last() {
			return nil
		}
		in, err := s.receive()
		if i == 0 && err == nil {
			s.compareClocks(in, asked)
		}
		if err != nil || in.last() {
			s.rest()
			return err
		}
		if len(in.Root) > 0 {
			return fmt.Errorf("%w: a second beginning", errWire)
		}
		if out, err = s.answer(in); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d turns", errViolation, maxTurns)
}

// compareClocks records the clock of the peer from its first response; asked is the time of the request.
func (s *session) compareClocks(in *turn, asked time.Time) {
	if in.Time == 0 {
		return
	}
	now := s.rec.now()
	s.report.Clock, s.report.Timed = time.UnixMilli(in.Time).Sub(asked.Add(now.Sub(asked)/2)), true
}

// follow runs the session of the responder.
func (s *session) follow() error {
	for i := range maxTurns {
		in, err := s.receive()
		if err != nil || in.last() {
			s.rest()
			return err
		}
		if (len(in.Root) > 0) != (i == 0) {
			return fmt.Errorf("%w: it begins once", errWire)
		}
		var out *turn
		if i == 0 {
			if out, err = s.begin(in); err == nil {
				out.Time = s.rec.now().UnixMilli()
			}
		} else {
			out, err = s.answer(in)
		}
		if err != nil {
			return err
		}
		if err := s.say(out); err != nil || out.last() {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d turns", errViolation, maxTurns)
}

// finish waits until the other end has received the last turn, if this end sent it.
func (s *session) finish(st network.Stream) error {
	if !s.final {
		return nil
	}
	// Over QUIC this fails if the other end has read the turn and closed. The read below returns the outcome.
	_ = st.CloseWrite()
	switch _, err := s.in.ReadByte(); {
	case err == nil:
		return fmt.Errorf("%w: more after the end", errWire)
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("end: %w", err)
	}
}

// open returns the first turn.
func (s *session) open() *turn {
	s.room = maxTalk
	all := s.view.claim(nil)
	out := &turn{Root: all.append(nil)}
	if s.view.size() <= listMost {
		s.list(out, nil)
	}
	s.root = true
	return out
}

// begin answers the first turn.
func (s *session) begin(in *turn) (*turn, error) {
	theirs, mine := claimAt(in.Root, 0), s.view.claim(nil)
	listed := len(in.List) == 1 && len(in.List[0].At) == 0
	switch {
	case len(in.Split)+len(in.News)+len(in.Want)+in.Give > 0, len(in.List) > 0 && !listed:
		return nil, fmt.Errorf("%w: a beginning with answers", errWire)
	case listed && claimOf(in.List[0].Of) != theirs, !theirs.plausible():
		return nil, fmt.Errorf("%w: %d items are claimed", errViolation, theirs.count)
	case theirs == mine:
		return &turn{}, nil
	case listed:
		s.root = true // the list answers the claim that follows
		return s.answer(&turn{List: in.List})
	}
	s.room = maxTalk
	out := &turn{}
	s.differ(out, nil, theirs)
	return out, nil
}

// claimOf returns the claim of a list of items.
func claimOf(items []byte) claim {
	var t total
	for i := range len(items) / itemSize {
		t.add(itemAt(items, i).digest())
	}
	return newClaim(len(items)/itemSize, t)
}

var nothing = newClaim(0, total{})

// plausible reports whether count and fingerprint agree on whether the range is empty.
func (c claim) plausible() bool { return (c.count == 0) == (c == nothing) }

// answer returns the next turn.
func (s *session) answer(in *turn) (*turn, error) {
	s.room, s.asked = maxTalk, nil
	out := &turn{}
	for _, step := range []func() error{
		func() error { return s.answerWants(out, in.Want) },
		func() error { return s.answerNews(out, in.News) },
		func() error { return s.answerLists(out, in.List) },
		func() error { return s.answerSplits(out, in.Split) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	s.resume(out)
	return out, nil
}

// resume continues with waiting ranges, as far as they fit.
func (s *session) resume(out *turn) {
	waiting := s.waiting
	s.waiting = nil
	for _, p := range waiting {
		s.differ(out, p.at, p.theirs)
	}
	if len(s.waiting) > 0 && out.last() {
		out.More = true // no later turn has room
	}
}

// rest leaves the waiting ranges to the next session.
func (s *session) rest() { s.report.More = s.report.More || len(s.waiting) > 0 }

// answered removes a range from those that the peer may answer: each once, in the next turn or a later one.
func (s *session) answered(at []byte) error {
	if len(at) == 0 {
		was := s.root
		if s.root = false; was {
			return nil
		}
		return fmt.Errorf("%w: an answer to no claim", errViolation)
	}
	of, bit := string(at[:len(at)-1]), uint16(1)<<at[len(at)-1]
	if s.claimed[of]&bit == 0 {
		return fmt.Errorf("%w: an answer at %x, where nothing was claimed", errViolation, at)
	}
	s.claimed[of] &^= bit
	return nil
}

// answerSplits compares the parts of ranges that differ. At least one part must differ.
func (s *session) answerSplits(out *turn, splits []part) error {
	for _, p := range splits {
		if err := s.answered(p.At); err != nil {
			return err
		}
		differing := 0
		for at, i := range s.parts(p.At) {
			theirs := claimAt(p.Of, i)
			if !theirs.plausible() {
				return fmt.Errorf("%w: %d items are claimed at %x", errViolation, theirs.count, at)
			}
			if theirs != s.view.claim(at) {
				differing++
				s.differ(out, at, theirs)
			}
		}
		if differing == 0 {
			return fmt.Errorf("%w: the parts at %x are equal", errViolation, p.At)
		}
	}
	return nil
}

// parts yields the parts of a range with their numbers, from s.first on.
func (s *session) parts(at []byte) iter.Seq2[[]byte, int] {
	return func(yield func([]byte, int) bool) {
		for j := range parts {
			i := (s.first + j) % parts
			if !yield(append(bytes.Clone(at), byte(i)), i) {
				return
			}
		}
	}
}

// differ splits or lists a range with different claims, in this turn or the next.
func (s *session) differ(out *turn, at []byte, theirs claim) {
	mine := s.view.claim(at)
	done := true
	switch {
	case theirs.count == 0:
		s.newsOf(out, at)
	case mine.count <= listMost:
		done = s.list(out, at)
	default:
		done = s.split(out, at)
	}
	switch {
	case done:
	case len(s.waiting) < maxSplit && len(s.announced) < maxAnnounced && len(s.claimed) < maxSplit:
		s.waiting = append(s.waiting, pending{at, theirs})
	default:
		out.More = true
	}
}

// split sends the claims of the parts of a range, if they fit.
func (s *session) split(out *turn, at []byte) bool {
	if len(s.claimed) >= maxSplit || !s.has(parts*claimSize+len(at)+16) {
		return false
	}
	of := make([]byte, 0, parts*claimSize)
	for i := range parts {
		of = s.view.claim(append(bytes.Clone(at), byte(i))).append(of)
	}
	s.claimed[string(at)] = 1<<parts - 1
	out.Split = append(out.Split, part{At: at, Of: of})
	return true
}

// list sends all items of a range, if they fit.
func (s *session) list(out *turn, at []byte) bool {
	var of []byte
	for it := range s.view.all(at) {
		of = it.append(of)
	}
	if len(s.announced)+len(of)/itemSize > maxAnnounced || !s.has(len(of)+len(at)+16) {
		return false
	}
	for i := range len(of) / itemSize {
		it := itemAt(of, i)
		s.announced[it.key] = it.seq
	}
	out.List = append(out.List, part{At: at, Of: of})
	return true
}

// newsOf sends our items in a range that is empty at the other end.
func (s *session) newsOf(out *turn, at []byte) {
	if len(at) == keyDepth {
		s.announceAll(out, at)
		return
	}
	for sub := range s.parts(at) {
		s.announceAll(out, sub)
	}
}

func (s *session) announceAll(out *turn, at []byte) {
	for it := range s.view.all(at) {
		if s.announce(out, it); out.More {
			return
		}
	}
}

// announce sends an item that the other end lacks or has in an older version.
func (s *session) announce(out *turn, it item) {
	if len(s.announced) >= maxAnnounced || !s.has(itemSize) {
		out.More = true
		return
	}
	s.announced[it.key] = it.seq
	out.News = it.append(out.News)
}

// has reserves n bytes of the current turn, and reports whether they fit.
func (s *session) has(n int) bool {
	if s.room < n {
		return false
	}
	s.room -= n
	return true
}

// answerLists compares lists of the peer with the set. Something must differ.
func (s *session) answerLists(out *turn, lists []part) error {
	for _, p := range lists {
		if err := s.answered(p.At); err != nil {
			return err
		}
		if s.compare(out, p) == 0 {
			return fmt.Errorf("%w: the items at %x are equal", errViolation, p.At)
		}
	}
	return nil
}

// compare requests newer items of a list, and announces items that the list lacks. It returns the number of differences.
func (s *session) compare(out *turn, p part) (differing int) {
	theirs := make(map[[32]byte]uint64, len(p.Of)/itemSize)
	for i := range len(p.Of) / itemSize {
		it := itemAt(p.Of, i)
		theirs[it.key] = it.seq
		if mine, known := s.view.get(it.key); !known || mine.seq < it.seq {
			differing++
			s.want(out, it)
		}
	}
	for it := range s.view.all(p.At) {
		if seq, known := theirs[it.key]; !known || seq < it.seq {
			differing++
			s.announce(out, it)
		}
	}
	return differing
}

// answerNews requests announced items. Known items are a violation.
func (s *session) answerNews(out *turn, news []byte) error {
	for i := range len(news) / itemSize {
		it := itemAt(news, i)
		if mine, known := s.view.get(it.key); known && mine.seq >= it.seq || s.wanted[it.key] {
			return fmt.Errorf("%w: %x is no news", errViolation, it.key[:4])
		}
		s.want(out, it)
	}
	return nil
}

// want requests a record, unless an equally new one was received recently, or the node has no room.
func (s *session) want(out *turn, it item) {
	_, known := s.view.get(it.key)
	if !known && s.space <= 0 || s.rec.recent.has(it, time.Now()) {
		return
	}
	if len(s.wanted) >= s.rec.o.wants || !s.has(keySize) {
		out.More = true
		return
	}
	s.wanted[it.key] = true
	if !known {
		s.space--
	}
	s.asked = append(s.asked, it)
	out.Want = append(out.Want, it.key[:]...)
}

// answerWants sends the requested records of announced items.
func (s *session) answerWants(out *turn, wants []byte) error {
	for i := range len(wants) / keySize {
		key := [32]byte(wants[i*keySize:])
		if _, ok := s.announced[key]; !ok {
			return fmt.Errorf("%w: peer requested %x, which was not announced to it", errViolation, key[:4])
		}
		delete(s.announced, key)
		if s.given > maxGive {
			out.More = true
			continue
		}
		g := s.rec.give(key, s.tds < maxTDs)
		s.tds += len(g.TD)
		s.given += len(g.Record) + len(g.TD)
		s.gives = append(s.gives, g)
	}
	out.Give = len(s.gives)
	return nil
}

// say sends a turn and its records.
func (s *session) say(t *turn) error {
	if err := s.send(t); err != nil {
		return err
	}
	for i := range s.gives {
		if err := s.send(&s.gives[i]); err != nil {
			return err
		}
		if len(s.gives[i].Record) > 0 {
			s.report.Sent++
		}
	}
	s.gives = nil
	s.report.Turns++
	s.final = t.last()
	s.report.More = s.report.More || t.More
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

func (s *session) send(v any) error {
	frame, err := encodeFrame(v)
	if err != nil {
		return err
	}
	s.alive()
	s.report.BytesOut += len(frame)
	if _, err := s.out.Write(frame); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// receive reads the next turn and its records.
func (s *session) receive() (*turn, error) {
	t, err := receive(s, maxTurn, decodeTurn)
	if err != nil {
		return nil, err
	}
	s.report.More = s.report.More || t.More
	if t.Give > len(s.asked) || t.Give < len(s.asked) && !t.More {
		return nil, fmt.Errorf("%w: it gives %d of %d records", errViolation, t.Give, len(s.asked))
	}
	for _, want := range s.asked[:t.Give] {
		g, err := receive(s, maxGiven, decodeGiven)
		if err != nil {
			return nil, err
		}
		if err := s.take(want, g); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// receive reads a frame.
func receive[T any](s *session, limit int, decode func([]byte) (*T, error)) (*T, error) {
	frame, release, err := streamserver.ReadFrame(s.in, s.mem, limit)
	if err != nil {
		return nil, err
	}
	defer release()
	s.alive()
	if s.report.BytesIn += len(frame) + 3; s.report.BytesIn > maxTaken {
		return nil, fmt.Errorf("%w: more than %d bytes", errViolation, maxTaken)
	}
	return decode(frame)
}

// few is the number of missing records that is always tolerated: the peer may lose records between announcing and sending.
const few = 8

// take offers a requested record.
func (s *session) take(want item, g *given) error {
	if len(g.Record) == 0 {
		if s.report.Missing++; s.report.Missing > few && 4*s.report.Missing > len(s.wanted) {
			return fmt.Errorf("%w: %d announced records are missing", errViolation, s.report.Missing)
		}
		return nil
	}
	taken, err := s.rec.take(want, &td.Signed{Record: g.Record, TD: g.TD, From: s.peer})
	switch {
	case err != nil:
		return err
	case taken:
		s.report.Received++
	default:
		s.report.Refused++
	}
	return nil
}
