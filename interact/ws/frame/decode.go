package frame

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// errUnsupported marks the error of an unknown messageType or operation, for which LMOS has a code.
var errUnsupported = errors.New("unsupported message type")

// Decode reads a frame of any dialect. Data points into b. With an error, the frame has the members that a response needs.
// The error is an [*interact.Error] of code Invalid, or NotAllowed for an unknown type.
func Decode(b []byte) (*Frame, error) {
	f, m := &Frame{}, members{}
	unread := m.read(b)
	if unread != nil && unread != errTwice {
		return f, unreadable(unread)
	}
	f.Capital = m.capital
	err := f.ids(&m)
	w, unknownType := f.kind(&m)
	switch {
	case unread != nil:
		err = unreadable(unread)
	case err == nil:
		err = unknownType
	}
	if err == nil {
		err = f.fill(&m, w, b)
	}
	return f, err
}

func unreadable(err error) error {
	return interact.Errorf(interact.Invalid, "send one JSON object in each text frame", "invalid frame: %v", err)
}

// ids reads the ids of the Thing and of the message.
func (f *Frame) ids(m *members) error {
	var errs [3]error
	f.ID, errs[0] = m.text(sID, MaxID)
	f.Correlation, errs[1] = m.text(sCorrelation, MaxID)
	f.Thing, errs[2] = m.text(sThing, maxThing)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// kind reads the type of the message, and in wtp its part and operation.
func (f *Frame) kind(m *members) (*typeInfo, error) {
	name, err := m.text(sType, MaxID)
	if err != nil || name == "" {
		return nil, interact.Errorf(interact.Invalid, `for example "messageType": "readProperty"`, "the frame has no messageType")
	}
	w := lookup(name)
	if w == nil {
		if p := parts[strings.ToLower(name)]; p != none {
			return f.operation(m, p)
		}
		return nil, unknown("messageType", name, "see the message types of the LMOS WebSocket subprotocol")
	}
	f.Type = w.typ
	f.marks = w.proves(m, name)
	return w, nil
}

func unknown(what, name, hint string) error {
	return &interact.Error{Code: interact.NotAllowed, Title: "unknown " + what + " " + strconv.Quote(Clip(name, 60)),
		Hint: hint, Err: errUnsupported}
}

// proves returns the LMOS dialect of a message, if the message shows it (LMOS WebSocket subprotocol, dialect detection).
func (w *typeInfo) proves(m *members, name string) Dialect {
	switch {
	case w.about == aboutProperty && m.has(sName) && !m.has(sProperty):
		return Doc
	case m.capital && m.small: // both spellings (Style.Both)
		return Undecided
	case name == "subscribeevent", w.typ == interact.Acknowledgement, m.has(sProperty, sProperties) && !m.has(sName):
		return Kotlin
	case m.capital:
		return Doc
	}
	switch w.typ {
	case interact.QueryAction, interact.CancelAction, interact.SubscribeAllEvents, interact.UnsubscribeAllEvents:
		return Doc
	}
	return Undecided
}

// operation reads the operation of a wtp message.
func (f *Frame) operation(m *members, p part) (*typeInfo, error) {
	f.marks, f.Capital, f.part = WTP, true, p
	op, err := m.text(sOp, MaxID)
	if err != nil || op == "" {
		return nil, interact.Errorf(interact.Invalid, `for example "operation": "readproperty"`, "the frame has no operation")
	}
	w := byOp[strings.ToLower(op)]
	if w == nil {
		return nil, unknown("operation", op, "see the operations of the Web Thing Protocol")
	}
	f.op = w.typ
	if p == response && w.isRequest(m) {
		f.part = request
	}
	switch f.part {
	case request:
		f.Type, f.op = w.typ, 0
	case response:
		f.Type = w.answer
	case notification:
		if f.Type = w.note; f.Type == 0 {
			return nil, interact.Errorf(interact.Invalid, "notifications belong to observations and subscriptions",
				"%s has no notifications", w.typ.Op())
		}
	}
	if m.has(sError) && f.part != request {
		f.Type = TypeError
	}
	return byType[f.Type], nil
}

// isRequest reports whether a response is a request, as in some examples of the draft: it has members of requests, or does not have the
// mandatory members of responses.
func (w *typeInfo) isRequest(m *members) bool {
	switch w.typ {
	case interact.ReadProperty, interact.ReadAllProperties, interact.ReadMultipleProperties:
		return !m.has(sValue, sValues, sData, sError) && (w.typ != interact.ReadProperty || !m.null[sValue])
	case interact.InvokeAction:
		return m.has(sInput)
	case interact.QueryAction:
		return !m.has(sStatus, sError)
	}
	return false
}

// fill reads the rest of the message of type w.
func (f *Frame) fill(m *members, w *typeInfo, b []byte) error {
	if err := f.texts(m, w); err != nil {
		return err
	}
	f.Time, f.Hops = timestamp(m.raw[sTime]), hops(m.raw[sHops])
	f.Deadline, f.From = deadline(m.raw[sLeft]), caller(m.raw[sCaller])
	f.TraceParent, f.TraceState = interact.TraceContext(f.TraceParent, f.TraceState)
	if f.IsRequest() {
		if err := f.complete(w); err != nil {
			return err
		}
	}
	switch f.Type {
	case TypeError:
		f.readFault(m, b)
		return nil
	case interact.Acknowledgement:
		return f.acked(m)
	case interact.ActionStatus:
		return f.status(m, w)
	case TypeRegister, TypeRegistered:
		f.Streams = string(m.raw[sStreams]) == "true"
	case interact.InvokeAction:
		if raw := m.raw[sStream]; raw != nil {
			return f.announced(m, w, raw)
		}
	}
	return f.data(m, w)
}

// complete checks the mandatory members of a request. An action can be queried by the ids of its invocation.
func (f *Frame) complete(w *typeInfo) error {
	lacks := func(s slot, example string) *interact.Error {
		return interact.Errorf(interact.Invalid, example, "the request has no %s", names[s][min(1, len(names[s])-1)])
	}
	switch {
	case f.ID == "" && f.Correlation == "":
		return lacks(sID, "send a UUID of your choice")
	case f.Thing == "" && f.Type != TypeRegister:
		return lacks(sThing, "send the id of the agent").Then(interact.StepFind)
	case f.Name != "" || w.about == aboutThing || f.Type == interact.QueryAction || f.Type == interact.CancelAction ||
		f.Type == interact.ContinueAction:
		return nil
	case f.part != none:
		return lacks(sName, "send the name of the property, action or event")
	}
	return lacks(w.about.slot(), "send its name").Then(interact.StepShow, f.Thing)
}

// announced reads the number and the content type of a request stream.
func (f *Frame) announced(m *members, w *typeInfo, raw []byte) (err error) {
	n, err := strconv.ParseUint(string(raw), 10, 32)
	switch {
	case err != nil || n == 0:
		return badMember(sStream, "is not a number from 1 to 4294967295")
	case m.has(w.data...):
		return badMember(sStream, "announces a stream as input, and the input is present")
	}
	f.Stream = uint32(n)
	f.ContentType, err = m.text(sMedia, MaxID)
	return err
}

// texts reads the name of the affordance, by the best of its names, and the optional texts.
func (f *Frame) texts(m *members, w *typeInfo) error {
	var err error
	read := func(to *string, s slot, limit int) {
		if err == nil && *to == "" {
			*to, err = m.text(s, limit)
		}
	}
	switch w.about {
	case aboutProperty:
		read(&f.Name, sProperty, maxName)
	case aboutAction:
		read(&f.Name, sAction, maxName)
	case aboutEvent:
		read(&f.Name, sEvent, maxName)
	}
	if w.about != aboutThing || f.part != none {
		read(&f.Name, sName, maxName)
	}
	read(&f.ActionID, sActionID, MaxID)
	read(&f.After, sAfter, MaxID)
	read(&f.Key, sKey, MaxID)
	read(&f.Delegation, sDelegation, maxDelegation)
	read(&f.TraceParent, sParent, MaxText)
	read(&f.TraceState, sTraceState, MaxText)
	return err
}

// acked reads the messageType of the request that an LMOS message acknowledges.
func (f *Frame) acked(m *members) error {
	text, err := m.text(sAcked, MaxID)
	if w := lookup(text); w != nil && f.op == 0 {
		f.op = w.typ
	}
	return err
}

// data reads the data from the first member that is present. Only a value may be null.
func (f *Frame) data(m *members, w *typeInfo) error {
	for _, s := range w.data {
		if m.raw[s] != nil {
			return f.embedded(m, m.raw[s])
		}
	}
	if f.Type == interact.PropertyReading || f.Type == interact.WriteProperty {
		for _, s := range w.data {
			if m.null[s] {
				f.Data = []byte("null")
			}
		}
	}
	return nil
}

// status reads the state of an action: a string in LMOS, and an object in wtp, which is absent if the response has the output.
func (f *Frame) status(m *members, w *typeInfo) error {
	if raw := m.raw[sStatus]; raw != nil && raw[0] == '{' {
		return f.statusObject(m, raw)
	}
	text, err := m.text(sStatus, MaxID)
	if err != nil {
		return err
	}
	exact, err := m.text(sState, MaxID)
	if err != nil {
		return err
	}
	if f.Status = interact.StatusOf(exact); f.Status == interact.StatusNone {
		f.Status = interact.StatusOf(text)
	}
	if f.part == response && text == "" {
		f.Status = interact.StatusCompleted
		if f.op == interact.CancelAction {
			f.Status = interact.StatusCancelled
		}
	}
	if failed := m.raw[sError]; failed != nil && f.Status == interact.StatusFailed {
		f.Data, f.ContentType = failed, problem.MediaType
		return nil
	}
	return f.data(m, w)
}

// statusObject reads an ActionStatus of wtp. One of its examples has status for state.
func (f *Frame) statusObject(m *members, raw []byte) error {
	var s struct {
		ActionID, State, Status  string
		TimeRequested, TimeEnded string
		Output, Error            json.RawMessage
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return badMember(sStatus, "is not an ActionStatus")
	}
	s.State = cmp.Or(s.State, s.Status)
	if s.ActionID != "" {
		f.ActionID = s.ActionID
	}
	if len(f.ActionID) > MaxID {
		return badMember(sActionID, "is too long")
	}
	f.Status = interact.StatusOf(s.State)
	f.Began = parseTime(s.TimeRequested)
	if ended := parseTime(s.TimeEnded); !ended.IsZero() {
		f.Time = ended
	}
	switch {
	case f.Status == interact.StatusFailed && present(s.Error):
		f.Data, f.ContentType = s.Error, problem.MediaType
	case present(s.Output):
		return f.embedded(m, s.Output)
	}
	return nil
}

func present(raw []byte) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// hops reads the number of nodes that relayed a message. An invalid number is too many.
func hops(raw []byte) uint8 {
	if raw == nil {
		return 0
	}
	n, err := strconv.ParseUint(string(raw), 10, 8)
	if err != nil {
		return interact.MaxHops + 1
	}
	return uint8(n)
}

// maxLeft limits the remaining time in a request to one year, so that it can be added to the clock.
const maxLeft = 365 * 24 * time.Hour

// deadline returns the deadline of the peer, from the remaining milliseconds. An invalid number sets none.
func deadline(raw []byte) time.Time {
	if raw == nil {
		return time.Time{}
	}
	n, err := strconv.ParseUint(string(raw), 10, 63)
	if err != nil || n == 0 || n > uint64(maxLeft/time.Millisecond) {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(n) * time.Millisecond)
}

// maxCaller limits the member of the caller, in bytes.
const maxCaller = 4 << 10

// caller reads the caller as the peer states it. The receiver decides whether to trust it: an agent trusts only its node.
func caller(raw []byte) *did.Principal {
	if raw == nil || len(raw) > maxCaller {
		return nil
	}
	p := &did.Principal{}
	if json.Unmarshal(raw, p) != nil {
		return nil
	}
	return p
}

func badMember(s slot, what string) error {
	return interact.Errorf(interact.Invalid, "see the message types of the LMOS WebSocket subprotocol", "the member %s %s",
		names[s][0], what)
}
