package features

import (
	"encoding/json"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// TestParts converts parts to content blocks; values without a member of the block are in its _meta.
func TestParts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ part, want string }{
		"text":       {`{"text":"a"}`, `{"type":"text","text":"a"}`},
		"a table":    {`{"text":"a","mediaType":"text/csv","filename":"a.csv"}`, `{"type":"text","text":"a","_meta":{"dev.lmosd/part":{"filename":"a.csv","mediaType":"text/csv"}}}`},
		"image":      {`{"raw":"AQI=","mediaType":"image/png"}`, `{"type":"image","data":"AQI=","mimeType":"image/png"}`},
		"audio":      {`{"raw":"AQI=","mediaType":"audio/wav","metadata":{"s":1}}`, `{"type":"audio","data":"AQI=","mimeType":"audio/wav","_meta":{"dev.lmosd/part":{"metadata":{"s":1}}}}`},
		"a file":     {`{"raw":"AQI=","mediaType":"a/b","filename":"/f"}`, `{"type":"resource","resource":{"uri":"u/f","mimeType":"a/b","blob":"AQI="},"_meta":{"dev.lmosd/part":{"filename":"/f"}}}`},
		"some bytes": {`{"raw":"AQI="}`, `{"type":"resource","resource":{"uri":"u","mimeType":"application/octet-stream","blob":"AQI="}}`},
		"a link":     {`{"url":"https://x/y.pdf","mediaType":"a/b"}`, `{"type":"resource_link","mimeType":"a/b","uri":"https://x/y.pdf","name":"y.pdf"}`},
		"data":       {`{"data":{"a":1},"mediaType":"application/json"}`, `{"type":"text","text":"{\"a\":1}"}`},
		"what came from MCP": {`{"text":"a","metadata":{"mcp:annotations":{"priority":1},"mcp:meta":{"k":1}}}`,
			`{"type":"text","text":"a","annotations":{"priority":1},"_meta":{"k":1}}`},
		"metadata that are none": {`{"text":"a","metadata":7}`, `{"type":"text","text":"a","_meta":{"dev.lmosd/part":{"metadata":7}}}`},
	} {
		var p bridge.Part
		if err := json.Unmarshal([]byte(test.part), &p); err != nil {
			t.Fatal(err)
		}
		if got := string(protocol.Encode(partBlock(p, "u"))); got != test.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, test.want)
		}
	}
}

// FuzzOutcome reads arbitrary outcomes of turns.
func FuzzOutcome(f *testing.F) {
	f.Add([]byte(`{"contextId":"c","state":"completed","artifacts":[{"metadata":{},"parts":[{"raw":"AQI="},{"data":[1]},{}]}],"message":[{"text":"a"}],"metadata":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := outcomeOf(data, "u")
		if raw, err := json.Marshal(r); err != nil || !json.Valid(raw) {
			t.Errorf("%q gives %s, %v", data, raw, err)
		}
	})
}
