package messaging

import (
	"mime"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// Content formats with a name; for the others see [Media].
const (
	formatText  = 0
	FormatLinks = 40
	FormatJSON  = 50
	FormatCBOR  = 60
	FormatTD    = 432
	// ProblemDetails is that of concise problem details (RFC 9290 §6).
	ProblemDetails = 257
)

// Octets is the media type of unknown content.
const Octets = "application/octet-stream"

// formats are the known content formats (IANA, CoAP Content-Formats). The first one of a media type is sent.
var formats = []struct {
	number uint32
	media  string
}{
	{formatText, "text/plain"}, // with charset=utf-8
	{21, "image/gif"},
	{22, "image/jpeg"},
	{23, "image/png"},
	{FormatLinks, "application/link-format"},
	{41, "application/xml"},
	{42, Octets},
	{47, "application/exi"},
	{FormatJSON, interact.JSON},
	{51, "application/json-patch+json"},
	{52, "application/merge-patch+json"},
	{FormatCBOR, interact.CBOR},
	{61, "application/cwt"},
	{62, "application/multipart-core"},
	{63, "application/cbor-seq"},
	{110, "application/senml+json"},
	{111, "application/sensml+json"},
	{112, "application/senml+cbor"},
	{113, "application/sensml+cbor"},
	{256, "application/coap-group+json"},
	{ProblemDetails, "application/concise-problem-details+cbor"},
	{320, "application/senml-etch+json"},
	{322, "application/senml-etch+cbor"},
	{FormatTD, "application/td+json"},
	{433, "application/tm+json"},
	{20000, "text/css"},
	{30000, "image/svg+xml"},
}

// Media returns the media type of a content format; empty if it is not known.
func Media(format uint32) string {
	for _, f := range formats {
		if f.number == format {
			return f.media
		}
	}
	return ""
}

// FormatOf returns the content format of a media type. Text in another charset than UTF-8 has none.
func FormatOf(contentType string) (uint32, bool) {
	want := interact.MediaType(contentType)
	if want == "text/plain" && !isUTF8(contentType) {
		return 0, false
	}
	for _, f := range formats {
		if f.media == want {
			return f.number, true
		}
	}
	return 0, false
}

func isUTF8(contentType string) bool {
	_, params, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	return err == nil && (charset == "" || charset == "utf-8" || charset == "us-ascii")
}
