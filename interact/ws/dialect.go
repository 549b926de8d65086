package ws

import (
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// A dialect is one of the spellings of the messages.
type dialect uint8

const (
	undecided dialect = iota // LMOS, spoken to as kotlin, whose reader is the strictest
	doc                      // the LMOS documents
	kotlin                   // kotlin-wot
	wtp                      // W3C Web Thing Protocol
)

// subprotocols are the names that are understood, and what to assume of who offers them (LMOS WebSocket subprotocol,
// handshake; the name was never decided).
var subprotocols = map[string]dialect{
	"lmosprotocol":     doc,
	"v1.lmosprotocol":  doc,
	"lmos":             doc,
	"v1.lmos":          doc,
	"webthingprotocol": wtp,
}

// negotiate returns the first subprotocol of the consumer's list that is known, as the consumer spelled it. It is empty if
// there is none: the Kotlin client offers none.
func negotiate(h http.Header) string {
	for _, offer := range strings.Split(strings.Join(h.Values("Sec-WebSocket-Protocol"), ","), ",") {
		offer = strings.TrimSpace(offer)
		if _, ok := subprotocols[strings.ToLower(offer)]; ok {
			return offer
		}
	}
	return ""
}

// A style is how frames are spelled to a peer.
type style struct {
	dialect dialect
	// proven tells that the peer's own frames showed the dialect, not only the subprotocol.
	proven bool
	// capital spells thingID, not thingId. wtp is always so.
	capital bool
}

// wantsAck reports whether the peer waits for acknowledgements: Kotlin does, the documents do not have them.
func (s style) wantsAck() bool { return s.dialect != doc || !s.proven }

// wantsSteps reports whether the peer takes states of an action before the last: Kotlin takes the first as the result.
func (s style) wantsSteps() bool { return s.dialect == doc }

// knows reports whether a peer that is asked in this style has a message for t. kotlin-wot closes the connection (1003) on
// those it has no class for.
func (s style) knows(t interact.Type) bool {
	switch t {
	case interact.QueryAction, interact.CancelAction, interact.QueryAllActions, interact.SubscribeAllEvents,
		interact.UnsubscribeAllEvents, interact.ObserveAllProperties, interact.UnobserveAllProperties:
		return s.dialect == doc || s.dialect == wtp
	}
	return true
}

// A tongue is what is known of a peer's dialect. It belongs to the reader of the connection.
type tongue struct {
	assumed, learned dialect
	capital          bool // of the last frame that spelled an ID
}

// style returns how to answer f, and learns from it. A frame that shows its own dialect is answered in that; one that does
// not, as the peer spoke before.
func (t *tongue) style(f *frame) style {
	if t.learned == undecided && f.asks() { // replies to us are spelled as we asked
		t.learned = f.marks
	}
	s := style{dialect: f.marks, proven: t.learned != undecided, capital: f.capital}
	if s.dialect == undecided {
		s.dialect = t.learned
	}
	if s.dialect == undecided {
		s.dialect = t.assumed
	}
	if f.Thing+f.ID+f.Correlation != "" {
		t.capital = f.capital
	}
	switch s.capital = t.capital; {
	case s.dialect != wtp || f.part != none:
	case f.Type == 0: // nobody knows what it was to be
		f.part = response
	default:
		s.dialect = undecided // an LMOS frame among others
	}
	return s
}
