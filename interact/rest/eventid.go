package rest

import "strings"

// Names that both sides of the binding share.
const (
	// EventIDHeader is, in the response to a long poll and in a delivery, the id of the event, which the consumer sends as ?after= next
	// time, so that it misses no event between two polls. EventNameHeader is the affordance of the event, if the consumer requested
	// all of them.
	EventIDHeader   = "Lmos-Event-Id"
	EventNameHeader = "Lmos-Event-Name"
)

// maxName is the limit of the id and the name of an event, in bytes (see interact.Message).
const maxName = 256

// boundedID returns id, or "" if it cannot be sent back.
func boundedID(id string) string {
	if len(id) > maxName || strings.IndexByte(id, 0) >= 0 {
		return ""
	}
	return id
}
