package frame

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// timestamp reads a time of any dialect: RFC 3339, also with the suffix of RFC 9557, or the seconds or milliseconds since 1970 of Kotlin.
// It is zero for an invalid time.
func timestamp(raw []byte) time.Time {
	if len(raw) == 0 {
		return time.Time{}
	}
	if text, ok := jsonedit.String(raw); ok {
		return parseTime(text)
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || n <= 0 || n > 253402300799e3 { // the end of the year 9999 in milliseconds
		return time.Time{}
	}
	if n >= 1e11 { // as seconds the year 5138, as milliseconds 1973
		n /= 1000
	}
	seconds, rest := math.Modf(n)
	return time.Unix(int64(seconds), int64(math.Round(rest*1e6))*1000).UTC() // a float64 has no more than microseconds here
}

func parseTime(text string) time.Time {
	text, _, _ = strings.Cut(text, "[") // RFC 9557 §4: 2026-01-01T00:00:00Z[Europe/Berlin]
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.UTC().Year() < 1 || t.UTC().Year() > 9999 {
		return time.Time{}
	}
	return t.UTC()
}

// appendTime appends t in RFC 3339 and UTC, which all readers accept. t must be writable.
func appendTime(b []byte, t time.Time) []byte { return t.UTC().AppendFormat(b, time.RFC3339Nano) }

func writable(t time.Time) bool { return !t.IsZero() && t.UTC().Year() >= 1 && t.UTC().Year() <= 9999 }
