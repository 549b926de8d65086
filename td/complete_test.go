package td

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

const (
	c10   = `"https://www.w3.org/2019/wot/td/v1"`
	c11   = `"https://www.w3.org/2022/wot/td/v1.1"`
	cNext = `"https://www.w3.org/ns/wot-next/td"`
	cDisc = `"https://www.w3.org/2022/wot/discovery"`
	cDI   = `"https://w3id.org/security/data-integrity/v2"`
	cLMOS = `"lmos": "https://eclipse.dev/lmos/protocol/v1"`
)

func TestCompleteContexts(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"1.1 alone", c11, "[" + c10 + ", " + c11 + ", " + cDisc + ", " + cDI + "]"},
		{"1.0 alone", c10, "[" + c10 + ", " + c11 + ", " + cDisc + ", " + cDI + "]"},
		{"the 2.0 draft alone", cNext, "[" + cNext + ", " + cDisc + ", " + cDI + "]"},
		{"1.1 in an array", "[" + c11 + "]", "[" + c10 + ", " + c11 + ", " + cDisc + ", " + cDI + "]"},
		{"1.0 in an array", "[" + c10 + "]", "[" + c10 + ", " + c11 + ", " + cDisc + ", " + cDI + "]"},
		{"1.1 and a map", "[ " + c11 + `,{"a":"b"} ]`,
			"[ " + c10 + "," + c11 + "," + cDisc + "," + cDI + `,{"a":"b"} ]`},
		{"both and a map, one to a line", "[\n  " + c10 + ",\n  " + c11 + ",\n  {}\n]",
			"[\n  " + c10 + ",\n  " + c11 + ",\n  " + cDisc + ",\n  " + cDI + ",\n  {}\n]"},
		{"one to a line, alone", "[\n  " + c11 + "\n]",
			"[\n  " + c10 + ",\n  " + c11 + ",\n  " + cDisc + ",\n  " + cDI + "\n]"},
		{"discovery only is missing", "[" + c10 + ", " + c11 + `, {}, ` + cDI + "]",
			"[" + c10 + ", " + c11 + ", " + cDisc + `, {}, ` + cDI + "]"},
		{"nothing is missing", "[" + c10 + ", " + c11 + `, {}, ` + cDI + ", " + cDisc + "]",
			"[" + c10 + ", " + c11 + `, {}, ` + cDI + ", " + cDisc + "]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			raw := strings.Replace(tdWith(`"id": "urn:x"`), c11, tt.in, 1)
			got, err := Complete([]byte(raw), signer(t, 1).DID())
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Replace(raw, tt.in, tt.want, 1); string(got.Raw) != want {
				t.Errorf("got\n%s\nwant\n%s", got.Raw, want)
			}
			again, err := Complete(got.Raw, signer(t, 1).DID())
			if err != nil || !bytes.Equal(again.Raw, got.Raw) {
				t.Errorf("a complete TD is changed (%v):\n%s", err, again.Raw)
			}
		})
	}
}

func TestCompleteAddsThePrefix(t *testing.T) {
	t.Parallel()
	const all = c10 + ", " + c11 + ", " + cDisc + ", " + cDI
	tests := []struct{ name, in, members, want string }{
		{"into a map", "[" + all + `, {"@language": "en"}]`, `"lmos:capabilities": ["x"]`,
			"[" + all + `, {` + cLMOS + `, "@language": "en"}]`},
		{"into an empty map", "[" + all + `, {}]`, `"@type": "lmos:Agent"`, "[" + all + `, {` + cLMOS + `}]`},
		{"at the end", "[" + all + "]", `"@type": ["lmos:Tool"]`, "[" + all + ", {" + cLMOS + "}]"},
		{"with an array of its own", c11, `"@type": "lmos:Agent"`, "[" + all + ", {" + cLMOS + "}]"},
		{"not without need", "[" + all + "]", `"@type": "Agent"`, "[" + all + "]"},
		{"not if it is there", "[" + all + ", {" + cLMOS + "}]", `"@type": "lmos:Agent"`,
			"[" + all + ", {" + cLMOS + "}]"},
		{"not if the context is there", "[" + all + `, "https://eclipse.dev/lmos/protocol/v1"]`,
			`"@type": "lmos:Agent"`, "[" + all + `, "https://eclipse.dev/lmos/protocol/v1"]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			raw := strings.Replace(tdWith(`"id": "urn:x"`, tt.members), c11, tt.in, 1)
			got, err := Complete([]byte(raw), signer(t, 1).DID())
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Replace(raw, tt.in, tt.want, 1); string(got.Raw) != want {
				t.Errorf("got\n%s\nwant\n%s", got.Raw, want)
			}
		})
	}
}

func TestCompleteMintsAnID(t *testing.T) {
	t.Parallel()
	owner := signer(t, 1).DID()
	for title, name := range map[string]string{"Weather Agent": "weather-agent", "Köln": "k%C3%B6ln", "☀": "thing"} {
		raw := strings.Replace(tdWith(), `"T"`, `"`+title+`"`, 1)
		got, err := Complete([]byte(raw), owner)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("urn:lmos:%s:%s", owner, name)
		if got.ID != want {
			t.Errorf("%s: got %q, want %q", title, got.ID, want)
		}
	}
	pretty := "{\n  \"title\": \"T\",\n  \"@context\": [" + c10 + ", " + c11 + ", " + cDisc + ", " + cDI + "],\n" +
		"  \"security\": \"n\", \"securityDefinitions\": {\"n\": {\"scheme\": \"nosec\"}}\n}\n"
	got, err := Complete([]byte(pretty), owner)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(pretty, "],\n", "],\n  \"id\": \""+got.ID+"\",\n", 1); string(got.Raw) != want {
		t.Errorf("got\n%s\nwant\n%s", got.Raw, want)
	}
}

func TestCompleteRejects(t *testing.T) {
	t.Parallel()
	k, other := signer(t, 1), signer(t, 2)
	weather := string(readFile(t, "weather.td.json"))
	signed := string(published(t, []byte(weather), k, 7).TD)
	tests := []struct{ name, raw, want string }{
		{"an invalid TD", `{}`, `"@context" is missing`},
		{"not JSON", `{`, "not JSON at line 1, column 2"},
		{"a registration", tdWith(`"registration": {}`),
			"/registration: is added by directories; remove it before the TD is signed"},
		{"the id of another owner", tdWith(`"id": "` + string(other.DID()) + `"`),
			"signed by another key than the owner's: the id "},
		{"an id with another owner", tdWith(`"id": "urn:lmos:` + string(other.DID()) + `:x"`),
			"signed by another key than the owner's: the id "},
		{"an empty proof", tdWith(`"id": "urn:x"`, `"proof": {}`), "signature does not verify"},
		{"a proof without id", tdWith(`"proof": {}`), `the TD is signed and "id" is missing`},
		{"a TD that was changed after signing", strings.Replace(signed, "Europe", "Asia", 1),
			`remove "proof" to have the TD signed again`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := Complete([]byte(tt.raw), k.DID()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCompleteKeepsSignedMembers(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	signed := published(t, readFile(t, "weather.td.json"), k, 7)
	for _, owner := range []did.DID{k.DID(), signer(t, 2).DID()} {
		got, err := Complete(signed.TD, owner)
		if err != nil || !bytes.Equal(got.Raw, signed.TD) {
			t.Errorf("for %s: %v", owner, err)
		}
	}
}

// Complete accepts a TD that another owner has signed, and Sign rejects it.
func TestCompleteKeepsTheProofOfAnotherOwner(t *testing.T) {
	t.Parallel()
	k, other := signer(t, 1), signer(t, 2)
	thing, err := Complete(published(t, readFile(t, "weather.td.json"), k, 7).TD, other.DID())
	if err != nil {
		t.Fatal(err)
	}
	_, err = Sign(thing, other, lease(1))
	if !errors.Is(err, ErrOwner) || !strings.Contains(err.Error(), "the TD is signed by "+string(k.DID())) {
		t.Errorf("got %v", err)
	}
	again, err := Sign(thing, k, lease(8))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.TD, thing.Raw) {
		t.Error("a signed TD was signed again")
	}
}

// For every TD, completing it changes @context, may add an id right after it, and keeps all other bytes and their order.
func TestCompleteKeepsTheRest(t *testing.T) {
	t.Parallel()
	owner := signer(t, 1).DID()
	rapid.Check(t, func(rt *rapid.T) {
		raw := drawTD(rt)
		thing, err := Complete(raw, owner)
		if err != nil {
			rt.Fatalf("%v\n%s", err, raw)
		}
		before, after := membersOf(rt, raw), membersOf(rt, thing.Raw)
		if !slices.ContainsFunc(before, func(m jcs.Member) bool { return m.Name == "id" }) {
			at := slices.IndexFunc(after, func(m jcs.Member) bool { return m.Name == "id" })
			if at < 1 || after[at-1].Name != "@context" {
				rt.Fatalf("the id is at %d\n%s", at, thing.Raw)
			}
			after = slices.Delete(after, at, at+1)
		}
		for i, m := range after {
			if i >= len(before) || m.Name != before[i].Name || m.Name != "@context" && !bytes.Equal(m.Raw, before[i].Raw) {
				rt.Fatalf("member %d changed: %s\n%s\n%s", i, m.Name, raw, thing.Raw)
			}
		}
		for _, uri := range []string{Context10, Context11, ContextDiscovery, ContextProof} {
			if !slices.Contains(array(thing.doc["@context"]), any(uri)) {
				rt.Fatalf("%s is missing\n%s", uri, thing.Raw)
			}
		}
		if missing := missingPrefixes(thing.doc); len(missing) > 0 {
			rt.Fatalf("%v is missing\n%s", missing, thing.Raw)
		}
	})
}

// drawTD returns a valid TD with LMOS terms in any order and spacing.
func drawTD(t *rapid.T) []byte {
	gap := rapid.SampledFrom([]string{"", " ", "\n", "\r\n\t", "\n    "})
	contexts := rapid.SampledFrom([]string{
		c11, c10, "[" + c11 + "]", "[\n" + c10 + "\n,\n" + c11 + " ]", "[ " + c11 + `, {"a": "b"}, "https://example.com"]`,
		"[" + c10 + `,{"x":"],}"}]`, "[" + c11 + ", " + cDI + ", {}]", "[" + c11 + ", {" + cLMOS + "}]",
	}).Draw(t, "context")
	members := []string{
		`"@context":` + contexts, `"title":"T"`, `"security": "n"`, `"securityDefinitions":{"n":{"scheme":"nosec"}}`,
		`"lmos:capabilities" : [ "a" ]`, `"x\"}":"{[\"@context\""`,
	}
	if rapid.Bool().Draw(t, "with a term of lmosd") {
		members = append(members, `"actions": {"a": {"lmosd:requiresInput": true, "forms": [{"href": "x:"}]}}`)
	}
	if rapid.Bool().Draw(t, "with id") {
		members = append(members, `"id": "urn:x"`)
	}
	var b strings.Builder
	b.WriteString(gap.Draw(t, "before") + "{" + gap.Draw(t, "open"))
	for i, m := range rapid.Permutation(members).Draw(t, "members") {
		if i > 0 {
			b.WriteString(gap.Draw(t, "left") + "," + gap.Draw(t, "right"))
		}
		b.WriteString(m)
	}
	b.WriteString(gap.Draw(t, "close") + "}" + gap.Draw(t, "after"))
	return []byte(b.String())
}

func membersOf(t *rapid.T, raw []byte) []jcs.Member {
	members, err := jcs.Members(raw)
	if err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return members
}
