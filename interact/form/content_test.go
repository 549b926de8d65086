package form

import (
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestAlike(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]bool{{"", "application/json"}: true, {"application/td+json", "application/json"}: true,
		{"application/cbor", "application/senml+cbor"}: true, {"application/cbor", "application/json"}: false, {"text/plain",
			"text/plain;charset=utf-8"}: true} {
		if Alike(pair[0], pair[1]) != want {
			t.Errorf("%v: %v", pair, !want)
		}
	}
}

func TestConvertBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, data, media, form string
		want, wantMedia         string
		code                    interact.Code
	}{
		{"the same", "x", "image/png", "image/png", "x", "image/png", 0},
		{"parameters stay", "x", "text/plain; charset=utf-8", "text/plain", "x", "text/plain; charset=utf-8", 0},
		{"JSON of another kind", "1", "", "application/senml+json", "1", "application/senml+json", 0},
		{"a string as text", `"a\nb"`, "", "text/plain", "a\nb", "text/plain", 0},
		{"a number as text", " 21.50 ", "", "text/plain", "21.50", "text/plain", 0},
		{"a boolean as text", "true", "", "text/csv", "true", "text/csv", 0},
		{"an object as text", "{}", "", "text/plain", "", "", interact.UnsupportedType},
		{"invalid JSON as text", "{", "", "text/plain", "", "", interact.UnsupportedType},
		{"JSON to CBOR", "[1]", "", "application/cbor", "\x81\x01", "application/cbor", 0},
		{"CBOR to JSON", "\x81\x01", "application/cbor", "application/json", "[1]", "application/json", 0},
		{"invalid JSON as CBOR", "{", "", "application/cbor", "", "", interact.Invalid},
		{"a picture as JSON", "x", "image/png", "application/json", "", "", interact.UnsupportedType},
		{"nothing is of every type", "", "", "image/png", "", "image/png", 0},
	}
	for _, tt := range tests {
		m := &interact.Message{Data: []byte(tt.data), ContentType: tt.media}
		r := &Request{Thing: &td.Thing{}, Message: m, Form: &td.Form{ContentType: tt.form}, Body: m.Data, Media: m.Media()}
		err := r.Convert()
		if tt.code != 0 {
			if e := interact.AsError(err); e == nil || e.Code != tt.code || e.Hint == "" && tt.code != interact.Invalid {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err != nil || string(r.Body) != tt.want || r.Media != tt.wantMedia {
			t.Errorf("%s: %q %s, %v", tt.name, r.Body, r.Media, err)
		}
	}
}
