package jcs

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// maxDepth is the maximum nesting of arrays and objects: 64 pairs of brackets.
const maxDepth = 64

// errTooLarge means that the input exceeds the limit of the caller. It was not read.
var errTooLarge = errors.New("JSON too large")

// A SyntaxError is the position and the reason why an input is not strict JSON.
type SyntaxError struct {
	Offset int    // in bytes, from 0
	Line   int    // from 1
	Column int    // in characters, from 1
	Msg    string // reason
}

// Error returns the reason with line and column.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Msg)
}

// Decode reads one JSON value from b, of at most max bytes. The value consists of nil, bool, float64, string, []any
// and map[string]any, and shares no memory with b. An integer is refused if its digits are not exactly those of its
// binary64 value; that concerns some beyond 2^53. The error is a [*SyntaxError], or wraps [errTooLarge].
func Decode(b []byte, max int) (any, error) {
	if len(b) > max {
		return nil, fmt.Errorf("%w: %d bytes, %d are allowed", errTooLarge, len(b), max)
	}
	return decode(string(b))
}

// View is [Decode] without a limit and without copies: the strings of the value are parts of b, and change with b.
func View(b []byte) (any, error) { return decode(unsafe.String(unsafe.SliceData(b), len(b))) }

func decode(src string) (v any, err error) {
	d := decoder{src: src}
	err = d.catch(func() {
		d.begin()
		v = d.value()
		d.end()
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Object is [Decode] for a document: other values than objects are rejected.
func Object(b []byte, max int) (map[string]any, error) {
	v, err := Decode(b, max)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, &SyntaxError{Line: 1, Column: 1, Msg: "a JSON object is needed here, not " + kindOf(v)}
	}
	return m, nil
}

// A Member is one name and value of an object. Raw is the value as it was written, without the space around it.
type Member struct {
	Name string // unescaped
	Raw  []byte
}

// Members returns the members of the object b in the order in which they were written. Raw slices point into b. The
// whole of b is checked as [Decode] does; the caller limits its size.
func Members(b []byte) ([]Member, error) {
	d := decoder{src: string(b)}
	var ms []Member
	err := d.catch(func() {
		d.begin()
		if d.space(); d.peek() != '{' {
			d.fail(d.i, "a JSON object is needed here")
		}
		d.object(func(name string, from, to int) {
			ms = append(ms, Member{name, b[from:to:to]})
		})
		d.end()
	})
	if err != nil {
		return nil, err
	}
	return ms, nil
}

// A decoder scans src once from the front; strings without escapes are slices of it. i is the next byte. A syntax error unwinds as a panic with a *SyntaxError,
// which catch returns: the grammar then reads without an error check in every second line.
type decoder struct {
	src   string
	i     int
	depth int
	tiny  int // numbers so far that are slow to convert
}

// begin rejects input that is not UTF-8 text.
func (d *decoder) begin() {
	if strings.HasPrefix(d.src, "\ufeff") {
		d.fail(0, "byte order mark")
	}
	if !utf8.ValidString(d.src) {
		d.fail(badUTF8(d.src), "bytes that are not UTF-8")
	}
}

func (d *decoder) catch(parse func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *SyntaxError:
			err = r
		default:
			panic(r)
		}
	}()
	parse()
	return nil
}

func (d *decoder) fail(at int, format string, args ...any) {
	panic(d.syntax(at, fmt.Sprintf(format, args...)))
}

func (d *decoder) syntax(at int, msg string) *SyntaxError {
	before := d.src[:at]
	line := strings.LastIndexByte(before, '\n') + 1
	return &SyntaxError{
		Offset: at,
		Line:   1 + strings.Count(before, "\n"),
		Column: 1 + utf8.RuneCountInString(before[line:]),
		Msg:    msg,
	}
}

// peek returns the next byte, or 0 at the end; a zero byte is invalid outside of strings as well.
func (d *decoder) peek() byte {
	if d.i < len(d.src) {
		return d.src[d.i]
	}
	return 0
}

func (d *decoder) space() {
	for d.i < len(d.src) {
		switch d.src[d.i] {
		case ' ', '\t', '\n', '\r':
			d.i++
		default:
			return
		}
	}
}

func (d *decoder) end() {
	if d.space(); d.i < len(d.src) {
		d.fail(d.i, "%s after the end of the value", d.here())
	}
}

// here describes the input at i, for messages.
func (d *decoder) here() string {
	if d.i >= len(d.src) {
		return "the end of the text"
	}
	r, _ := utf8.DecodeRuneInString(d.src[d.i:])
	return strconv.QuoteRune(r)
}

func (d *decoder) value() any {
	d.space()
	switch c := d.peek(); c {
	case '{':
		return d.object(nil)
	case '[':
		return d.array()
	case '"':
		return d.str()
	case 't':
		d.literal("true")
		return true
	case 'f':
		d.literal("false")
		return false
	case 'n':
		d.literal("null")
		return nil
	default:
		if c != '-' && !isDigit(c) {
			d.fail(d.i, "a value is needed here, found %s", d.here())
		}
		return d.number()
	}
}

func (d *decoder) literal(word string) {
	if !strings.HasPrefix(d.src[d.i:], word) {
		d.fail(d.i, "unknown word; values are true, false, null, numbers, strings, arrays and objects")
	}
	d.i += len(word)
}

func (d *decoder) enter() {
	if d.depth++; d.depth > maxDepth {
		d.fail(d.i, "nested deeper than %d levels", maxDepth)
	}
	d.i++
}

// object reads an object. note, if not nil, receives each name and the position of its value.
func (d *decoder) object(note func(name string, from, to int)) map[string]any {
	start := d.i
	d.enter()
	m := make(map[string]any)
	for n := 0; d.more('}', n, start); n++ {
		at := d.i
		if d.peek() != '"' {
			d.fail(at, "a member name in quotes is needed here, found %s", d.here())
		}
		name := d.str()
		if d.space(); d.peek() != ':' {
			d.fail(d.i, "a colon is needed after the name %q, found %s", name, d.here())
		}
		d.i++
		d.space()
		from := d.i
		m[name] = d.value()
		if len(m) == n { // duplicate name
			d.fail(at, "duplicate member name %q", name)
		}
		if note != nil {
			note(name, from, d.i)
		}
	}
	return m
}

func (d *decoder) array() []any {
	start := d.i
	d.enter()
	a := []any{}
	for d.more(']', len(a), start) {
		a = append(a, d.value())
	}
	return a
}

// more is called before the next element of the object or array that began at start and already has n elements. It
// consumes the comma, or the closing bracket, after which it returns false.
func (d *decoder) more(closing byte, n, start int) bool {
	d.space()
	switch c := d.peek(); {
	case c == closing:
		d.i++
		d.depth--
		return false
	case n == 0 && d.i < len(d.src):
		return true
	case c == ',':
		comma := d.i
		d.i++
		if d.space(); d.peek() == closing {
			d.fail(comma, "a comma with nothing after it")
		}
		return true
	case d.i >= len(d.src):
		d.fail(d.i, "the text ends inside the value that began at byte %d", start)
	}
	d.fail(d.i, "a comma or %q is needed here, found %s", closing, d.here())
	return false
}

// str reads a string; i stands on its opening quote.
func (d *decoder) str() string {
	start := d.i + 1
	for i := d.plain(start); i < len(d.src); i++ {
		switch c := d.src[i]; {
		case c == '"':
			d.i = i + 1
			return d.src[start:i]
		case c == '\\':
			return d.escaped(start, i)
		case c < 0x20:
			d.fail(i, "control character %#02x in a string; write it as \\u%04x", c, c)
		}
	}
	d.fail(start-1, "this string has no end")
	return ""
}

// plain returns the end of the unescaped bytes of a string from i on, or at most 7 bytes before. It looks at eight
// at a time: a byte of x is 0x80 where one of the word is below 0x20, a quote or a backslash (or, falsely, behind such a one).
func (d *decoder) plain(i int) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(d.src); i += 8 {
		w := uint64(d.src[i]) | uint64(d.src[i+1])<<8 | uint64(d.src[i+2])<<16 | uint64(d.src[i+3])<<24 |
			uint64(d.src[i+4])<<32 | uint64(d.src[i+5])<<40 | uint64(d.src[i+6])<<48 | uint64(d.src[i+7])<<56
		quote, slash := w^ones*'"', w^ones*'\\'
		if x := (w-ones*0x20)&^w | (quote-ones)&^quote | (slash-ones)&^slash; x&high != 0 {
			break
		}
	}
	return i
}

// escaped reads the string that began at start, whose first backslash is at i.
func (d *decoder) escaped(start, i int) string {
	buf := make([]byte, 0, 2*(i-start)+16)
	buf = append(buf, d.src[start:i]...)
	for i < len(d.src) {
		switch c := d.src[i]; {
		case c == '"':
			d.i = i + 1
			return string(buf)
		case c == '\\':
			buf, i = d.escape(buf, i)
		case c < 0x20:
			d.fail(i, "control character %#02x in a string; write it as \\u%04x", c, c)
		default:
			buf = append(buf, c)
			i++
		}
	}
	d.fail(start-1, "this string has no end")
	return ""
}

// escape decodes the escape sequence at i and returns where it ends.
func (d *decoder) escape(buf []byte, i int) ([]byte, int) {
	if i+1 >= len(d.src) {
		d.fail(i, "the text ends inside an escape")
	}
	switch c := d.src[i+1]; c {
	case '"', '\\', '/':
		return append(buf, c), i + 2
	case 'b':
		return append(buf, '\b'), i + 2
	case 'f':
		return append(buf, '\f'), i + 2
	case 'n':
		return append(buf, '\n'), i + 2
	case 'r':
		return append(buf, '\r'), i + 2
	case 't':
		return append(buf, '\t'), i + 2
	case 'u':
		return d.unicode(buf, i)
	}
	d.fail(i, "unknown escape")
	return nil, 0
}

// unicode decodes \uXXXX, or a surrogate pair of two, at i.
func (d *decoder) unicode(buf []byte, i int) ([]byte, int) {
	r := d.hex(i)
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(buf, r), i + 6
	}
	if strings.HasPrefix(d.src[i+6:], `\u`) {
		if pair := utf16.DecodeRune(r, d.hex(i+6)); pair != utf8.RuneError {
			return utf8.AppendRune(buf, pair), i + 12
		}
	}
	d.fail(i, "half of a surrogate pair")
	return nil, 0
}

// hex returns the code unit of the escape \uXXXX at i.
func (d *decoder) hex(i int) rune {
	var r rune
	for k := i + 2; k < i+6; k++ {
		n := -1
		if k < len(d.src) {
			n = hexValue(d.src[k])
		}
		if n < 0 {
			d.fail(i, `\u needs four hexadecimal digits`)
		}
		r = r<<4 | rune(n)
	}
	return r
}

func hexValue(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// number reads a number in the grammar of RFC 8259 §6.
func (d *decoder) number() float64 {
	start := d.i
	if d.peek() == '-' {
		d.i++
	}
	if d.peek() == '0' {
		if d.i++; isDigit(d.peek()) {
			d.fail(start, "a number with a leading zero")
		}
	} else {
		d.digits(start)
	}
	integer := true
	if d.peek() == '.' {
		integer = false
		d.i++
		d.digits(start)
	}
	if c := d.peek(); c == 'e' || c == 'E' {
		integer = false
		if d.i++; d.peek() == '+' || d.peek() == '-' {
			d.i++
		}
		d.digits(start)
	}
	return d.binary64(start, integer)
}

// digits consumes one digit or more of the number that began at start.
func (d *decoder) digits(start int) {
	if !isDigit(d.peek()) {
		d.fail(start, "a number needs a digit here, found %s", d.here())
	}
	for isDigit(d.peek()) {
		d.i++
	}
}

// maxTiny limits the subnormal numbers of a text. strconv takes 15 µs for each, a hundred times as long as for others: a text of 128 kB
// full of them would take half a second.
const maxTiny = 256

// binary64 converts the number between start and i.
func (d *decoder) binary64(start int, integer bool) float64 {
	text := d.src[start:d.i]
	f, err := strconv.ParseFloat(text, 64)
	if err != nil { // the grammar was checked: only the range is left
		d.fail(start, "the number %s is out of range", shorten(text))
	}
	if !integer && math.Abs(f) < 0x1p-1022 && isTiny(text) {
		if d.tiny++; d.tiny > maxTiny {
			d.fail(start, "more than %d numbers that are next to zero, such as %s", maxTiny, shorten(text))
		}
	}
	// Up to 15 digits are always exact. A longer one must equal the value of the float, digit by digit.
	if integer && len(text) > 15 && strconv.FormatFloat(f, 'f', 0, 64) != text {
		d.fail(start, "the integer %s has no exact binary64 value; write it as a string", shorten(text))
	}
	return f
}

// isTiny reports whether a number is subnormal. One without an exponent is too long to be frequent.
func isTiny(text string) bool {
	e := strings.IndexAny(text, "eE")
	return e > 0 && strings.ContainsAny(text[:e], "123456789")
}

func shorten(s string) string {
	if len(s) > 24 {
		return s[:24] + "…"
	}
	return s
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case float64:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	}
	return "an object"
}

// badUTF8 returns the offset of the first invalid UTF-8 in s.
func badUTF8(s string) int {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(s)
}
