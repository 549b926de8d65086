package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

func response(t testing.TB, result string) *protocol.Message {
	t.Helper()
	m, err := protocol.Parse([]byte(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`))
	if err != nil {
		t.Skip(err)
	}
	return m
}

// The output of an action is the structured result of the tool; other content is next to it, unchanged.
func TestOutput(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		`{"content":[{"type":"text","text":"a\u00e9"}]}`:                                      ` "aé"`,
		`{"content":[{"type":"text","text":"7"}],"_meta":{"` + protocol.MetaServer + `":{}}}`: ` "7"`,
		`{"content":[{"type":"text","text":"7","annotations":{"priority":1.0}}]}`:             ` {"lmosd:content":[{"type":"text","text":"7","annotations":{"priority":1.0}}]}`,
		`{"content":[{"type":"text","text":"7"}],"_meta":{"a/b":1e2}}`:                        ` {"lmosd:content":[{"type":"text","text":"7"}],"lmosd:meta":{"a/b":1e2}}`,
		`{"content":[{"type":"audio","data":"AAE=","mimeType":"audio/wav"}]}`:                 "audio/wav \x00\x01",
		`{"content":[{"type":"image","data":"!","mimeType":"image/png"}]}`:                    ` {"lmosd:content":[{"type":"image","data":"!","mimeType":"image/png"}]}`,
		`{"content":[{"type":"image","data":"","mimeType":"no type"}]}`:                       "application/octet-stream ",
		`{"content":[{"type":"hologram","depth":1.50}]}`:                                      ` {"lmosd:content":[{"type":"hologram","depth":1.50}]}`,
		`{"content":[7,{"type":"resource_link","uri":"x:y","name":"z"}]}`:                     ` {"lmosd:content":[7,{"type":"resource_link","uri":"x:y","name":"z"}]}`,
		`{"content":[]}`: ` null`,
		`{}`:             ` null`,
		`{"structuredContent":{"b":1,"a":{}},"content":[{"type":"text","text":"{\"a\": {}, \"b\": 1}"}]}`: ` {"b":1,"a":{}}`,
		`{"structuredContent":{},"content":[{"type":"text","text":"words"}]}`:                             ` {"lmosd:content":[{"type":"text","text":"words"}]}`,
		`{"structuredContent":{"a":{}},"content":[{"type":"text","text":"words"}]}`:                       ` {"a":{},"lmosd:content":[{"type":"text","text":"words"}]}`,
		`{"structuredContent":[1],"content":[{"type":"text","text":"words"}]}`:                            ` [1]`,
		`{"structuredContent":{"lmosd:content":1},"content":[7]}`:                                         ` {"lmosd:content":1}`,
		`{"structuredContent":null,"content":[{"type":"text","text":"x"}]}`:                               ` "x"`,
	} {
		if v := output(response(t, result)); v.media+" "+string(v.data) != want {
			t.Errorf("%s: got %s %s, want %s", result, v.media, v.data, want)
		}
	}
}

// The value of a property is the text or the bytes of a resource, with its media type.
func TestPropertyValues(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		`{"contents":[{"uri":"a","text":"x","mimeType":"text/css"}]}`:                 "text/css x",
		`{"contents":[{"uri":"a","text":"x"}]}`:                                       "text/plain x",
		`{"contents":[{"uri":"a","text":"{\"a\":1}","mimeType":"application/json"}]}`: `application/json {"a":1}`,
		`{"contents":[{"uri":"a","text":"{","mimeType":"application/json"}]}`:         "text/plain {",
		`{"contents":[{"uri":"a","text":"","mimeType":"application/json"}]}`:          "text/plain ",
		`{"contents":[{"uri":"a","text":"x","mimeType":"application/cbor"}]}`:         "text/plain x",
		`{"contents":[{"uri":"a","blob":"AA==","mimeType":"image/png"}]}`:             "image/png \x00",
		`{"contents":[{"uri":"a","text":"x","_meta":{}}]}`:                            ` {"lmosd:content":[{"uri":"a","text":"x","_meta":{}}]}`,
		`{"contents":[{"uri":"a","text":"x"},{"uri":"b","text":"y"}]}`:                ` {"lmosd:content":[{"uri":"a","text":"x"},{"uri":"b","text":"y"}]}`,
		`{"contents":[]}`: "error",
		`{}`:              "error",
	} {
		v, err := reading(response(t, result))
		got := v.media + " " + string(v.data)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", result, got, want)
		}
	}
}

// Each response of a server has an output; JSON is valid, and forwarded blocks are unchanged.
func FuzzOutput(f *testing.F) {
	f.Add(`{"content":[{"type":"text","text":"a"},{"type":"x","y":1.0}],"structuredContent":{"a":1},"_meta":{"m":1}}`)
	f.Add(`{"contents":[{"uri":"a","blob":"AA=="}],"messages":[],"isError":true}`)
	f.Add(`{"content":{"a":1},"structuredContent":{}}`)
	f.Fuzz(func(t *testing.T, result string) {
		r := response(t, result)
		if raw := r.Result(); len(raw) == 0 || raw[0] != '{' {
			return // such a result is refused before (server.send)
		}
		read, err := reading(r)
		for _, v := range []value{output(r), messages(r), read} {
			if v.media == "" && !json.Valid(v.data) && !(err != nil && v.data == nil) {
				t.Fatalf("%s gives %s", result, v.data)
			}
		}
		content, _ := r.InResult("content")
		structured, _ := r.InResult("structuredContent")
		if v := output(r); structured == nil && strings.HasPrefix(string(v.data), `{"`+contentTerm) && !strings.Contains(string(v.data), string(content)) {
			t.Fatalf("%s gives %s", result, v.data)
		}
		failureText(r)
	})
}
