package frame

import (
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// Types of messages that no thing sees: errors, and how agents come and go, which is an extension of lmosd's.
const (
	TypeError      interact.Type = 240
	TypeRegister   interact.Type = 241 // registerThing
	TypeRegistered interact.Type = 242 // thingRegistered
	TypeUnregister interact.Type = 243 // unregisterThing
)

// A slot is a member of a frame.
type slot uint8

const (
	sType slot = iota
	sOp
	sThing
	sID
	sCorrelation
	sName
	sProperty
	sAction
	sEvent
	sNames
	sProperties
	sData
	sValue
	sValues
	sInput
	sOutput
	sStatuses
	sStatus
	sState
	sError
	sTime
	sParent
	sTraceState
	sActionID
	sAfter
	sKey
	sAcked
	sMedia
	sBase64
	sHops
	sStreams
	sStream
	sCaller
	sLeft
	slots // how many there are
)

// names are the members by the names that are read (LMOS: both thingID and thingId are in use; the Web Thing Protocol's own
// examples misspell correlationID). The first of each is the one that is written.
var names = [slots][]string{
	sType:        {"messageType"},
	sOp:          {"operation"},
	sThing:       {"thingId", "thingID"},
	sID:          {"messageId", "messageID"},
	sCorrelation: {"correlationId", "correlationID", "correlatonID", "correllationID"},
	sName:        {"name"},
	sProperty:    {"property"},
	sAction:      {"action"},
	sEvent:       {"event"},
	sNames:       {"names"},
	sProperties:  {"properties"},
	sData:        {"data"},
	sValue:       {"value"},
	sValues:      {"values"},
	sInput:       {"input"},
	sOutput:      {"output"},
	sStatuses:    {"statuses"},
	sStatus:      {"status"},
	sState:       {"state"},
	sError:       {"error"},
	sTime:        {"timestamp"},
	sParent:      {"traceparent"},
	sTraceState:  {"tracestate"},
	sActionID:    {"actionID", "actionId"},
	sAfter:       {"lastNotificationId", "lastNotificationID"},
	sKey:         {"idempotencyKey"},
	sAcked:       {"message"},
	sMedia:       {"contentType"},
	sBase64:      {"base64"},
	sHops:        {"hops"},
	sStreams:     {"streams"},
	sStream:      {"stream"},
	sCaller:      {"caller"},
	sLeft:        {"timeLeft"},
}

// A subject is the kind of affordance of a message.
type subject uint8

const (
	aboutThing subject = iota
	aboutProperty
	aboutAction
	aboutEvent
)

// slot is the member of LMOS that names the affordance of a message.
func (s subject) slot() slot {
	return [...]slot{aboutThing: sThing, aboutProperty: sProperty, aboutAction: sAction, aboutEvent: sEvent}[s]
}

// A word is one type of message in all dialects.
type word struct {
	typ   interact.Type
	lmos  string // messageType; wtp has the operation of the type
	about subject
	// data are the members that may hold the data, the best first. write and wtp are those that it is written to.
	data, write, wtp []slot
	// answer is what a response of wtp to it is, and note what a notification about it is.
	answer, note interact.Type
}

type list = []slot

// words is the table of all messages (LMOS WebSocket subprotocol, message types; Web Thing Protocol, operations).
var words = []word{
	{interact.ReadProperty, "readProperty", aboutProperty, list{sData}, list{sData}, list{sData}, interact.PropertyReading, 0}, // of an address
	{interact.WriteProperty, "writeProperty", aboutProperty, list{sData, sValue}, list{sData}, list{sValue},
		interact.PropertyReading, 0},
	{interact.ReadAllProperties, "readAllProperties", aboutThing, nil, nil, nil, interact.PropertyReadings, 0},
	{interact.ReadMultipleProperties, "readMultipleProperties", aboutThing, list{sProperties, sNames, sData}, list{sProperties},
		list{sNames}, interact.PropertyReadings, 0},
	{interact.WriteAllProperties, "writeAllProperties", aboutThing, list{sData, sValues, sValue}, list{sData}, list{sValues},
		interact.PropertyReadings, 0},
	{interact.WriteMultipleProperties, "writeMultipleProperties", aboutThing, list{sData, sValues, sValue}, list{sData},
		list{sValues}, interact.PropertyReadings, 0},
	{interact.ObserveProperty, "observeProperty", aboutProperty, list{sData}, list{sData}, list{sData},
		interact.Acknowledgement, interact.PropertyReading},
	{interact.UnobserveProperty, "unobserveProperty", aboutProperty, nil, nil, nil, interact.Acknowledgement, 0},
	{interact.ObserveAllProperties, "observeAllProperties", aboutThing, nil, nil, nil,
		interact.Acknowledgement, interact.PropertyReading},
	{interact.UnobserveAllProperties, "unobserveAllProperties", aboutThing, nil, nil, nil, interact.Acknowledgement, 0},
	{interact.InvokeAction, "invokeAction", aboutAction, list{sInput, sData}, list{sInput}, list{sInput},
		interact.ActionStatus, interact.ActionStatus},
	{interact.QueryAction, "queryAction", aboutAction, nil, nil, nil, interact.ActionStatus, 0},
	{interact.CancelAction, "cancelAction", aboutAction, nil, nil, nil, interact.ActionStatus, 0},
	{interact.ContinueAction, "continueAction", aboutAction, list{sInput, sData}, list{sInput}, list{sInput}, interact.Acknowledgement, 0},
	{interact.QueryAllActions, "queryAllActions", aboutThing, nil, nil, nil, interact.ActionStatuses, 0},
	{interact.SubscribeEvent, "subscribeEvent", aboutEvent, list{sData}, list{sData}, list{sData},
		interact.Acknowledgement, interact.Event},
	{interact.UnsubscribeEvent, "unsubscribeEvent", aboutEvent, nil, nil, nil, interact.Acknowledgement, 0},
	{interact.SubscribeAllEvents, "subscribeAllEvents", aboutThing, nil, nil, nil, interact.Acknowledgement, interact.Event},
	{interact.UnsubscribeAllEvents, "unsubscribeAllEvents", aboutThing, nil, nil, nil, interact.Acknowledgement, 0},

	// A reading carries its value twice: the documents call it value, Kotlin data.
	// The peer that confuses value and values is understood, too.
	{interact.PropertyReading, "propertyReading", aboutProperty, list{sValue, sData, sValues}, list{sData, sValue},
		list{sValue}, 0, 0},
	{interact.PropertyReadings, "propertyReadings", aboutThing, list{sData, sValues, sValue}, list{sData}, list{sValues}, 0, 0},
	{interact.ActionStatus, "actionStatus", aboutAction, list{sOutput, sData}, list{sOutput}, list{sOutput}, 0, 0},
	{interact.ActionStatuses, "actionStatuses", aboutThing, list{sStatuses, sData}, list{sStatuses}, list{sStatuses}, 0, 0},
	{interact.Event, "event", aboutEvent, list{sData, sValue}, list{sData}, list{sData}, 0, 0},
	{interact.Acknowledgement, "acknowledgement", aboutThing, nil, nil, nil, 0, 0},
	{TypeError, "error", aboutThing, nil, nil, nil, 0, 0},
	{TypeRegister, "registerThing", aboutThing, list{sData}, list{sData}, list{sData}, 0, 0},
	{TypeRegistered, "thingRegistered", aboutThing, nil, nil, nil, 0, 0},
	{TypeUnregister, "unregisterThing", aboutThing, nil, nil, nil, 0, 0},
}

// What follows is made from the tables above.
var (
	wordByType = indexTypes()
	wordByName = indexWords()
	wordByOp   = indexOps()
	slotByName = indexSlots()
)

func indexTypes() (all [256]*word) {
	for i := range words {
		all[words[i].typ] = &words[i]
	}
	return all
}

// indexWords has each word as it is spelled, and in lower case: kotlin writes subscribeevent.
func indexWords() map[string]*word {
	all := map[string]*word{}
	for i := range words {
		all[words[i].lmos] = &words[i]
		all[strings.ToLower(words[i].lmos)] = &words[i]
	}
	return all
}

func indexOps() map[string]*word {
	all := map[string]*word{}
	for i := range words {
		if op := words[i].typ.Op(); op != "" {
			all[op] = &words[i]
		}
	}
	all["subscribeproperty"] = all["subscribeevent"] // a slip in an example of the draft
	return all
}

func indexSlots() map[string]slot {
	all := map[string]slot{}
	for s, spellings := range names {
		for _, name := range spellings {
			all[name] = slot(s)
		}
	}
	return all
}

// lookup returns the word of an LMOS messageType in any case, or nil.
func lookup(name string) *word {
	if w := wordByName[name]; w != nil {
		return w
	}
	return wordByName[strings.ToLower(name)]
}

// Name returns the messageType that t has in LMOS; empty if there is none.
func Name(t interact.Type) string { return wordOf(t).lmos }

// AnswerTo returns the type of the response to a request of type t (Web Thing Protocol, operations); 0 if it has none.
func AnswerTo(t interact.Type) interact.Type { return wordOf(t).answer }

// spell returns the messageType of w in a dialect.
func (w *word) spell(d Dialect) string {
	if w.typ == interact.SubscribeEvent && d == Kotlin {
		return "subscribeevent"
	}
	return w.lmos
}
