package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/jcs"
)

// After a change of any byte a signed TD does not verify, or its content is equal.
func TestEveryByteIsCovered(t *testing.T) {
	t.Parallel()
	doc := signed(t)
	doc["registration"] = map[string]any{"retrieved": "2026-11-20T12:00:00Z"}
	raw, err := json.MarshalIndent(doc, "", " ") // with white space, which is not signed
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for i := range raw {
		for _, c := range replacements(raw[i]) {
			changed := bytes.Clone(raw)
			changed[i] = c
			m, err := jcs.Object(changed, 1<<20)
			if err != nil {
				continue
			}
			v, err := Verify(t.Context(), m, Check{Now: noon})
			if err != nil {
				continue
			}
			same++
			if got := canonical(t, v.Document); got != goldenDoc {
				t.Fatalf("byte %d became %q, and this verified:\n%s", i, c, got)
			}
		}
	}
	if same == 0 {
		t.Error("no change is accepted: the test has no effect")
	}
}

// replacements returns every single-bit change of c, and the structural characters of JSON.
func replacements(c byte) []byte {
	out := []byte(" \n\t0\"\\{}[],:")
	for bit := range 8 {
		out = append(out, c^1<<bit)
	}
	return bytes.ReplaceAll(out, []byte{c}, nil)
}

// A signed TD with a removed, doubled or inserted byte does not verify.
func TestEveryInsertionAndDeletionIsDetected(t *testing.T) {
	t.Parallel()
	raw := []byte(canonical(t, signed(t)))
	for i := range raw {
		for _, changed := range [][]byte{
			append(bytes.Clone(raw[:i]), raw[i+1:]...),
			append(bytes.Clone(raw[:i+1]), raw[i:]...),
			append(append(bytes.Clone(raw[:i]), '0'), raw[i:]...),
		} {
			m, err := jcs.Object(changed, 1<<20)
			if err != nil {
				continue
			}
			if v, err := Verify(t.Context(), m, Check{Now: noon}); err == nil && canonical(t, v.Document) != goldenDoc {
				t.Fatalf("at byte %d: %s verified", i, changed)
			}
		}
	}
}

func TestOrderAndSpaceDoNotMatter(t *testing.T) {
	t.Parallel()
	members := `"title":"\u0057etter \u2600",` + "\n\t" + `"id":"did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd",
	  "security": ["nosec_sc"], "securityDefinitions" : {"nosec_sc" : {"scheme":"nosec"}},
	  "properties":{"t":{"type":"number","multipleOf":0.0000001,"maximum":1000000000000000000000,"forms":[{"href":"https:\/\/example.com\/t"}]}},
	  "@context":["https://www.w3.org/2022/wot/td/v1.1",{"@language":"en"}]`
	proof := strings.TrimSuffix(goldenConfig, "}") + `,"proofValue":"` + goldenValue + `"}`
	for _, text := range []string{"{" + members + `,"proof":` + proof + "}", `{"proof":` + proof + "," + members + "}"} {
		v, err := Verify(t.Context(), decode(t, text), Check{Now: noon})
		if err != nil || canonical(t, v.Document) != goldenDoc {
			t.Errorf("%+v, %v", v, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte(canonical(f, signed(f))))
	f.Add([]byte(canonical(f, resign(f, decode(f, goldenDoc), newSigner(f, 0), context11))))
	f.Add([]byte(`{"proof":[{"type":"DataIntegrityProof"},1]}`))
	f.Add([]byte(`{"@context":{},"proof":{"@context":[{}],"cryptosuite":"eddsa-jcs-2022"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := jcs.Object(raw, 1<<20)
		if err != nil {
			return
		}
		before := canonical(t, m)
		v, err := Verify(t.Context(), m, Check{Now: noon, Domain: string(raw[:min(3, len(raw))])})
		if after := canonical(t, m); after != before {
			t.Fatalf("%s became %s", before, after)
		}
		if err != nil {
			if !errors.Is(err, ErrProof) {
				t.Fatalf("%v wraps no ErrProof", err)
			}
			return
		}
		if _, ok := v.Document["proof"]; ok || v.Owner == "" || len(v.Owners) == 0 {
			t.Fatalf("verified %+v", v)
		}
	})
}

// agentTD returns a Thing Description of 12 actions, about 4 KB.
func agentTD() string {
	var actions []string
	for i := range 12 {
		actions = append(actions, fmt.Sprintf(`"forecast%02d":{"title":"Forecast for region %d",
		  "description":"Says \"sun\" or rain for the next days","safe":true,
		  "input":{"type":"object","properties":{"question":{"type":"string"},"days":{"type":"integer","maximum":%d}}},
		  "output":{"type":"object","properties":{"answer":{"type":"string"}}},
		  "forms":[{"href":"https://agent.example/forecast/%02d","contentType":"application/json"}]}`, i, i, i+7, i))
	}
	return `{"@context":["https://www.w3.org/2022/wot/td/v1.1","https://w3id.org/security/data-integrity/v2",{"@language":"en"}],
	  "id":"did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd","title":"Weather \u2600",
	  "securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
	  "actions":{` + strings.Join(actions, ",") + `}}`
}

func BenchmarkSign4K(b *testing.B) {
	doc, s := decode(b, agentTD()), newSigner(b, 0)
	b.SetBytes(int64(len(canonical(b, doc))))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Sign(doc, s, Options{Created: noon}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify4K(b *testing.B) {
	doc, s := decode(b, agentTD()), newSigner(b, 0)
	proof, err := Sign(doc, s, Options{Created: noon})
	if err != nil {
		b.Fatal(err)
	}
	doc["proof"] = proof
	raw := []byte(canonical(b, doc))
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() { // the strict decoding is part of it
		m, err := jcs.Object(raw, 128<<10)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Verify(b.Context(), m, Check{Now: noon}); err != nil {
			b.Fatal(err)
		}
	}
}
