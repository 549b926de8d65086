package stream

import (
	"cmp"
	"math"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Bounds of the members of a message, in bytes.
const (
	maxThing = td.MaxID + 256 // an id, "@" and an owner
	maxID    = 256
	maxName  = 1024
	maxMedia = 256
	maxTrace = 512 // W3C Trace Context §3.3.1.5 asks to carry this much tracestate
)

// maxLeft bounds the time that is left, so that a deadline can be added to the clock: a year. maxTook does so for what an
// answer took.
const (
	maxLeft = uint64(365 * 24 * time.Hour / time.Millisecond)
	maxTook = uint64(365 * 24 * time.Hour / time.Microsecond)
)

// What follows a message in frames of its own.
type follow struct {
	size   int64  // of the data, if it comes in chunks
	stream bool   // a request stream comes
	as     string // the consumer of the calling node for whom it asks; empty says nothing
}

// appendRequest appends the map of a request that is to be answered within left milliseconds; 0 sets no bound. The error
// is Invalid.
func appendRequest(dst []byte, m *interact.Message, f follow, left uint64) ([]byte, error) {
	w := openMap(dst)
	w.uint(1, uint64(m.Type))
	w.text(2, m.Thing, maxThing)
	w.text(3, m.ID, maxID)
	w.text(4, m.Correlation, maxID)
	w.text(5, m.Name, maxName)
	w.uint(6, uint64(m.Status))
	w.text(7, m.ContentType, maxMedia)
	w.text(8, m.TraceParent, maxTrace)
	w.text(9, m.TraceState, maxTrace)
	w.uint(10, left)
	w.common(m, f)
	w.text(16, m.ActionID, maxID)
	w.text(17, m.After, maxID)
	w.text(18, m.Key, maxID)
	w.yes(19, m.Detach)
	w.yes(20, m.Timing != nil)
	w.as(21, f.as)
	w.text(23, m.Accept, maxMedia)
	return w.message(dst, m)
}

// appendReply appends the map of r, which answers req. The error is Invalid.
func appendReply(dst []byte, r, req *interact.Message, f follow) ([]byte, error) {
	w := openMap(dst)
	w.uint(1, uint64(r.Type))
	w.text(2, unless(r.Thing, req.Thing), maxThing)
	w.text(3, r.ID, maxID)
	w.text(4, unless(r.Correlation, correlation(req)), maxID)
	w.text(5, unless(r.Name, req.Name), maxName)
	w.uint(6, uint64(r.Status))
	w.text(7, r.ContentType, maxMedia)
	w.text(8, unless(r.TraceParent, req.TraceParent), maxTrace)
	w.text(9, unless(r.TraceState, req.TraceState), maxTrace)
	w.common(r, f)
	w.text(16, unless(r.ActionID, req.ActionID), maxID)
	if req.Timing != nil && r.Timing != nil {
		w.uint(20, took(r.Timing.Host))
		w.uint(21, took(r.Timing.Agent))
	}
	w.time(22, r.Began)
	return w.message(dst, r)
}

// common appends the members 11 to 15, which requests and replies share.
func (w *mapWriter) common(m *interact.Message, f follow) {
	w.time(11, m.Time)
	w.uint(12, uint64(m.Hops)+1)
	w.uint(13, uint64(f.size))
	w.yes(14, f.stream)
	if f.size == 0 {
		w.bytes(15, m.Data)
	}
}

// time appends t, if it is set and there are nanoseconds for it: from 1677 to 2262.
func (w *mapWriter) time(k byte, t time.Time) {
	if t.IsZero() {
		return
	}
	if n := t.UnixNano(); t.Equal(time.Unix(0, n)) {
		w.int(k, n)
	}
}

// message returns what was written to dst, if m can be written at all.
func (w *mapWriter) message(dst []byte, m *interact.Message) ([]byte, error) {
	if w.bad || m.Type == 0 || m.Status > interact.StatusInputRequired {
		return dst, explain(m)
	}
	return w.b, nil
}

// took returns d in microseconds, at least one; 0 if it was not measured.
func took(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return max(1, min(uint64(d.Microseconds()), maxTook))
}

// correlation is what replies to req carry (see interact.Message.Reply).
func correlation(req *interact.Message) string {
	if req.Correlation == "" {
		return req.ID
	}
	return req.Correlation
}

// unless returns s, or nothing if the reader will put implied in its place.
func unless(s, implied string) string {
	if s == implied {
		return ""
	}
	return s
}

// timeLeft returns the milliseconds from now to deadline, at least one; 0 if there is no deadline.
func timeLeft(deadline, now time.Time) uint64 {
	if deadline.IsZero() {
		return 0
	}
	return uint64(max(1, min(deadline.Sub(now).Milliseconds(), int64(maxLeft))))
}

// explain says why m cannot be written, as an Invalid error.
func explain(m *interact.Message) error {
	for _, t := range []struct {
		what, text string
		limit      int
	}{{"thing", m.Thing, maxThing}, {"id", m.ID, maxID}, {"correlation", m.Correlation, maxID}, {"name", m.Name, maxName},
		{"content type", m.ContentType, maxMedia}, {"traceparent", m.TraceParent, maxTrace}, {"tracestate", m.TraceState, maxTrace},
		{"action's id", m.ActionID, maxID}, {"id of what was seen last", m.After, maxID}, {"key", m.Key, maxID},
		{"accepted media type", m.Accept, maxMedia}} {
		if len(t.text) > t.limit {
			return interact.Errorf(interact.Invalid, "shorten it", "the %s has %d bytes, at most %d are allowed", t.what,
				len(t.text), t.limit)
		}
		if !utf8.ValidString(t.text) {
			return interact.Errorf(interact.Invalid, "send it as UTF-8", "the %s is not UTF-8", t.what)
		}
	}
	return interact.Errorf(interact.Invalid, "use those of the catalogue", "message of type %d and status %d", m.Type, m.Status)
}

// readRequest reads the map of a request that was received at the time now. The strings and the data of the message are
// kept in at most three allocations; the data is part of b.
func readRequest(b []byte, now time.Time) (*interact.Message, follow, error) {
	m := &interact.Message{}
	f, err := readMessage(b, m, members{request: true, now: now})
	switch {
	case err != nil:
	case m.Hops == 0:
		err = errCBOR // appendRequest counts this hop
	case f.as != "" && !did.ValidPrincipalName(f.as):
		err = interact.Errorf(interact.Invalid, "1 to 64 of a-z, 0-9, dot, underscore and hyphen",
			"the calling node says that it asks for %q, which is no name of a consumer", interact.Clip(interact.Readable(f.as), 80))
	}
	return m, f, err
}

// asksLong reports whether the map of a request asks for something that goes on until somebody ends it. It looks at the
// type only, which comes first.
func asksLong(b []byte) bool {
	r := readMap(b)
	k, _ := r.next()
	return k == 1 && interact.Type(r.uint(math.MaxUint8)).Long()
}

// readReply reads the map of a reply to req; see [readRequest].
func readReply(b []byte, req *interact.Message) (*interact.Message, follow, error) {
	m := &interact.Message{Thing: req.Thing, Correlation: correlation(req), Name: req.Name, ActionID: req.ActionID,
		TraceParent: req.TraceParent, TraceState: req.TraceState}
	f, err := readMessage(b, m, members{timed: req.Timing != nil})
	return m, f, err
}

// members says which members a map may have.
type members struct {
	request bool      // those of a request, not those of a reply
	now     time.Time // from which a request's time is counted
	timed   bool      // the request asked where the time goes
}

// The members that only a request has, and that only a reply has, as bits by key.
const (
	onlyRequest = 1<<10 | 1<<14 | 1<<17 | 1<<18 | 1<<19 | 1<<23
	onlyReply   = 1 << 22
)

// allow reports whether there may be a member of the given key.
func (s members) allow(key byte) bool {
	bit := 1 << key
	switch {
	case s.request:
		return onlyReply&bit == 0
	case key == 20 || key == 21:
		return s.timed
	}
	return onlyRequest&bit == 0
}

// readMessage sets in m what the map b holds.
func readMessage(b []byte, m *interact.Message, s members) (f follow, err error) {
	r := readMap(b)
	var texts [24]span // by key
	for k, ok := r.next(); ok; k, ok = r.next() {
		if !s.allow(k) {
			r.fail()
		}
		switch k {
		case 1:
			m.Type = interact.Type(r.uint(math.MaxUint8))
		case 2, 3, 4, 5, 7, 8, 9, 16, 17, 18, 23:
			texts[k] = r.text(textLimits[k])
		case 6:
			m.Status = interact.Status(r.uint(uint64(interact.StatusInputRequired)))
		case 10:
			m.Deadline = s.now.Add(time.Duration(r.uint(maxLeft)) * time.Millisecond)
		case 11:
			m.Time = r.time()
		case 12:
			m.Hops = uint8(r.uint(math.MaxUint8))
		case 13:
			f.size = int64(r.uint(math.MaxInt64))
		case 14:
			f.stream = r.yes()
		case 15:
			m.Data = r.bytes(maxControl)
		case 19:
			m.Detach = r.yes()
		case 20, 21:
			if s.request && k == 21 {
				f.as = r.as()
			} else {
				r.timing(k, m, s)
			}
		case 22:
			m.Began = r.time()
		default:
			r.fail()
		}
	}
	if m.Type == 0 || f.size > 0 && m.Data != nil {
		r.fail()
	}
	if r.err != nil {
		return f, r.err
	}
	setTexts(b, m, &texts)
	return f, nil
}

func (r *mapReader) time() time.Time { return time.Unix(0, r.int()).UTC() }

// timing reads the member k, which asks for times or tells one.
func (r *mapReader) timing(k byte, m *interact.Message, s members) {
	if m.Timing == nil {
		m.Timing = &interact.Timing{}
	}
	switch {
	case s.request:
		r.yes()
	case k == 20:
		m.Timing.Host = time.Duration(r.uint(maxTook)) * time.Microsecond
	default:
		m.Timing.Agent = time.Duration(r.uint(maxTook)) * time.Microsecond
	}
}

var textLimits = [24]int{2: maxThing, 3: maxID, 4: maxID, 5: maxName, 7: maxMedia, 8: maxTrace, 9: maxTrace, 16: maxID,
	17: maxID, 18: maxID, 23: maxMedia}

// setTexts gives m the texts that lie in b: those before the data share one string, and those behind it another.
func setTexts(b []byte, m *interact.Message, texts *[24]span) {
	fields := [24]*string{2: &m.Thing, 3: &m.ID, 4: &m.Correlation, 5: &m.Name, 7: &m.ContentType, 8: &m.TraceParent,
		9: &m.TraceState, 16: &m.ActionID, 17: &m.After, 18: &m.Key, 23: &m.Accept}
	const data = 15
	share(b, texts[:data], fields[:data])
	share(b, texts[data:], fields[data:])
}

// share sets fields to the texts that lie in b, all of them in one string.
func share(b []byte, texts []span, fields []*string) {
	from, to := len(b), 0
	for _, s := range texts {
		if s.to != 0 {
			from, to = min(from, s.from), max(to, s.to)
		}
	}
	if to == 0 {
		return
	}
	all := string(b[from:to])
	for k, s := range texts {
		if s.to != 0 {
			*fields[k] = all[s.from-from : s.to-from]
		}
	}
}

// Bounds of an error on the wire. What is longer is cut.
const (
	maxTitle  = 1 << 10 // bytes
	maxHint   = 1 << 10
	maxDetail = 2 << 10
	maxIssue  = 512 // of the pointer and of the reason
	maxIssues = 32
)

// appendError appends the map of e.
func appendError(dst []byte, e *interact.Error) []byte {
	w := openMap(dst)
	w.uint(1, uint64(cmp.Or(e.Code, interact.Internal)))
	w.text(2, cut(e.Title, maxTitle), maxTitle)
	w.text(3, cut(e.Hint, maxHint), maxHint)
	// The cause stays here, for the log: it may tell of paths and addresses of this host. What the far end itself said goes on.
	if e.Err != nil && e.Remote {
		w.text(4, cut(e.Err.Error(), maxDetail), maxDetail)
	}
	if issues := e.Issues[:min(len(e.Issues), maxIssues)]; len(issues) > 0 {
		w.key(5)
		w.b = appendHead(w.b, cborArray, uint64(len(issues)))
		for _, i := range issues {
			w.b = appendHead(w.b, cborArray, 2)
			w.b = appendText(w.b, cut(i.Pointer, maxIssue))
			w.b = appendText(w.b, cut(i.Reason, maxIssue))
		}
	}
	w.uint(6, uint64((min(max(e.RetryAfter, 0), maxRetryAfter)+time.Millisecond-1)/time.Millisecond))
	if steps := interact.KnownSteps(e.Next); len(steps) > 0 {
		w.key(7)
		w.b = appendHead(w.b, cborArray, uint64(len(steps)))
		for _, s := range steps {
			w.b = appendHead(w.b, cborArray, uint64(1+len(s.Args)))
			for _, text := range append([]string{string(s.Kind)}, s.Args...) {
				w.b = appendText(w.b, text)
			}
		}
	}
	return w.b
}

// maxRetryAfter is the longest time that an error asks to wait.
const maxRetryAfter = 24 * time.Hour

// cut returns the longest valid UTF-8 prefix of s that has at most limit bytes.
func cut(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	if utf8.ValidString(s) {
		return s
	}
	for i, c := range s {
		if c == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return s[:i]
			}
		}
	}
	return s
}

// A remoteDetail is the cause of an error that happened at the far end.
type remoteDetail string

func (d remoteDetail) Error() string { return string(d) }

// readError reads the map of an error.
func readError(b []byte) (*interact.Error, error) {
	e := &interact.Error{Remote: true}
	r := readMap(b)
	for k, ok := r.next(); ok; k, ok = r.next() {
		switch k {
		case 1:
			e.Code = foreign(interact.Code(r.uint(math.MaxUint16)))
		case 2:
			e.Title = r.string(r.text(maxTitle))
		case 3:
			e.Hint = r.string(r.text(maxHint))
		case 4:
			e.Err = remoteDetail(r.string(r.text(maxDetail)))
		case 5:
			e.Issues = readIssues(&r)
		case 6:
			e.RetryAfter = time.Duration(r.uint(uint64(maxRetryAfter/time.Millisecond))) * time.Millisecond
		case 7:
			e.Next = interact.KnownSteps(readSteps(&r))
		default:
			r.skip(4) // of a later version
		}
	}
	if e.Code == 0 {
		r.fail()
	}
	if r.err != nil {
		return nil, r.err
	}
	return e, nil
}

// foreign returns the code that another node's error has here: what it says of an interaction, or of its own state. It cannot
// speak of this node's configuration, key or socket, and a code that nobody here knows is the agent's failure.
func foreign(c interact.Code) interact.Code {
	switch {
	case c == 0, c < 2000 && known[c], c == interact.NotJSON, c == interact.BadTD, c == interact.DiskFull,
		c == interact.ShuttingDown, c == interact.NotReady:
		return c
	}
	return interact.AgentFailed
}

// known are the codes of the catalogue.
var known = func() map[interact.Code]bool {
	m := map[interact.Code]bool{}
	for _, c := range interact.Codes() {
		m[c] = true
	}
	return m
}()

// readSteps reads steps; their kinds may be unknown.
func readSteps(r *mapReader) []interact.Step {
	var steps []interact.Step
	for range r.head(cborArray, interact.MaxSteps) {
		n := r.head(cborArray, 1+interact.MaxStepArgs)
		if n == 0 {
			r.fail()
			return nil
		}
		s := interact.Step{Kind: interact.StepKind(r.string(r.anyText(interact.MaxStepArg)))}
		for range n - 1 {
			s.Args = append(s.Args, r.string(r.anyText(interact.MaxStepArg)))
		}
		steps = append(steps, s)
	}
	return steps
}

func readIssues(r *mapReader) []td.Issue {
	n := r.head(cborArray, maxIssues)
	if n == 0 {
		r.fail()
		return nil
	}
	issues := make([]td.Issue, 0, n)
	for range n {
		if r.head(cborArray, 2) != 2 {
			r.fail()
		}
		issues = append(issues, td.Issue{Pointer: r.string(r.anyText(maxIssue)), Reason: r.string(r.anyText(maxIssue))})
	}
	return issues
}
