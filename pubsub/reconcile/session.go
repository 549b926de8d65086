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
	maxRounds        = 40       // four levels of the tree hold a million Things
	maxSplit         = 4096     // ranges that are split; also ranges that wait for room in a round
	maxAnnounced     = 8192     // announced items
	maxRequests      = 4096     // records
	maxSentBytes     = 16 << 20 // bytes of records and TDs
	maxTDs           = 8 << 20  // bytes of TDs sent with records; the others can be fetched by hash
	maxReceivedBytes = 32 << 20 // bytes; correct peers send less
	maxRoundContent  = maxRoundSize - 16<<10
	maxListed        = 16 // items of a range that are listed; with more it is split, which costs no more bytes

	// The memory of a session: announced, open, requested and waiting items, and two buffers.
	sessionMemory = (maxAnnounced+maxRequests+2*maxSplit)*2*itemSize + 2*bufferSize
	bufferSize    = 16 << 10
)

// A Report is the result of a session.
type Report struct {
	Peer did.DID
	// Received is the number of accepted records, Sent the number of records sent to the peer.
	Received, Sent int
	// Refused is the number of received records that this node rejected: their owner is not admitted, or they are expired or of another
	// version.
	Refused int
	// Missing is the number of records that the peer announced and did not send.
	Missing int
	// Rounds is the number of rounds of each end: 1 between equal sets.
	Rounds            int
	BytesIn, BytesOut int
	// Clock is the lead of the peer's clock over ours, to half a round trip, if Timed: the peer sent its time.
	Clock time.Duration
	Timed bool
	Took  time.Duration
	// More means that a limit ended the session, and that another session should follow.
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

	view        *tree               // our set at the start, compared with the fingerprints of the peer
	first       int                 // the part that is compared first; random, so that a limit omits different parts each time
	openRoot    bool                // the peer may answer our fingerprint of the whole set
	openParts   map[string]uint16   // like openRoot, for the parts of a range, a bit each
	waiting     []pending           // ranges that differ and did not fit into our last round
	announced   map[[32]byte]uint64 // items that the peer may request
	requested   map[[32]byte]bool   // items requested so far
	space       int                 // number of unknown Things that may still be requested
	requests    []item              // items requested in our last round
	outgoing    []recordMessage     // records of our next round
	sentTDBytes int                 // bytes of TDs sent
	sentBytes   int                 // bytes of records and TDs sent
	room        int                 // bytes left in our next round
	final       bool                // the last round was ours
	report      Report
}

// A pending range has a different fingerprint at the peer.
type pending struct {
	at     []byte
	theirs fingerprint
}

func newSession(r *Reconciler, m streamserver.Memory, rw io.ReadWriter, alive func()) *session {
	return &session{
		rec: r, mem: m, in: bufio.NewReaderSize(rw, bufferSize), out: bufio.NewWriterSize(rw, bufferSize), alive: alive,
		view: r.o.Set.view(), first: rand.IntN(parts), space: r.o.Room(),
		openParts: map[string]uint16{}, announced: map[[32]byte]uint64{}, requested: map[[32]byte]bool{},
	}
}

// initiate runs the session of the initiator.
func (s *session) initiate() error {
	out := s.firstRound()
	for i := range maxRounds {
		sent := s.rec.now()
		if err := s.sendRound(out); err != nil {
			return err
		}
		if out.isLast() {
			return nil
		}
		in, err := s.receive()
		if i == 0 && err == nil {
			s.compareClocks(in, sent)
		}
		if err != nil || in.isLast() {
			s.reportRest()
			return err
		}
		if len(in.Root) > 0 {
			return fmt.Errorf("%w: expected an answer, got a first round", errWire)
		}
		if out, err = s.answer(in); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d rounds", errViolation, maxRounds)
}

// compareClocks records the clock of the peer from its answer to the first round, which was sent at a time.
func (s *session) compareClocks(in *round, sent time.Time) {
	if in.Time == 0 {
		return
	}
	now := s.rec.now()
	s.report.Clock, s.report.Timed = time.UnixMilli(in.Time).Sub(sent.Add(now.Sub(sent)/2)), true
}

// respond runs the session of the responder.
func (s *session) respond() error {
	for i := range maxRounds {
		in, err := s.receive()
		if err != nil || in.isLast() {
			s.reportRest()
			return err
		}
		if (len(in.Root) > 0) != (i == 0) {
			return fmt.Errorf("%w: expected the first round exactly once", errWire)
		}
		var out *round
		if i == 0 {
			if out, err = s.answerFirst(in); err == nil {
				out.Time = s.rec.now().UnixMilli()
			}
		} else {
			out, err = s.answer(in)
		}
		if err != nil {
			return err
		}
		if err := s.sendRound(out); err != nil || out.isLast() {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d rounds", errViolation, maxRounds)
}

// finish waits until the other end has received the last round, if this end sent it.
func (s *session) finish(st network.Stream) error {
	if !s.final {
		return nil
	}
	// Over QUIC this fails if the other end has read the round and closed. The read below returns the outcome.
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

// firstRound returns the first round.
func (s *session) firstRound() *round {
	s.room = maxRoundContent
	all := s.view.fingerprint(nil)
	out := &round{Root: all.append(nil)}
	if s.view.size() <= maxListed {
		s.list(out, nil)
	}
	s.openRoot = true
	return out
}

// answerFirst answers the first round.
func (s *session) answerFirst(in *round) (*round, error) {
	theirs, mine := fingerprintAt(in.Root, 0), s.view.fingerprint(nil)
	listed := len(in.List) == 1 && len(in.List[0].At) == 0
	switch {
	case len(in.Split)+len(in.Announced)+len(in.Requested)+in.Records > 0, len(in.List) > 0 && !listed:
		return nil, fmt.Errorf("%w: the first round contains answers", errWire)
	case listed && listFingerprint(in.List[0].Of) != theirs, !theirs.isConsistent():
		return nil, fmt.Errorf("%w: the fingerprint of %d items is inconsistent", errViolation, theirs.count)
	case theirs == mine:
		return &round{}, nil
	case listed:
		s.openRoot = true // the list answers our fingerprint
		return s.answer(&round{List: in.List})
	}
	s.room = maxRoundContent
	out := &round{}
	s.differ(out, nil, theirs)
	return out, nil
}

// listFingerprint returns the fingerprint of a list of items.
func listFingerprint(items []byte) fingerprint {
	var t total
	for i := range len(items) / itemSize {
		t.add(itemAt(items, i).digest())
	}
	return newFingerprint(len(items)/itemSize, t)
}

var emptyFingerprint = newFingerprint(0, total{})

// isConsistent reports whether count and hash agree on whether the range is empty.
func (f fingerprint) isConsistent() bool { return (f.count == 0) == (f == emptyFingerprint) }

// answer returns the next round.
func (s *session) answer(in *round) (*round, error) {
	s.room, s.requests = maxRoundContent, nil
	out := &round{}
	for _, step := range []func() error{
		func() error { return s.answerRequests(out, in.Requested) },
		func() error { return s.answerAnnounced(out, in.Announced) },
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

// resume adds the waiting ranges that fit.
func (s *session) resume(out *round) {
	waiting := s.waiting
	s.waiting = nil
	for _, p := range waiting {
		s.differ(out, p.at, p.theirs)
	}
	if len(s.waiting) > 0 && out.isLast() {
		out.More = true // no later round has room
	}
}

// reportRest sets Report.More if ranges are left for the next session.
func (s *session) reportRest() { s.report.More = s.report.More || len(s.waiting) > 0 }

// closeRange removes a range that the peer has answered. The peer may answer each range once, in the next round or a later one.
func (s *session) closeRange(at []byte) error {
	if len(at) == 0 {
		was := s.openRoot
		if s.openRoot = false; was {
			return nil
		}
		return fmt.Errorf("%w: an answer without a request", errViolation)
	}
	of, bit := string(at[:len(at)-1]), uint16(1)<<at[len(at)-1]
	if s.openParts[of]&bit == 0 {
		return fmt.Errorf("%w: an answer at %x without a request", errViolation, at)
	}
	s.openParts[of] &^= bit
	return nil
}

// answerSplits compares the parts of ranges that differ. At least one part must differ.
func (s *session) answerSplits(out *round, splits []part) error {
	for _, p := range splits {
		if err := s.closeRange(p.At); err != nil {
			return err
		}
		differing := 0
		for at, i := range s.parts(p.At) {
			theirs := fingerprintAt(p.Of, i)
			if !theirs.isConsistent() {
				return fmt.Errorf("%w: the fingerprint of %d items at %x is inconsistent", errViolation, theirs.count, at)
			}
			if theirs != s.view.fingerprint(at) {
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

// differ splits or lists a range with different fingerprints, in this round or the next.
func (s *session) differ(out *round, at []byte, theirs fingerprint) {
	mine := s.view.fingerprint(at)
	done := true
	switch {
	case theirs.count == 0:
		s.announceRange(out, at)
	case mine.count <= maxListed:
		done = s.list(out, at)
	default:
		done = s.split(out, at)
	}
	switch {
	case done:
	case len(s.waiting) < maxSplit && len(s.announced) < maxAnnounced && len(s.openParts) < maxSplit:
		s.waiting = append(s.waiting, pending{at, theirs})
	default:
		out.More = true
	}
}

// split sends the fingerprints of the parts of a range and reports whether they fit.
func (s *session) split(out *round, at []byte) bool {
	if len(s.openParts) >= maxSplit || !s.reserve(parts*fingerprintSize+len(at)+16) {
		return false
	}
	of := make([]byte, 0, parts*fingerprintSize)
	for i := range parts {
		of = s.view.fingerprint(append(bytes.Clone(at), byte(i))).append(of)
	}
	s.openParts[string(at)] = 1<<parts - 1
	out.Split = append(out.Split, part{At: at, Of: of})
	return true
}

// list sends all items of a range and reports whether they fit.
func (s *session) list(out *round, at []byte) bool {
	var of []byte
	for it := range s.view.all(at) {
		of = it.append(of)
	}
	if len(s.announced)+len(of)/itemSize > maxAnnounced || !s.reserve(len(of)+len(at)+16) {
		return false
	}
	for i := range len(of) / itemSize {
		it := itemAt(of, i)
		s.announced[it.key] = it.seq
	}
	out.List = append(out.List, part{At: at, Of: of})
	return true
}

// announceRange sends our items in a range that is empty at the other end.
func (s *session) announceRange(out *round, at []byte) {
	if len(at) == keyDepth {
		s.announceAll(out, at)
		return
	}
	for sub := range s.parts(at) {
		s.announceAll(out, sub)
	}
}

func (s *session) announceAll(out *round, at []byte) {
	for it := range s.view.all(at) {
		if s.announce(out, it); out.More {
			return
		}
	}
}

// announce sends an item that the other end lacks or has in an older version.
func (s *session) announce(out *round, it item) {
	if len(s.announced) >= maxAnnounced || !s.reserve(itemSize) {
		out.More = true
		return
	}
	s.announced[it.key] = it.seq
	out.Announced = it.append(out.Announced)
}

// reserve reserves n bytes of the current round, and reports whether they fit.
func (s *session) reserve(n int) bool {
	if s.room < n {
		return false
	}
	s.room -= n
	return true
}

// answerLists compares lists of the peer with the set. Something must differ.
func (s *session) answerLists(out *round, lists []part) error {
	for _, p := range lists {
		if err := s.closeRange(p.At); err != nil {
			return err
		}
		if s.compare(out, p) == 0 {
			return fmt.Errorf("%w: the items at %x are equal", errViolation, p.At)
		}
	}
	return nil
}

// compare requests newer items of a list, and announces items that the list lacks. It returns the number of differences.
func (s *session) compare(out *round, p part) (differing int) {
	theirs := make(map[[32]byte]uint64, len(p.Of)/itemSize)
	for i := range len(p.Of) / itemSize {
		it := itemAt(p.Of, i)
		theirs[it.key] = it.seq
		if mine, known := s.view.get(it.key); !known || mine.seq < it.seq {
			differing++
			s.request(out, it)
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

// answerAnnounced requests announced items. Known items are a violation.
func (s *session) answerAnnounced(out *round, announced []byte) error {
	for i := range len(announced) / itemSize {
		it := itemAt(announced, i)
		if mine, known := s.view.get(it.key); known && mine.seq >= it.seq || s.requested[it.key] {
			return fmt.Errorf("%w: the announced item %x is already known", errViolation, it.key[:4])
		}
		s.request(out, it)
	}
	return nil
}

// request requests a record, unless an equally new one was received recently, or the node has no room.
func (s *session) request(out *round, it item) {
	_, known := s.view.get(it.key)
	if !known && s.space <= 0 || s.rec.recent.has(it, time.Now()) {
		return
	}
	if len(s.requested) >= s.rec.o.maxRequests || !s.reserve(keySize) {
		out.More = true
		return
	}
	s.requested[it.key] = true
	if !known {
		s.space--
	}
	s.requests = append(s.requests, it)
	out.Requested = append(out.Requested, it.key[:]...)
}

// answerRequests sends the requested records of announced items.
func (s *session) answerRequests(out *round, keys []byte) error {
	for i := range len(keys) / keySize {
		key := [32]byte(keys[i*keySize:])
		if _, ok := s.announced[key]; !ok {
			return fmt.Errorf("%w: the peer requested %x, which was not announced", errViolation, key[:4])
		}
		delete(s.announced, key)
		if s.sentBytes > maxSentBytes {
			out.More = true
			continue
		}
		g := s.rec.outgoing(key, s.sentTDBytes < maxTDs)
		s.sentTDBytes += len(g.TD)
		s.sentBytes += len(g.Record) + len(g.TD)
		s.outgoing = append(s.outgoing, g)
	}
	out.Records = len(s.outgoing)
	return nil
}

// sendRound sends a round and its records.
func (s *session) sendRound(r *round) error {
	if err := s.send(r); err != nil {
		return err
	}
	for i := range s.outgoing {
		if err := s.send(&s.outgoing[i]); err != nil {
			return err
		}
		if len(s.outgoing[i].Record) > 0 {
			s.report.Sent++
		}
	}
	s.outgoing = nil
	s.report.Rounds++
	s.final = r.isLast()
	s.report.More = s.report.More || r.More
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

// receive reads the next round and its records.
func (s *session) receive() (*round, error) {
	r, err := receive(s, maxRoundSize, decodeRound)
	if err != nil {
		return nil, err
	}
	s.report.More = s.report.More || r.More
	if r.Records > len(s.requests) || r.Records < len(s.requests) && !r.More {
		return nil, fmt.Errorf("%w: expected %[3]d records, got %[2]d", errViolation, r.Records, len(s.requests))
	}
	for _, it := range s.requests[:r.Records] {
		g, err := receive(s, maxRecordMessage, decodeRecordMessage)
		if err != nil {
			return nil, err
		}
		if err := s.accept(it, g); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// receive reads a frame.
func receive[T any](s *session, limit int, decode func([]byte) (*T, error)) (*T, error) {
	frame, release, err := streamserver.ReadFrame(s.in, s.mem, limit)
	if err != nil {
		return nil, err
	}
	defer release()
	s.alive()
	if s.report.BytesIn += len(frame) + 3; s.report.BytesIn > maxReceivedBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", errViolation, maxReceivedBytes)
	}
	return decode(frame)
}

// toleratedMissing is the number of missing records that is always tolerated: the peer may lose records between announcing and sending.
const toleratedMissing = 8

// accept handles one record of an answer.
func (s *session) accept(requested item, g *recordMessage) error {
	if len(g.Record) == 0 {
		if s.report.Missing++; s.report.Missing > toleratedMissing && 4*s.report.Missing > len(s.requested) {
			return fmt.Errorf("%w: %d announced records are missing", errViolation, s.report.Missing)
		}
		return nil
	}
	accepted, err := s.rec.accept(requested, &td.Signed{Record: g.Record, TD: g.TD, From: s.peer})
	switch {
	case err != nil:
		return err
	case accepted:
		s.report.Received++
	default:
		s.report.Refused++
	}
	return nil
}
