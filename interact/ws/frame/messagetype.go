package frame

import (
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// Types of messages that are not sent to Things: errors, and the registration of agents, which is an extension of lmosd.
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
	sDelegation
	slots // number of slots
)

// names are the accepted names of each member (LMOS: both thingID and thingId are in use; examples of the Web Thing Protocol misspell
// correlationID). Frames are written with the first one.
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
	sDelegation:  {"delegation"},
}

// A subject is the kind of affordance of a message.
type subject uint8

const (
	aboutThing subject = iota
	aboutProperty
	aboutAction
	aboutEvent
)

// slot returns the member of LMOS with the name of the affordance.
func (s subject) slot() slot {
	return [...]slot{aboutThing: sThing, aboutProperty: sProperty, aboutAction: sAction, aboutEvent: sEvent}[s]
}

// A typeInfo describes one type of message in all dialects.
type typeInfo struct {
	typ   interact.Type
	lmos  string // messageType; wtp has the operation of the type
	about subject
	// data are the members that may have the data, the best first. write (LMOS) and wtp are the members to which it is written.
	data, write, wtp []slot
	// answer is the type of the response in wtp, and note the type of a notification.
	answer, note interact.Type
}

type list = []slot

// messageTypes is the table of all messages (LMOS WebSocket subprotocol, message types; Web Thing Protocol, operations).
var messageTypes = []typeInfo{
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

	// A reading has its value twice: as "value" in the documents, and as "data" in Kotlin. "values" in place of "value" is accepted.
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

// Indexes of the tables above.
var (
	byType     = indexTypes()
	byName     = indexNames()
	byOp       = indexOps()
	slotByName = indexSlots()
)

func indexTypes() (all [256]*typeInfo) {
	for i := range messageTypes {
		all[messageTypes[i].typ] = &messageTypes[i]
	}
	return all
}

// indexNames returns the types by their names, unchanged and in lower case: Kotlin writes subscribeevent.
func indexNames() map[string]*typeInfo {
	all := map[string]*typeInfo{}
	for i := range messageTypes {
		all[messageTypes[i].lmos] = &messageTypes[i]
		all[strings.ToLower(messageTypes[i].lmos)] = &messageTypes[i]
	}
	return all
}

func indexOps() map[string]*typeInfo {
	all := map[string]*typeInfo{}
	for i := range messageTypes {
		if op := messageTypes[i].typ.Op(); op != "" {
			all[op] = &messageTypes[i]
		}
	}
	all["subscribeproperty"] = all["subscribeevent"] // an error in an example of the draft
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

// lookup returns the type with an LMOS messageType in any case, or nil.
func lookup(name string) *typeInfo {
	if w := byName[name]; w != nil {
		return w
	}
	return byName[strings.ToLower(name)]
}

// Name returns the messageType of t in LMOS; empty if it has none.
func Name(t interact.Type) string { return infoOf(t).lmos }

// AnswerTo returns the type of the response to a request of type t (Web Thing Protocol, operations); 0 if it has none.
func AnswerTo(t interact.Type) interact.Type { return infoOf(t).answer }

// spell returns the messageType of w in a dialect.
func (w *typeInfo) spell(d Dialect) string {
	if w.typ == interact.SubscribeEvent && d == Kotlin {
		return "subscribeevent"
	}
	return w.lmos
}
