package frame

import (
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// A Dialect is a variant of the messages.
type Dialect uint8

// The dialects. Undecided is LMOS, encoded as for Kotlin, whose reader is the strictest.
const (
	Undecided Dialect = iota
	Doc               // the LMOS documents
	Kotlin            // kotlin-wot
	WTP               // W3C Web Thing Protocol
)

var dialectNames = [...]string{Undecided: "undecided", Doc: "doc", Kotlin: "kotlin", WTP: "wtp"}

// String returns the name of d in lower case.
func (d Dialect) String() string { return dialectNames[d] }

// subprotocols are the known names with the dialects that they suggest (LMOS WebSocket subprotocol, handshake, which has no final name).
var subprotocols = map[string]Dialect{
	"lmosprotocol":     Doc,
	"v1.lmosprotocol":  Doc,
	"lmos":             Doc,
	"v1.lmos":          Doc,
	"webthingprotocol": WTP,
}

// Subprotocol returns the dialect that the subprotocol name, in any case, suggests; Undecided for an unknown one.
func Subprotocol(name string) (d Dialect, known bool) {
	d, known = subprotocols[strings.ToLower(name)]
	return d, known
}

// Negotiate returns the first known subprotocol in the list of the consumer, in the spelling of the consumer (RFC 6455 §4.2.2). It is
// empty if there is none: the Kotlin client sends no list.
func Negotiate(h http.Header) string {
	for _, offer := range strings.Split(strings.Join(h.Values("Sec-WebSocket-Protocol"), ","), ",") {
		offer = strings.TrimSpace(offer)
		if _, ok := Subprotocol(offer); ok {
			return offer
		}
	}
	return ""
}

// A Style is how frames are encoded for a peer.
type Style struct {
	Dialect Dialect
	// Proven means that the peer's own frames showed the dialect, not only the subprotocol.
	Proven bool
	// Capital spells thingID, not thingId. WTP is always so.
	Capital bool
	// Both spells each id and name of an LMOS request in both ways, for a peer that has sent no frame yet: the tables of the documents
	// have thingID and name, their later examples and Kotlin thingId and property (tolerance 1 and 2). Both ignore unknown members.
	Both bool
}

// WantsAck reports whether the peer waits for acknowledgements: Kotlin does, and the documents do not have them.
func (s Style) WantsAck() bool { return s.Dialect != Doc || !s.Proven }

// WantsSteps reports whether the peer accepts states of an action before the last: for Kotlin the first state is the result, and the Web
// Thing Protocol has one response.
func (s Style) WantsSteps() bool { return s.Dialect == Doc }

// Supports reports whether this style has a message for t. kotlin-wot closes the connection (1003) on messages without a class.
func (s Style) Supports(t interact.Type) bool {
	switch t {
	case interact.QueryAction, interact.CancelAction, interact.QueryAllActions, interact.SubscribeAllEvents,
		interact.UnsubscribeAllEvents, interact.ObserveAllProperties, interact.UnobserveAllProperties:
		return s.Dialect == Doc || s.Dialect == WTP
	case interact.ContinueAction:
		return s.Dialect == Doc
	}
	return true
}

// A DialectDetector detects the dialect of a peer from its frames. The reader of the connection owns it.
type DialectDetector struct {
	Assumed Dialect // by the subprotocol
	learned Dialect
	capital bool // of the last frame that spelled an ID
}

// Style returns the style of the response to f, and detects the dialect from f. If f does not show its dialect, the response has the
// previous dialect of the peer (LMOS WebSocket subprotocol, dialect detection). An unreadable frame gets a response in WTP if the peer
// uses WTP.
func (t *DialectDetector) Style(f *Frame) Style {
	if t.learned == Undecided && f.IsRequest() { // replies have the spelling of our requests
		t.learned = f.marks
	}
	s := Style{Dialect: f.marks, Proven: t.learned != Undecided}
	if s.Dialect == Undecided {
		s.Dialect = t.learned
	}
	if s.Dialect == Undecided {
		s.Dialect = t.Assumed
	}
	if f.Thing+f.ID+f.Correlation != "" {
		t.capital = f.Capital
	}
	switch s.Capital = t.capital; {
	case s.Dialect != WTP || f.part != none:
	case f.Type == 0: // the type is unknown
		f.part = response
	default:
		s.Dialect = Undecided // an LMOS frame among others
	}
	return s
}
