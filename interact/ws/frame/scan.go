package frame

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// members are the known members of a frame, undecoded. Members that are null are absent (LMOS, tolerance); null has them, because a value
// may be null.
type members struct {
	raw     [slots][]byte
	null    [slots]bool
	capital bool // an ID was spelled with a capital D
	small   bool // an ID was spelled with a small d
}

var (
	errNotJSON   = errors.New("it is not JSON")
	errNotObject = errors.New("it is not a JSON object")
	errTwice     = errors.New("it has a member twice, with different values")
)

// read fills m from the object b. The slices point into b. After errTwice it has all other members, for the response.
func (m *members) read(b []byte) (err error) {
	if !utf8.Valid(b) || !jsonedit.Valid(b) { // RFC 6455 §5.6: text is UTF-8
		return errNotJSON
	}
	i := jsonedit.SkipSpace(b, 0)
	if b[i] != '{' {
		return errNotObject
	}
	for i = jsonedit.SkipSpace(b, i+1); b[i] != '}'; {
		end := jsonedit.SkipString(b, i)
		name := b[i:end]
		i = jsonedit.SkipSpace(b, jsonedit.SkipSpace(b, end)+1) // after the colon
		end = jsonedit.SkipValue(b, i)
		if twice := m.add(name, b[i:end:end]); twice != nil {
			err = twice
		}
		if i = jsonedit.SkipSpace(b, end); b[i] == ',' {
			i = jsonedit.SkipSpace(b, i+1)
		}
	}
	return err
}

// add adds one member.
func (m *members) add(quoted, value []byte) error {
	name := quoted[1 : len(quoted)-1]
	s, ok := slotByName[string(name)]
	if !ok && bytes.IndexByte(name, '\\') >= 0 {
		text, _ := jsonedit.String(quoted)
		s, ok = slotByName[text]
	}
	switch {
	case !ok:
		return nil
	case value[0] == 'n':
		m.null[s] = true
		return nil
	case m.raw[s] != nil && !bytes.Equal(m.raw[s], value): // both spellings, thingID and thingId, may be present
		m.raw[s] = nil
		return errTwice
	}
	m.raw[s] = value
	if s == sThing || s == sID || s == sCorrelation {
		capital := bytes.HasSuffix(name, []byte("ID"))
		m.capital, m.small = m.capital || capital, m.small || !capital
	}
	return nil
}

// has reports whether one of the members is present.
func (m *members) has(some ...slot) bool {
	for _, s := range some {
		if m.raw[s] != nil {
			return true
		}
	}
	return false
}

// text returns a member that is a string of at most limit bytes.
func (m *members) text(s slot, limit int) (string, error) {
	raw := m.raw[s]
	if raw == nil {
		return "", nil
	}
	text, ok := jsonedit.String(raw)
	switch {
	case !ok:
		return "", badMember(s, "is not a text")
	case len(text) > limit:
		return "", badMember(s, "is too long")
	}
	return text, nil
}
