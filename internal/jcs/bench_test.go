package jcs

import (
	"fmt"
	"strings"
	"testing"
)

// agentTD returns a Thing Description of 12 actions, about 4.2 KB in canonical form, with
// indentation.
func agentTD() []byte {
	var b strings.Builder
	b.WriteString(`{
  "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"@language": "en", "lmos": "https://eclipse.dev/lmos/protocol/v1"}],
  "id": "did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd",
  "title": "Weather \u2600", "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}}, "security": ["nosec_sc"],
  "actions": {`)
	for i := range 12 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `
    "forecast%02d": {
      "title": "Forecast for region %d", "description": "Says \"sun\" or rain for the next days", "safe": true,
      "input": {"type": "object", "properties": {"question": {"type": "string"}, "days": {"type": "integer", "maximum": %d}}},
      "output": {"type": "object", "properties": {"answer": {"type": "string"}}},
      "forms": [{"href": "https://agent.example/forecast/%02d", "contentType": "application/json"}]
    }`, i, i, i+7, i)
	}
	b.WriteString("\n  }\n}\n")
	return []byte(b.String())
}

func BenchmarkDecode4K(b *testing.B) {
	td := agentTD()
	b.SetBytes(int64(len(td)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(td, len(td)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend4K(b *testing.B) {
	v, err := Decode(agentTD(), 1<<20)
	if err != nil {
		b.Fatal(err)
	}
	dst, _ := Append(nil, v)
	b.SetBytes(int64(len(dst)))
	b.ReportAllocs()
	for b.Loop() {
		if dst, err = Append(dst[:0], v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMembers4K(b *testing.B) {
	td := agentTD()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Members(td); err != nil {
			b.Fatal(err)
		}
	}
}
