package command

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// octets is the media type of output that is neither JSON nor text.
const octets = "application/octet-stream"

// input returns the input of the process: JSON unchanged, CBOR as JSON, one JSON string as its text, other types unchanged.
func input(m *interact.Message) ([]byte, error) {
	if m.Chunks != nil && len(m.Data) > 0 {
		return nil, interact.Errorf(interact.Invalid, "send one of them",
			"%s accepts an input or a stream, not both: stdin carries one of them", m.Name)
	}
	data, media, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	if err != nil || !td.IsJSON(media) {
		return data, err
	}
	if trimmed := trimJSON(data); len(trimmed) > 0 && trimmed[0] == '"' {
		var text string
		if err := json.Unmarshal(trimmed, &text); err != nil {
			return nil, &interact.Error{Code: interact.Invalid, Title: "the input is not JSON", Hint: `text needs quotes: '"text"'`,
				Err: err}
		}
		return []byte(text), nil
	}
	return data, nil
}

// raw returns the media type of an unparsed output, or "" if the output is parsed.
func (a *Agent) raw(m *interact.Message) string {
	media, _, err := mime.ParseMediaType(m.Accept)
	switch {
	case m.Accept == "", err != nil, media == "*/*", media == "application/*":
		if m.Chunks == nil || a.o.Chunk != "" {
			return ""
		}
		return octets
	case td.IsJSON(media), interact.IsCBOR(media), media == "text/event-stream": // bindings send JSON in events
		return ""
	case strings.HasSuffix(media, "/*"):
		return octets
	}
	return m.Accept
}

// output returns the output of a process and its media type: JSON for JSON and for text.
func (a *Agent) output(m *interact.Message, out []byte) (media string, data []byte) {
	if data, ok := a.value(m, out); ok {
		return "", data
	}
	if len(out) == 0 && !a.wantsText(m.Name) {
		return "", nil
	}
	return text(out, cutLine(out))
}

// part returns one of several parts of the output, which ended with the delimiter end, which is empty after the last part. A JSON value is
// unchanged. Text includes its delimiter, so that the joined parts of a text ([interact.Join]) are the whole text.
func (a *Agent) part(m *interact.Message, out, end []byte) (media string, data []byte) {
	if data, ok := a.value(m, out); ok {
		return "", data
	}
	out = append(out, end...)
	return text(out, out)
}

// value returns out as a JSON value, unless the description declares text.
func (a *Agent) value(m *interact.Message, out []byte) ([]byte, bool) {
	v, _, err := interact.Value(out, interact.JSON)
	if _, isText := v.(string); err != nil || len(out) == 0 || !isText && a.wantsText(m.Name) {
		return nil, false
	}
	return trimJSON(out), true
}

// text returns text as a JSON string. If text is not valid, it returns out as octets.
func text(out, text []byte) (media string, data []byte) {
	if data, err := jcs.Append(nil, string(text)); err == nil {
		return "", data
	}
	return octets, out
}

// wantsText reports whether the output of the action is a string by its description.
func (a *Agent) wantsText(action string) bool {
	if a.o.Thing == nil || a.o.Thing.Actions[action] == nil {
		return false
	}
	return a.o.Thing.Actions[action].Output.Type() == "string"
}

// cutLine removes the line end at the end of the output.
func cutLine(out []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(out, []byte("\n")), []byte("\r"))
}

// trimJSON removes the space that JSON allows around a value (RFC 8259 §2).
func trimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }

// A splitter reads the parts between delimiters.
type splitter struct {
	from  io.Reader
	delim []byte
	limit int64 // of a part

	buf      []byte // read and not yet returned
	searched int    // no delimiter begins in these bytes of buf
	err      error
}

// next returns the next part, which the caller owns, and its delimiter. The last part is the rest after the last delimiter, if it is not
// empty; it has no delimiter. The error is httpbody.ErrTooLarge for a part beyond the limit, and [io.EOF] at the end.
func (s *splitter) next() (part, end []byte, err error) {
	for {
		if i := bytes.Index(s.buf[s.searched:], s.delim); i >= 0 {
			part := bytes.Clone(s.buf[:s.searched+i])
			s.buf, s.searched = s.buf[s.searched+i+len(s.delim):], 0
			return part, s.delim, s.check(part)
		}
		s.searched = max(0, len(s.buf)-len(s.delim)+1)
		if err := s.check(s.buf[:s.searched]); err != nil {
			return nil, nil, err
		}
		if s.err != nil {
			last := s.buf
			if s.buf, s.searched = nil, 0; len(last) == 0 {
				return nil, nil, s.err
			}
			return last, nil, s.check(last)
		}
		s.fill()
	}
}

func (s *splitter) check(part []byte) error {
	if int64(len(part)) > s.limit {
		return httpbody.ErrTooLarge
	}
	return nil
}

func (s *splitter) fill() {
	if cap(s.buf)-len(s.buf) < 4096 { // releases the bytes before buf: the parts were cloned
		s.buf = append(make([]byte, 0, 2*len(s.buf)+maxPiece), s.buf...)
	}
	n, err := s.from.Read(s.buf[len(s.buf):cap(s.buf)])
	s.buf, s.err = s.buf[:len(s.buf)+n], err
}

// A tail keeps the last bytes that are written to it.
type tail struct {
	b   [maxStderr]byte
	n   int // bytes kept
	cut bool
}

// Write keeps the end of p. It never fails.
func (t *tail) Write(p []byte) (int, error) {
	size := len(p)
	if over := t.n + len(p) - len(t.b); over > 0 {
		t.cut = true
		if len(p) >= len(t.b) {
			p, t.n = p[len(p)-len(t.b):], 0
		} else {
			t.n = copy(t.b[:], t.b[over:t.n])
		}
	}
	t.n += copy(t.b[t.n:], p)
	return size, nil
}

// String returns the kept bytes as text on one line (see [interact.Readable]).
func (t *tail) String() string {
	kept := t.b[:t.n]
	for t.cut && len(kept) > 0 && !utf8.RuneStart(kept[0]) {
		kept = kept[1:]
	}
	text := interact.Readable(string(kept))
	if t.cut && text != "" {
		text = "…" + text
	}
	return text
}
