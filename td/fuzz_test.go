package td

import (
	"bytes"
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

func FuzzParse(f *testing.F) {
	f.Add(readFile(f, "weather.td.json"))
	f.Add(readFile(f, "weather.signed.td.json"))
	f.Add([]byte(nice))
	f.Add([]byte(tdWith(`"actions": {"a": {"forms": [{"href": "x/{a}{?b*}", "op": "invokeaction"}]}}`, `"base": "http://x/{b}/"`)))
	f.Add([]byte(tdWith(`"lmos:capabilities": ["a", {"id": ":"}, {"name": "n", "version": 1}]`, `"lmos:metadata": {"vendor": 1}`)))
	f.Add([]byte(`{"@context": [1, {}], "links": 1, "security": {}, "properties": {"p": 1}}`))
	f.Add([]byte("\ufeff{}"))
	owner := signer(f, 1).DID()
	f.Fuzz(func(t *testing.T, raw []byte) {
		thing, err := Parse(raw)
		if err != nil {
			if issues := issuesOf(err); len(issues) == 0 || len(issues) > maxIssues || err.Error() == "" {
				t.Fatalf("%d issues: %v", len(issues), err)
			}
			return
		}
		for name, a := range thing.Actions {
			if len(a.Forms) == 0 || len(a.Forms[0].Ops) == 0 || a.Forms[0].ContentType == "" {
				t.Fatalf("action %q: %+v", name, a)
			}
			a.Input.Check(map[string]any{"question": "x"})
		}
		if len(thing.Terms()) > MaxCaps {
			t.Fatalf("%d terms", len(thing.Terms()))
		}
		whole, err := Complete(raw, owner)
		if err != nil {
			return
		}
		if again, err := Complete(whole.Raw, owner); err != nil || !bytes.Equal(again.Raw, whole.Raw) {
			t.Fatalf("a complete TD is changed (%v):\n%s\n%s", err, whole.Raw, again.Raw)
		}
	})
}

func FuzzRecord(f *testing.F) {
	for _, name := range []string{"record.hex", "tombstone.hex", "inline.hex"} {
		raw, err := hex.DecodeString(strings.TrimSpace(string(readFile(f, name))))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add(forge(f, signer(f, 1), func(w *wireRecord) { makeTombstone(w); w.Kind, w.Successor = 2, "did:web:example.com" }))
	f.Add(forge(f, signer(f, 1), func(w *wireRecord) { w.Version, w.Audience = 2, uint64(Partners) }))
	f.Add([]byte{0xa2, 0, 3, 1, 0xf6})
	grant, td := granted(f, signer(f, 1), 7, signer(f, 2).DID())
	f.Add(hosted(f, grant, td, signer(f, 2), 3).Record)
	v := NewVerifier(did.Keys())
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, w, err := decodeRecord(raw)
		if err != nil {
			if _, err := v.Record(raw, epoch); err == nil {
				t.Fatal("a record that cannot be decoded verifies")
			}
			return
		}
		if signed, err := w.signed(); err != nil || string(w.message) != string(did.PurposeRecord)+string(signed) {
			t.Fatalf("the message differs from the signed bytes: %v", err)
		}
		if !utf8.ValidString(r.Thing) || len(r.Hosts) > MaxHosts || len(r.Capabilities) > MaxCaps || len(raw) > MaxRecord {
			t.Fatalf("out of bounds: %+v", r)
		}
		if bare, err := (&Signed{Record: raw}).WithoutTD(); err != nil || len(bare.Record) > len(raw) {
			t.Fatalf("without its TD: %v", err)
		}
		if i, err := Select([][]byte{nil, raw}); err != nil || i != 1 || r.Compare(r) != 0 {
			t.Fatalf("selected %d: %v", i, err)
		}
		if _, err := r.authenticate(w); err == nil && string(r.Signer()) != "did:key:"+testKey && r.Signer() != signer(t, 2).DID() {
			t.Fatalf("the signature of %s was forged", r.Signer())
		}
	})
}

func FuzzVerify(f *testing.F) {
	k := signer(f, 1)
	s := published(f, readFile(f, "weather.td.json"), k, 7)
	f.Add(s.TD)
	f.Add([]byte(tdWith(`"id": "urn:example:agent:weather"`, `"proof": {}`)))
	f.Add([]byte(tdWith(`"proof": [{"verificationMethod": "` + string(k.DID()) + `#x"}]`)))
	want, err := jcs.Append(nil, decodeJSON(f, string(s.TD)))
	if err != nil {
		f.Fatal(err)
	}
	v := NewVerifier(did.Keys())
	f.Fuzz(func(t *testing.T, td []byte) {
		if len(td) == 0 || len(td) > MaxTD {
			return
		}
		d, err := attested(t, k, "urn:example:agent:weather", td).Verify(context.Background(), v, epoch)
		if err != nil {
			return
		}
		// The fuzzer has no key: only the signed content can verify, in any spelling.
		if got, _ := jcs.Append(nil, decodeJSON(t, string(d.Raw))); !bytes.Equal(got, want) {
			t.Fatalf("verified %s", td)
		}
	})
}

func FuzzInline(f *testing.F) {
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 2, 0x11, 0, 0, 't', 'd'}, 2)
	f.Add(compressTD(make([]byte, 1<<20)), 128<<10)
	f.Add(compressTD(readFile(f, "weather.td.json")), 3792)
	f.Fuzz(func(t *testing.T, frame []byte, size int) {
		if size < 0 || size > MaxTD || len(frame) > MaxInline {
			return
		}
		td, err := (&Record{Inline: frame, Size: size}).decompressTD()
		if err == nil || len(td) > size {
			t.Fatalf("%d bytes without a hash: %v", len(td), err)
		}
	})
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{
		"weather", "weather@z6Mkjc…", "urn:x@did:web:y", "did:key:z6Mk#a", "urn:lmos:did:a:b", "@", "URN:LMOS:DID:a:b:c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := ParseRef(s)
		if again := ParseRef(r.String()); again != r && strings.TrimSpace(r.Name) == r.Name {
			t.Fatalf("%q: %+v, written %q, read %+v", s, r, r.String(), again)
		}
		record := &Record{Owner: did.DID("did:key:" + testKey), Thing: s, Title: s}
		r.Match(&Description{Thing: &Thing{ID: s, Title: s}, Record: record})
		checkNormal(t.Fatalf, s)
	})
}
