package jsonedit

// maxDepth is the maximum nesting of encoding/json.
const maxDepth = 10_000

// Valid is [encoding/json.Valid] in a third of the time: bridges call it for every message.
func Valid(text []byte) bool {
	end, ok := value(text, SkipSpace(text, 0), 0)
	return ok && SkipSpace(text, end) == len(text)
}

// value returns the end of the value that begins at i, at a nesting depth.
func value(text []byte, i, depth int) (end int, ok bool) {
	if i >= len(text) || depth > maxDepth {
		return i, false
	}
	switch c := text[i]; c {
	case '{':
		return object(text, i, depth+1)
	case '[':
		return array(text, i, depth+1)
	case '"':
		return ValidString(text, i)
	case 't':
		return literal(text, i, "true")
	case 'f':
		return literal(text, i, "false")
	case 'n':
		return literal(text, i, "null")
	}
	return number(text, i)
}

func object(text []byte, i, depth int) (end int, ok bool) {
	if depth > maxDepth {
		return i, false
	}
	if i = SkipSpace(text, i+1); i < len(text) && text[i] == '}' {
		return i + 1, true
	}
	for {
		if i >= len(text) || text[i] != '"' {
			return i, false
		}
		if i, ok = ValidString(text, i); !ok {
			return i, false
		}
		if i = SkipSpace(text, i); i >= len(text) || text[i] != ':' {
			return i, false
		}
		if i, ok = value(text, SkipSpace(text, i+1), depth); !ok {
			return i, false
		}
		var more bool
		if i, more, ok = next(text, i, '}'); !more {
			return i, ok
		}
	}
}

func array(text []byte, i, depth int) (end int, ok bool) {
	if depth > maxDepth {
		return i, false
	}
	if i = SkipSpace(text, i+1); i < len(text) && text[i] == ']' {
		return i + 1, true
	}
	for {
		if i, ok = value(text, i, depth); !ok {
			return i, false
		}
		var more bool
		if i, more, ok = next(text, i, ']'); !more {
			return i, ok
		}
	}
}

// next consumes the separator after a value of an object or an array that last ends, and reports whether another value follows at i.
func next(text []byte, at int, last byte) (i int, more, ok bool) {
	i = SkipSpace(text, at)
	switch {
	case i >= len(text):
		return i, false, false
	case text[i] == ',':
		return SkipSpace(text, i+1), true, true
	}
	return i + 1, false, text[i] == last
}

// plain are the bytes of a string that need no escape (RFC 8259 §7).
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// ValidString returns the end of the string that begins at text[i]; ok is false if it is not valid, or does not end.
func ValidString(text []byte, i int) (end int, ok bool) {
	for i++; i < len(text); i++ {
		if plain[text[i]] {
			continue
		}
		if text[i] == '"' {
			return i + 1, true
		}
		if text[i] != '\\' || i+1 >= len(text) {
			return i, false
		}
		i++
		switch text[i] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		case 'u':
			for range 4 {
				if i++; i >= len(text) || !hex(text[i]) {
					return i, false
				}
			}
		default:
			return i, false
		}
	}
	return i, false
}

func hex(c byte) bool { return digit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

func literal(text []byte, i int, word string) (end int, ok bool) {
	end = i + len(word)
	return end, end <= len(text) && string(text[i:end]) == word
}

// number skips a number (RFC 8259 §6).
func number(text []byte, i int) (end int, ok bool) {
	if text[i] == '-' {
		i++
	}
	switch {
	case i < len(text) && text[i] == '0':
		i++
	default:
		if i, ok = digits(text, i); !ok {
			return i, false
		}
	}
	if i < len(text) && text[i] == '.' {
		if i, ok = digits(text, i+1); !ok {
			return i, false
		}
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		if i++; i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		return digits(text, i)
	}
	return i, true
}

// digits skips one or more digits.
func digits(text []byte, i int) (end int, ok bool) {
	end = i
	for end < len(text) && digit(text[end]) {
		end++
	}
	return end, end > i
}
