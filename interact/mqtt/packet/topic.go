package packet

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxTopic limits topics and filters in bytes, of the 65,535 that MQTT allows: an id of a thing has 1024, three times as many
// escaped. maxLevels limits their depth.
const (
	MaxTopic  = 4096
	maxLevels = 128
)

// Topic returns the topic of an affordance: "{thing}/actions/{name}". kind is "properties", "actions" or "events"; without kind it is
// the topic of the Thing itself. Names are escaped like the segments of a path (RFC 3986 §2.1), and so are the wildcards of MQTT.
func Topic(thing, kind, name string) string {
	if kind == "" {
		return EscapeLevel(thing)
	}
	return EscapeLevel(thing) + "/" + kind + "/" + EscapeLevel(name)
}

// EscapeLevel writes a name as one level of a topic.
func EscapeLevel(name string) string {
	name = strings.ReplaceAll(url.PathEscape(name), "+", "%2B")
	if strings.HasPrefix(name, "$") { // topics of the broker (MQTT 5 §4.7.2)
		name = "%24" + name[1:]
	}
	return name
}

// UnescapeLevel decodes percent-encoding. A level with an invalid encoding stays as it is: kotlin-wot writes ids raw.
func UnescapeLevel(level string) string {
	if name, err := url.PathUnescape(level); err == nil {
		return name
	}
	return level
}

// IsTopic reports whether a message can be published to topic (MQTT 5 §4.7).
func IsTopic(topic string) bool { return IsText(topic) && !strings.ContainsAny(topic, "+#") }

// IsFilter reports whether filter can be subscribed to (MQTT 5 §4.7.1): # is the last level, + a whole one.
func IsFilter(filter string) bool {
	if !IsText(filter) {
		return false
	}
	rest, more := filter, true
	for more {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		if level == "#" && more || level != "#" && level != "+" && strings.ContainsAny(level, "+#") {
			return false
		}
	}
	return true
}

// IsText reports whether s is an MQTT string (MQTT 5 §1.5.4) within the limits of this package.
func IsText(s string) bool {
	return s != "" && len(s) <= MaxTopic && strings.Count(s, "/") < maxLevels && utf8.ValidString(s) &&
		strings.IndexFunc(s, unicode.IsControl) < 0
}

// IsPattern reports whether filter has a wildcard.
func IsPattern(filter string) bool { return strings.ContainsAny(filter, "+#") }

// Matches reports whether filter covers topic. Wildcards at the beginning do not cover topics of the broker (MQTT 5 §4.7.2).
func Matches(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") != strings.HasPrefix(filter, "$") {
		return false
	}
	for {
		want, restWant, moreWant := strings.Cut(filter, "/")
		have, restHave, moreHave := strings.Cut(topic, "/")
		switch {
		case want == "#":
			return true
		case want != have && (want != "+" || have == "#"): // have is a filter where filters are compared
			return false
		case !moreHave:
			return !moreWant || restWant == "#" // "a/#" covers "a"
		case !moreWant:
			return false
		}
		filter, topic = restWant, restHave
	}
}

// Overlap reports whether both filters cover a common topic.
func Overlap(a, b string) bool {
	if strings.HasPrefix(a, "$") != strings.HasPrefix(b, "$") {
		return false
	}
	for {
		levelA, restA, moreA := strings.Cut(a, "/")
		levelB, restB, moreB := strings.Cut(b, "/")
		switch {
		case levelA == "#" || levelB == "#":
			return true
		case levelA != levelB && levelA != "+" && levelB != "+":
			return false
		case !moreA && !moreB:
			return true
		case !moreA:
			return restB == "#"
		case !moreB:
			return restA == "#"
		}
		a, b = restA, restB
	}
}

// Covered removes duplicates and filters whose topics are all covered by another one.
func Covered(filters []string) []string {
	var kept []string
	for i, f := range filters {
		inside := false
		for j, other := range filters {
			inside = inside || f == other && j < i || f != other && Matches(other, f)
		}
		if !inside {
			kept = append(kept, f)
		}
	}
	return kept
}
