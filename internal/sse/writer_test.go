package sse

import (
	"bytes"
	"strings"
	"testing"
)

// A written event is read as one event with the same fields.
func FuzzWrittenEvent(f *testing.F) {
	f.Add("hot", "1", []byte(`{"a":1}`))
	f.Add("a\r\nevent: b", "x\x00", []byte("a\r\rb\n\r\n: c\n\ndata: d"))
	f.Add("", "", []byte("\n"))
	f.Fuzz(func(t *testing.T, name, id string, data []byte) {
		if max(len(name), len(id)) > 200 || strings.Contains(string(data)+name+id, "\ufeff") {
			return
		}
		out := appendEvent(nil, name, id, data)
		if strings.ContainsAny(id, "\x00\r\n") {
			id = ""
		}
		want := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))
		n := 0
		for e, err := range Events(bytes.NewReader(out), 1<<20) {
			if n++; err != nil || e.Name != oneLine(name) || e.ID != id || string(e.Data) != want {
				t.Fatalf("%q became %q, %q, %q, %v", out, e.Name, e.ID, e.Data, err)
			}
		}
		if n != 1 && want != "" {
			t.Fatalf("%q has %d events", out, n)
		}
	})
}
