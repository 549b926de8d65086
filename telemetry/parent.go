package telemetry

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// parentLen is the length of a traceparent of version 00: "00-" trace id "-" parent id "-" flags (W3C Trace Context §3.2).
const parentLen = 55

// parseParent reads a traceparent (W3C Trace Context §3.2.2, §4.3); of later versions the known part. If ok is false, a new trace starts.
func parseParent(s string) (c trace.SpanContextConfig, ok bool) {
	if len(s) < parentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return c, false
	}
	var version, flags [1]byte
	digits := lowerHex(version[:], s[:2]) && lowerHex(c.TraceID[:], s[3:35]) && lowerHex(c.SpanID[:], s[36:52]) &&
		lowerHex(flags[:], s[53:55])
	switch {
	case !digits, !c.TraceID.IsValid(), !c.SpanID.IsValid(),
		version[0] == 0xff, version[0] == 0 && len(s) != parentLen, len(s) > parentLen && s[parentLen] != '-':
		return trace.SpanContextConfig{}, false // a trace id is used only with a valid parent id
	}
	c.TraceFlags, c.Remote = trace.TraceFlags(flags[0]), true
	return c, true
}

// lowerHex decodes s, which has two digits for each byte of dst. Capital letters are invalid (§3.2.2.1).
func lowerHex(dst []byte, s string) bool {
	if strings.ContainsAny(s, "ABCDEF") {
		return false
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}

// format returns the traceparent of a recorded span: sampled, and with the random flag of the parent (Level 2 §3.2.2.5.2).
func format(c trace.SpanContext, parent trace.TraceFlags) string {
	flags := trace.FlagsSampled | parent&trace.FlagsRandom
	id, span := c.TraceID(), c.SpanID()
	return write(id[:], span[:], byte(flags))
}

// newParent returns a traceparent of a new trace that is not recorded.
func newParent() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	return write(b[:16], b[16:], 0)
}

func write(id, span []byte, flags byte) string {
	var s [parentLen]byte
	copy(s[:], "00-")
	hex.Encode(s[3:], id)
	s[35] = '-'
	hex.Encode(s[36:], span)
	s[52] = '-'
	hex.Encode(s[53:], []byte{flags})
	return string(s[:])
}
