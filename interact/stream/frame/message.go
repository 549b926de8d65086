package frame

import (
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Bounds of the texts of a message, in bytes.
const (
	maxThing = td.MaxID + 256 // an id, "@" and an owner
	maxID    = 256
	maxName  = 1024
	maxMedia = 256
	maxTrace = 512 // W3C Trace Context §3.3.1.5 requires to propagate this much tracestate
)

// Bounds of durations, a year: a deadline can be added to the clock.
const (
	maxLeft = uint64(365 * 24 * time.Hour / time.Millisecond)
	maxTook = uint64(365 * 24 * time.Hour / time.Microsecond)
)

// texts are the members that are texts, by key.
var texts = [24]struct {
	name  string
	limit int
}{2: {"thing", maxThing}, 3: {"id", maxID}, 4: {"correlation", maxID}, 5: {"name", maxName}, 7: {"content type", maxMedia},
	8: {"traceparent", maxTrace}, 9: {"tracestate", maxTrace}, 16: {"action's id", maxID}, 17: {"id of the last event received", maxID},
	18: {"key", maxID}, 23: {"accepted media type", maxMedia}}

// fields returns the fields of m that [texts] describes, by key.
func fields(m *interact.Message) [24]*string {
	return [24]*string{2: &m.Thing, 3: &m.ID, 4: &m.Correlation, 5: &m.Name, 7: &m.ContentType, 8: &m.TraceParent,
		9: &m.TraceState, 16: &m.ActionID, 17: &m.After, 18: &m.Key, 23: &m.Accept}
}

// An Extra describes what accompanies a message.
type Extra struct {
	Size   int64 // of the data, if it follows in chunks
	Stream bool  // a request stream follows
	As     As
}

// An As states for whom a node calls. It can only reduce the rights of the node. The zero value is the node itself.
type As struct {
	// IsConsumer is true for a consumer of the node. The other fields are only valid then.
	IsConsumer bool
	// Name is the node's name of the consumer, valid by [did.ValidPrincipalName], or empty.
	Name string
	// Agent is the DID of an agent with a key of its own that is at the node; empty: another consumer. [ReadRequest] does not check it.
	Agent did.DID
	// Roles are the roles that the consumer may use, in order, separated by spaces; "*" means all of the node, and empty none.
	Roles string
	// Relation is the closest relation that the consumer may have.
	Relation did.Relation
}

// Of returns the principal of the consumer that a node states, or of the node itself. It has no more rights than the node.
func (a As) Of(node *did.Principal) *did.Principal {
	switch {
	case !a.IsConsumer:
		return node
	case a.Roles == AllRoles:
		return node.Narrowed(a.Name, a.Relation, nil)
	}
	stated := strings.Fields(a.Roles)
	return node.Narrowed(a.Name, a.Relation, func(role string) bool { return slices.Contains(stated, role) })
}

// AllRoles in [As.Roles] means all roles of the node.
const AllRoles = "*"

// maxRoles limits the roles of an As.
const maxRoles = 32

// AppendRequest appends the map of a request that has left milliseconds until its deadline; 0: no deadline. The error is Invalid.
func AppendRequest(dst []byte, m *interact.Message, x Extra, left uint64) ([]byte, error) {
	w := openMap(dst)
	w.common(m, &noRequest, x, left)
	w.message(17, m.After)
	w.message(18, m.Key)
	w.yes(19, m.Detach)
	w.yes(20, m.Timing != nil)
	w.as(21, x.As)
	if m.With != nil {
		w.bad = w.bad || len(m.With.Tokens) > interact.MaxCapability
		w.bytes(22, m.With.Tokens)
	}
	w.message(23, m.Accept)
	return w.finish(dst, m)
}

var noRequest interact.Message

// AppendReply appends the map of r, a reply to req. The error is Invalid.
func AppendReply(dst []byte, r, req *interact.Message, x Extra) ([]byte, error) {
	w := openMap(dst)
	w.common(r, req, x, 0)
	if req.Timing != nil && r.Timing != nil {
		w.uint(20, took(r.Timing.Host))
		w.uint(21, took(r.Timing.Agent))
	}
	w.time(22, r.Began)
	return w.finish(dst, r)
}

// common appends the members 1 to 16. A reply omits the texts that it has in common with its request.
func (w *mapWriter) common(m, req *interact.Message, x Extra, left uint64) {
	w.uint(1, uint64(m.Type))
	w.message(2, unless(m.Thing, req.Thing))
	w.message(3, m.ID)
	w.message(4, unless(m.Correlation, correlation(req)))
	w.message(5, unless(m.Name, req.Name))
	w.uint(6, uint64(m.Status))
	w.message(7, m.ContentType)
	w.message(8, unless(m.TraceParent, req.TraceParent))
	w.message(9, unless(m.TraceState, req.TraceState))
	w.uint(10, left)
	w.time(11, m.Time)
	w.uint(12, uint64(m.Hops)+1)
	w.uint(13, uint64(x.Size))
	w.yes(14, x.Stream)
	if x.Size == 0 {
		w.bytes(15, m.Data)
	}
	w.message(16, unless(m.ActionID, req.ActionID))
}

// message appends the text s of a message.
func (w *mapWriter) message(k byte, s string) {
	if s != "" {
		w.bad = w.bad || len(s) > texts[k].limit || !utf8.ValidString(s)
		w.text(k, s)
	}
}

// as appends the statement for whom a node calls.
func (w *mapWriter) as(k byte, as As) {
	if !as.IsConsumer {
		return
	}
	roles := strings.Fields(as.Roles)
	w.bad = w.bad || as.Name != "" && !did.ValidPrincipalName(as.Name) || len(roles) > maxRoles
	hasRoles := len(roles) > 0 || as.Name == "" && as.Agent == "" && as.Relation >= did.Own // the map is not empty
	n := uint64(0)
	for _, has := range [...]bool{as.Name != "", as.Agent != "", hasRoles, as.Relation < did.Own} {
		if has {
			n++
		}
	}
	w.key(k)
	w.b = appendHead(w.b, cborMap, n)
	if as.Name != "" {
		w.b = appendText(append(w.b, 1), as.Name)
	}
	if as.Agent != "" {
		w.b = appendText(append(w.b, 2), string(as.Agent))
	}
	if hasRoles {
		w.b = appendHead(append(w.b, 3), cborArray, uint64(len(roles)))
		for _, role := range roles {
			w.bad = w.bad || role != AllRoles && !did.ValidPrincipalName(role)
			w.b = appendText(w.b, role)
		}
	}
	if as.Relation < did.Own {
		w.b = append(w.b, 4, byte(as.Relation)+1)
	}
}

// time appends t, if it is set and representable in nanoseconds: from 1677 to 2262.
func (w *mapWriter) time(k byte, t time.Time) {
	if n := t.UnixNano(); !t.IsZero() && t.Equal(time.Unix(0, n)) {
		w.int(k, n)
	}
}

// finish returns what was appended to dst, if m is valid.
func (w *mapWriter) finish(dst []byte, m *interact.Message) ([]byte, error) {
	if w.bad || m.Type == 0 || m.Status > interact.StatusInputRequired {
		return dst, invalid(m)
	}
	return w.b, nil
}

// invalid returns the reason why m cannot be sent, as an Invalid error.
func invalid(m *interact.Message) error {
	for k, s := range fields(m) {
		switch t := texts[k]; {
		case s == nil:
		case len(*s) > t.limit:
			return interact.Errorf(interact.Invalid, "shorten it", "the %s has %d bytes, at most %d are allowed", t.name, len(*s), t.limit)
		case !utf8.ValidString(*s):
			return interact.Errorf(interact.Invalid, "send it as UTF-8", "the %s is not UTF-8", t.name)
		}
	}
	return interact.Errorf(interact.Invalid, "use a type and a status of the interaction model", "message of type %d and status %d", m.Type, m.Status)
}

// took returns d in microseconds, at least one; 0 if it was not measured.
func took(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return max(1, min(uint64(d.Microseconds()), maxTook))
}

// correlation returns the correlation of replies to req (see [interact.Message.Reply]).
func correlation(req *interact.Message) string {
	if req.Correlation == "" {
		return req.ID
	}
	return req.Correlation
}

// unless returns s, or nothing if the reader sets implied in its place.
func unless(s, implied string) string {
	if s == implied {
		return ""
	}
	return s
}

// TimeLeft returns the milliseconds from now to deadline, at least one; 0 if deadline is zero.
func TimeLeft(deadline, now time.Time) uint64 {
	if deadline.IsZero() {
		return 0
	}
	return uint64(max(1, min(deadline.Sub(now).Milliseconds(), int64(maxLeft))))
}

// ReadRequest decodes the map of a request that was received at the time now. It makes at most three allocations for the message and
// its texts; the data is part of b.
func ReadRequest(b []byte, now time.Time) (*interact.Message, Extra, error) {
	m := &interact.Message{}
	x, err := readMessage(b, m, members{request: true, now: now})
	switch {
	case err != nil:
	case m.Hops == 0:
		err = errCBOR // AppendRequest counts this hop
	case x.As.Name != "" && !did.ValidPrincipalName(x.As.Name):
		err = interact.Errorf(interact.Invalid, "1 to 64 of a-z, 0-9, dot, underscore and hyphen",
			"the calling node calls for %q, which is not the name of a consumer", interact.Excerpt(x.As.Name, 80))
	}
	return m, x, err
}

// IsLong reports whether the map of a request is an observation or a subscription. It reads the type only, which comes first.
func IsLong(b []byte) bool {
	r := readMap(b)
	k, _ := r.next()
	return k == 1 && interact.Type(r.uint(math.MaxUint8)).Long()
}

// ReadReply decodes the map of a reply to req; see [ReadRequest].
func ReadReply(b []byte, req *interact.Message) (*interact.Message, Extra, error) {
	m := &interact.Message{Thing: req.Thing, Correlation: correlation(req), Name: req.Name, ActionID: req.ActionID,
		TraceParent: req.TraceParent, TraceState: req.TraceState}
	x, err := readMessage(b, m, members{timed: req.Timing != nil})
	return m, x, err
}

// members describes the members that a map may have.
type members struct {
	request bool      // those of a request, not those of a reply
	now     time.Time // to which the time left of a request is added
	timed   bool      // the request asks for times
}

// onlyRequest are the members that only a request has, as bits by key. 20, 21 and 22 have another meaning in a reply.
const onlyRequest = 1<<10 | 1<<14 | 1<<17 | 1<<18 | 1<<19 | 1<<23

// allow reports whether the map may have a member with the given key.
func (s members) allow(key byte) bool {
	switch {
	case s.request:
		return true
	case key == 20 || key == 21:
		return s.timed
	}
	return onlyRequest&(1<<key) == 0
}

// readMessage sets the fields of m to the members of the map b.
func readMessage(b []byte, m *interact.Message, s members) (x Extra, err error) {
	r := readMap(b)
	var spans [24]span // by key
	for k, ok := r.next(); ok; k, ok = r.next() {
		if !s.allow(k) {
			r.fail()
		}
		switch k {
		case 1:
			m.Type = interact.Type(r.uint(math.MaxUint8))
		case 2, 3, 4, 5, 7, 8, 9, 16, 17, 18, 23:
			spans[k] = r.text(texts[k].limit)
		case 6:
			m.Status = interact.Status(r.uint(uint64(interact.StatusInputRequired)))
		case 10:
			m.Deadline = s.now.Add(time.Duration(r.uint(maxLeft)) * time.Millisecond)
		case 11:
			m.Time = r.time()
		case 12:
			m.Hops = uint8(r.uint(math.MaxUint8))
		case 13:
			x.Size = int64(r.uint(math.MaxInt64))
		case 14:
			x.Stream = r.yes()
		case 15:
			m.Data = r.bytes(MaxControl)
		case 19:
			m.Detach = r.yes()
		case 20, 21:
			if s.request && k == 21 {
				x.As = r.as()
			} else {
				r.timing(k, m, s)
			}
		case 22:
			if s.request {
				m.With = &interact.Capability{Tokens: r.bytes(interact.MaxCapability)}
			} else {
				m.Began = r.time()
			}
		default:
			r.fail()
		}
	}
	if m.Type == 0 || x.Size > 0 && m.Data != nil {
		r.fail()
	}
	if r.err != nil {
		return x, r.err
	}
	// The texts before the data share one string, those behind it another.
	const data = 15
	fs := fields(m)
	share(b, spans[:data], fs[:data])
	share(b, spans[data:], fs[data:])
	return x, nil
}

func (r *mapReader) time() time.Time { return time.Unix(0, r.int()).UTC() }

// timing reads member 20 or 21: of a request, that it asks for times; of a reply, a time.
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

// maxAs bounds a text in the place of a name or a role, in bytes. [ReadRequest] checks the name.
const maxAs = 1 << 10

// as reads the statement for whom a node calls. Roles that no credential can have are left out. Unknown members are ignored: they may only
// restrict the caller.
func (r *mapReader) as() As {
	as := As{IsConsumer: true, Relation: did.Own}
	n := r.head(cborMap, 23)
	if n == 0 {
		r.fail()
	}
	for last := 0; n > 0 && r.err == nil; n-- {
		k := int(r.uint(23))
		switch {
		case k <= last:
			r.fail()
		case k == 1:
			if as.Name = r.string(r.text(maxAs)); as.Name == "" {
				r.fail()
			}
		case k == 2:
			as.Agent = did.DID(r.string(r.text(maxAs)))
		case k == 3:
			var roles []string
			for left := r.head(cborArray, maxRoles); left > 0 && r.err == nil; left-- {
				if role := r.string(r.text(maxAs)); role == AllRoles || did.ValidPrincipalName(role) {
					roles = append(roles, role)
				}
			}
			as.Roles = strings.Join(roles, " ")
		case k == 4:
			as.Relation = min(did.Relation(r.uint(math.MaxUint8)-1), did.Own)
		default:
			r.skip(4)
		}
		last = k
	}
	return as
}

// share sets fields to the texts at the given spans of b. They share one string.
func share(b []byte, spans []span, fields []*string) {
	from, to := len(b), 0
	for _, s := range spans {
		if s.to != 0 {
			from, to = min(from, s.from), max(to, s.to)
		}
	}
	if to == 0 {
		return
	}
	all := string(b[from:to])
	for k, s := range spans {
		if s.to != 0 {
			*fields[k] = all[s.from-from : s.to-from]
		}
	}
}
