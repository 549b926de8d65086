package frame

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jsonedit"
	"github.com/lmosd/lmosd/td"
)

// embedded reads the data of a frame from the member raw: JSON unchanged, or a string with contentType and base64.
func (f *Frame) embedded(m *members, raw []byte) error {
	media, err := m.text(sMedia, MaxID)
	if err != nil {
		return err
	}
	coded := string(m.raw[sBase64]) == "true"
	if !coded && td.IsJSON(media) {
		f.Data = raw
		if media != interact.JSON {
			f.ContentType = media
		}
		return nil
	}
	text, ok := jsonedit.String(raw)
	if !ok {
		return badMember(sMedia, "is not JSON, and the data is not a string")
	}
	if text == "" {
		return nil
	}
	f.Data, f.ContentType = []byte(text), media
	if !coded {
		return nil
	}
	if f.Data, err = base64.StdEncoding.DecodeString(text); err != nil {
		return badMember(sBase64, "is true, and the data is not base64")
	}
	switch {
	case media == "":
		f.ContentType = "application/octet-stream"
	case media == interact.JSON:
		f.ContentType = ""
	}
	if td.IsJSON(f.ContentType) && !json.Valid(f.Data) {
		return badMember(sMedia, "is JSON, and the data is not")
	}
	return nil
}

// payload returns the data of f as JSON for a frame, with the members contentType and base64 if necessary. The data is untrusted: invalid
// JSON is an error.
func (f *Frame) payload() (raw []byte, media string, coded bool, err error) {
	raw, media = f.Data, f.ContentType
	if len(raw) == 0 {
		return nil, "", false, nil
	}
	if !td.IsJSON(media) {
		if raw, media, err = interact.Transcode(raw, media, interact.JSON); err != nil {
			return nil, "", false, f.unfit(err)
		}
	}
	switch {
	case len(raw) == 0:
		return nil, "", false, nil
	case td.IsJSON(media):
		if !utf8.Valid(raw) || !json.Valid(raw) {
			return nil, "", false, f.unfit(nil)
		}
		if media == interact.JSON {
			media = ""
		}
		return raw, media, false, nil
	case strings.HasPrefix(mediaType(media), "text/") && utf8.Valid(raw):
		return appendText(nil, string(raw)), media, false, nil
	}
	b := append(make([]byte, 0, 2+base64.StdEncoding.EncodedLen(len(raw))), '"')
	return append(base64.StdEncoding.AppendEncode(b, raw), '"'), media, true, nil
}

// unfit returns the error of data that does not match its content type.
func (f *Frame) unfit(cause error) error {
	e := interact.Errorf(interact.AgentFailed, "check the data of the agent, or declare its content type",
		"the data of %s is not %s", Clip(f.Name, 100), Clip(f.Media(), 100))
	if f.IsRequest() {
		e.Code, e.Hint = interact.Invalid, "send data of the content type"
	}
	e.Err = cause
	return e
}

func mediaType(contentType string) string {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	return media
}

// appendText appends s as a JSON string.
func appendText(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(s) // a string never fails
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// Clip returns the text of a peer for display: one line of at most n bytes, cut between characters.
func Clip(text string, n int) string {
	return interact.Excerpt(text[:min(len(text), 4*n)], n)
}
