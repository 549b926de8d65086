package frame

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// A writer appends members to a JSON object.
type writer struct {
	b     []byte
	style Style
}

// member begins a member.
func (w *writer) member(name string) {
	if len(w.b) > 1 {
		w.b = append(w.b, ',')
	}
	w.b = append(append(append(w.b, '"'), name...), '"', ':')
}

// name returns the name of a slot in the spelling of the peer.
func (w *writer) name(s slot) string {
	if all := names[s]; w.style.Capital && (s <= sCorrelation || s == sAfter) {
		return all[min(1, len(all)-1)]
	}
	return names[s][0]
}

// text writes a mandatory text; maybe omits it if it is empty.
func (w *writer) text(s slot, text string) {
	w.member(w.name(s))
	w.b = appendText(w.b, text)
	if w.style.Both && len(names[s]) > 1 {
		w.member(names[s][1])
		w.b = appendText(w.b, text)
	}
}

func (w *writer) maybe(s slot, text string) {
	if text != "" {
		w.text(s, text)
	}
}

func (w *writer) raw(s slot, value []byte) {
	w.member(w.name(s))
	w.b = append(w.b, value...)
}

// when writes a time as the member name, unless it is zero or out of range.
func (w *writer) when(name string, t time.Time) {
	if !writable(t) {
		return
	}
	w.member(name)
	w.b = append(appendTime(append(w.b, '"'), t), '"')
}

// Encode returns f as JSON, spelled in its style. The error is an [*interact.Error]: the data does not fit its content type
// (Invalid in a request, AgentFailed in a reply).
func (f *Frame) Encode() ([]byte, error) {
	w := writer{b: append(make([]byte, 0, len(f.Data)+320), '{'), style: f.Style}
	var err error
	if f.Dialect == WTP && f.part != none {
		w.style.Capital, w.style.Both = true, false
		err = f.writeWTP(&w)
	} else {
		err = f.writeLMOS(&w)
	}
	return append(w.b, '}'), err
}

// writeLMOS writes f for the documents and for Kotlin.
func (f *Frame) writeLMOS(w *writer) error {
	info := byType[f.Type]
	w.text(sType, info.spell(f.Dialect))
	w.text(sThing, f.Thing) // Kotlin fails without it
	w.text(sID, f.ID)
	w.maybe(sCorrelation, f.Correlation)
	f.writeName(w, info)
	switch f.Type {
	case TypeError:
		f.writeFault(w)
		return nil
	case interact.Acknowledgement:
		w.text(sAcked, infoOf(f.op).spell(f.Dialect))
		return nil
	case interact.ActionStatus:
		return f.writeStatus(w)
	}
	if err := f.writeData(w, info.write); err != nil {
		return err
	}
	if f.Streams {
		w.raw(sStreams, []byte("true"))
	}
	f.writeRequest(w)
	w.when("timestamp", f.Time)
	return nil
}

// infoOf returns the description of a type, or an empty one.
func infoOf(t interact.Type) *typeInfo {
	if w := byType[t]; w != nil {
		return w
	}
	return &typeInfo{}
}

// writeName writes the affordance. A reading has it in both members (LMOS WebSocket subprotocol, tolerance 2), and so has a request to a
// peer that has not sent a frame yet.
func (f *Frame) writeName(w *writer, info *typeInfo) {
	switch {
	case f.Type == interact.PropertyReading, info.about == aboutProperty && w.style.Both:
		w.text(sProperty, f.Name)
		w.text(sName, f.Name)
	case info.about == aboutProperty && f.Dialect == Doc:
		w.text(sName, f.Name)
	case info.about == aboutProperty:
		w.text(sProperty, f.Name)
	case info.about == aboutAction:
		w.text(sAction, f.Name)
	case info.about == aboutEvent:
		w.text(sEvent, f.Name)
	}
}

// writeData writes the data to each of the members, and its content type. If a dialect requires the data, missing data is null:
// kotlin-wot cannot read a message without it, and its client then waits for 100 s.
func (f *Frame) writeData(w *writer, to []slot) error {
	raw, media, coded, err := f.payload()
	if err != nil || len(to) == 0 {
		return err
	}
	if raw == nil {
		if !f.hasData() {
			return nil
		}
		raw, media = []byte("null"), ""
	}
	for _, s := range to {
		w.raw(s, raw)
	}
	w.maybe(sMedia, media)
	if coded {
		w.raw(sBase64, []byte("true"))
	}
	return nil
}

// hasData reports whether the message must have its data (LMOS, message types; Web Thing Protocol, readproperty).
func (f *Frame) hasData() bool {
	if f.Dialect == WTP && f.part != none {
		return f.part == response && f.op == interact.ReadProperty
	}
	switch f.Type {
	case interact.PropertyReading, interact.PropertyReadings, interact.Event, interact.WriteProperty,
		interact.WriteAllProperties, interact.WriteMultipleProperties:
		return true
	}
	return false
}

// writeRequest writes the members that all requests may have.
func (f *Frame) writeRequest(w *writer) {
	if !f.IsRequest() {
		return
	}
	w.maybe(sActionID, f.ActionID)
	w.maybe(sAfter, f.After)
	w.maybe(sKey, f.Key)
	w.maybe(sDelegation, f.Delegation)
	w.maybe(sParent, f.TraceParent)
	w.maybe(sTraceState, f.TraceState)
	if f.Stream > 0 {
		w.raw(sStream, strconv.AppendUint(nil, uint64(f.Stream), 10))
		w.maybe(sMedia, f.ContentType)
	}
	if f.Hops > 0 && f.Type.Op() != "" {
		w.member(names[sHops][0])
		w.b = strconv.AppendUint(w.b, uint64(f.Hops), 10)
	}
	if !f.Deadline.IsZero() {
		w.raw(sLeft, strconv.AppendInt(nil, max(1, time.Until(f.Deadline).Milliseconds()), 10))
	}
	if f.From != nil {
		caller, _ := json.Marshal(f.From) // four texts
		w.raw(sCaller, caller)
	}
}

// writeStatus writes a state of an action in LMOS. The documents and Kotlin have three states (tolerance 7); the member state is
// exact.
func (f *Frame) writeStatus(w *writer) error {
	status := f.Status
	switch status {
	case interact.StatusRunning, interact.StatusInputRequired:
		status = interact.StatusPending
	case interact.StatusCancelled:
		status = interact.StatusFailed
	}
	w.text(sStatus, status.String())
	if status != f.Status {
		w.text(sState, f.Status.String())
	}
	w.maybe(sActionID, f.ActionID)
	w.when("timestamp", f.Time)
	if f.Status == interact.StatusFailed && f.ContentType == problem.MediaType {
		return f.writeFailure(w)
	}
	return f.writeData(w, byType[f.Type].write)
}

// writeFailure writes the problem of a failed action.
func (f *Frame) writeFailure(w *writer) error {
	raw, _, _, err := f.payload()
	if err == nil && raw != nil {
		w.raw(sError, raw)
	}
	return err
}

// writeWTP writes f for the Web Thing Protocol.
func (f *Frame) writeWTP(w *writer) error {
	op := f.op
	if f.part == request {
		op = f.Type
	}
	w.text(sType, partNames[f.part])
	w.text(sOp, op.Op())
	w.text(sThing, f.Thing)
	w.text(sID, f.ID)
	w.maybe(sCorrelation, f.Correlation)
	w.maybe(sName, f.Name)
	switch f.Type {
	case TypeError:
		f.writeFault(w)
	case interact.ActionStatus:
		if err := f.writeState(w, op); err != nil {
			return err
		}
	default:
		if err := f.writeData(w, f.slotsWTP()); err != nil {
			return err
		}
	}
	f.writeRequest(w)
	w.when("timestamp", f.Time)
	return nil
}

// slotsWTP are the members for the data. Notifications of a property carry it twice, since examples of the draft differ.
func (f *Frame) slotsWTP() []slot {
	if f.part == notification && f.Type == interact.PropertyReading {
		return byType[f.Type].write
	}
	return byType[f.Type].wtp
}

// writeState writes a state of an action in wtp: only the output, if it is available at once; the actionID of a cancelled action; else
// an ActionStatus.
func (f *Frame) writeState(w *writer, op interact.Type) error {
	switch {
	case op == interact.CancelAction:
		w.maybe(sActionID, f.ActionID)
		return nil
	case op == interact.InvokeAction && f.Status == interact.StatusCompleted:
		return f.writeData(w, byType[f.Type].wtp)
	}
	status := f.Status.Standard()
	if status == interact.StatusCancelled { // wtp deletes the state instead
		status = interact.StatusFailed
	}
	inner := writer{b: []byte{'{'}, style: w.style}
	inner.maybe(sActionID, f.ActionID)
	inner.text(sState, status.String())
	to := byType[f.Type].wtp
	if f.Status == interact.StatusFailed && f.ContentType == problem.MediaType {
		to = []slot{sError}
	}
	raw, media, coded, err := f.payload()
	if err != nil {
		return err
	}
	if raw != nil {
		inner.raw(to[0], raw)
	}
	inner.when("timeRequested", f.Began)
	if f.Status.Final() {
		inner.when("timeEnded", f.Time)
	}
	w.raw(sStatus, append(inner.b, '}'))
	if media != problem.MediaType {
		w.maybe(sMedia, media)
	}
	if coded {
		w.raw(sBase64, []byte("true"))
	}
	return nil
}
