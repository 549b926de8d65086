package tdd

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/jsonedit"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// maxTTL limits the duration of a registration, in seconds: 100 years.
const maxTTL = 100 * 365 * 24 * 3600

// An entry is the registration of an Enriched TD (WoT Discovery §7.1).
type entry struct {
	publication.Registration
	resembles string // the similar name of another Thing ([Options.Resembles])
	// organization is the verified organization of the owner; the zero value is none.
	organization directory.Affiliation
}

// The JSON names of members of an entry that are extensions of WoT Discovery.
const (
	resembles    = "lmosd:resembles"
	organization = "lmosd:organization"
)

// entryOf returns the entry of a Thing. The registration of a Thing of another node ends with its record.
func (s *Server) entryOf(r *td.Record) (e entry) {
	ours := false
	if s.o.Publisher != nil {
		e.Registration, ours = s.o.Publisher.Registered(r)
	}
	if !ours {
		e.Registration = publication.Registration{Expires: r.Expires}
	}
	if s.o.Resembles != nil {
		e.resembles = s.o.Resembles(r)
	}
	return e
}

// entryFor is entryOf with the verified organization of the owner, for the caller of ctx. A claimed one is in the TD.
func (s *Server) entryFor(ctx context.Context, r *td.Record) entry {
	e := s.entryOf(r)
	if s.o.Affiliation != nil {
		if a := s.o.Affiliation(ctx, &td.Description{Thing: &td.Thing{}, Record: r}); a != nil {
			e.organization = *a
		}
	}
	return e
}

// appendTo appends r as JSON, with the time of retrieval unless it is zero. Times are in UTC (tdd-absolute-time).
func (r entry) appendTo(dst []byte, retrieved time.Time) []byte {
	separator := byte('{')
	stamp := func(name string, t time.Time) {
		if t.IsZero() {
			return
		}
		dst = append(append(append(dst, separator, '"'), name...), `":"`...)
		dst = append(t.UTC().Truncate(time.Millisecond).AppendFormat(dst, time.RFC3339Nano), '"')
		separator = ','
	}
	stamp("created", r.Created)
	stamp("modified", r.Modified)
	stamp("expires", r.Expires)
	stamp("retrieved", retrieved)
	if r.TTL > 0 {
		dst = append(append(dst, separator), `"ttl":`...)
		dst = strconv.AppendFloat(dst, r.TTL, 'f', -1, 64)
		separator = ','
	}
	if r.resembles != "" {
		text, _ := json.Marshal(r.resembles) // strings always encode
		dst = append(append(append(dst, separator), `"`+resembles+`":`...), text...)
		separator = ','
	}
	if r.organization != (directory.Affiliation{}) {
		text, _ := json.Marshal(r.organization) // strings always encode
		dst = append(append(append(dst, separator), `"`+organization+`":`...), text...)
		separator = ','
	}
	if separator == '{' {
		dst = append(dst, '{')
	}
	return append(dst, '}')
}

// enrich appends a TD with its registration. It changes nothing else, but adds the discovery context to @context if it is missing
// (tdd-context-injection).
func (s *Server) enrich(dst, raw []byte, r entry, retrieved time.Time) []byte {
	raw = withContext(raw)
	end := bytes.LastIndexByte(raw, '}') // a TD is a JSON object
	body := bytes.TrimRight(raw[:end], " \t\r\n")
	dst = append(dst, body...)
	if body[len(body)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(dst, `"registration":`...)
	return append(r.appendTo(dst, retrieved), '}')
}

// discoveryContext is the discovery context as JSON.
const discoveryContext = `"` + td.ContextDiscovery + `"`

// withContext returns a TD with the discovery context, which it adds if it is missing: after the contexts of TDs and before the maps, whose terms take
// precedence.
func withContext(raw []byte) []byte {
	raw = raw[jsonedit.SkipSpace(raw, 0):]
	var room [32]jsonedit.Member
	members, err := jsonedit.Members(room[:0], raw)
	at := members.Of("@context")
	if err != nil || at.To == 0 { // verified TDs are valid
		return raw
	}
	if string(raw[at.From:at.To]) == discoveryContext {
		return raw
	}
	if raw[at.From] != '[' {
		before, after := "["+discoveryContext+",", "]"
		if raw[at.From] == '"' {
			before, after = "[", ","+discoveryContext+"]"
		}
		return slices.Concat(raw[:at.From], []byte(before), raw[at.From:at.To], []byte(after), raw[at.To:])
	}
	urls, isURL := at.From+1, true // urls is the end of the leading URLs
	for i := jsonedit.SkipSpace(raw, at.From+1); raw[i] != ']'; {
		end := jsonedit.SkipValue(raw, i)
		if string(raw[i:end]) == discoveryContext {
			return raw
		}
		if isURL = isURL && raw[i] == '"'; isURL {
			urls = end
		}
		if i = jsonedit.SkipSpace(raw, end); raw[i] == ',' {
			i = jsonedit.SkipSpace(raw, i+1)
		}
	}
	added := "," + discoveryContext
	if urls == at.From+1 { // a map is first
		added = discoveryContext + ","
	}
	return slices.Concat(raw[:urls], []byte(added), raw[urls:])
}

// takeRegistration removes the member registration from the TD of a client. It ignores the members of the registration that are read-only
// or computed: all but expires and ttl.
func takeRegistration(raw []byte) (rest []byte, r publication.Registration, err error) {
	if !bytes.Contains(raw, []byte("registration")) {
		return raw, r, nil
	}
	members, err := jcs.Members(raw)
	if err != nil {
		return raw, r, nil // td.Parse reports the error
	}
	for i, m := range members {
		if m.Name == "registration" {
			v, err := jcs.View(m.Raw)
			if err == nil {
				r, err = readRegistration(v, r, time.Now())
			}
			return jcs.Join(append(members[:i:i], members[i+1:]...)), r, err
		}
	}
	return raw, r, nil
}

// readRegistration merges the registration of a client into was; null removes a member.
func readRegistration(v any, was publication.Registration, now time.Time) (publication.Registration, error) {
	fields, ok := v.(map[string]any)
	if v == nil {
		return publication.Registration{Created: was.Created}, nil
	}
	if !ok {
		return was, badRegistration("", "expected an object")
	}
	for _, name := range []string{"created", "modified", "expires", "retrieved"} {
		text, isText := fields[name].(string)
		at, err := time.Parse(time.RFC3339, text)
		switch value, there := fields[name]; {
		case !there:
		case name == "expires" && value == nil:
			was.Expires, was.TTL = time.Time{}, 0
		case value == nil:
		case !isText || err != nil:
			return was, badRegistration("/"+name, "expected a time with its offset (RFC 3339)")
		case name == "expires":
			was.Expires, was.TTL = at, 0
		}
	}
	switch ttl, there := fields["ttl"]; {
	case !there:
	case ttl == nil:
		was.Expires, was.TTL = time.Time{}, 0
	default:
		n, isNumber := ttl.(float64)
		if !isNumber || n <= 0 || n > maxTTL || math.IsNaN(n) {
			return was, badRegistration("/ttl", "expected a number of seconds above 0, at most "+strconv.Itoa(maxTTL))
		}
		was.TTL, was.Expires = n, time.Time{}
	}
	if was.TTL == 0 && was.HasExpired(now) {
		return was, badRegistration("/expires", "expected a time in the future")
	}
	return was, nil
}

func badRegistration(pointer, reason string) error {
	return &interact.Error{Code: interact.BadTD, Hint: "leave registration out, or give ttl or expires only",
		Issues: []td.Issue{{Pointer: "/registration" + pointer, Reason: reason}}}
}
