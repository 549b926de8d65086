package rest

import "strings"

// Names that both sides of the binding share.
const (
	// EventIDHeader is the id of the event, in the response to a long poll and in a delivery. The consumer sends it as ?after= in the next
	// poll, so that no event is lost between two polls. EventNameHeader is the affordance of the event, if the consumer requested all.
	EventIDHeader   = "Lmos-Event-Id"
	EventNameHeader = "Lmos-Event-Name"
)

// maxName limits the id and the name of an event, in bytes (see interact.Message).
const maxName = 256

// boundedID returns id, or "" if it cannot be sent back.
func boundedID(id string) string {
	if len(id) > maxName || strings.IndexByte(id, 0) >= 0 {
		return ""
	}
	return id
}
