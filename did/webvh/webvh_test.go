package webvh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/proof"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// key returns the nth test key.
func key(n byte) *keystore.Key { return didtest.Key(int(n)) }

func document(id did.DID) map[string]any {
	issuer := string(id) + "#i1"
	return map[string]any{"@context": []any{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"}, "id": string(id),
		"alsoKnownAs": []any{string(Web(id))}, "assertionMethod": []any{issuer},
		"verificationMethod": []any{map[string]any{"id": issuer, "type": "Multikey", "controller": string(id),
			"publicKeyMultibase": key(9).DID().Multibase()}}}
}

func create(t testing.TB) *Log {
	t.Helper()
	l, err := Create("acme.example", key(1), Update{Document: document, NextKeyHashes: []string{KeyHash(key(2).DID().Multibase())}, Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLogLivesThroughRotationRecoveryAndDeactivation(t *testing.T) {
	t.Parallel()
	l := create(t)
	if l.Len() != 1 || SCID(l.DID()) != l.SCID() || !strings.HasSuffix(string(l.DID()), ":acme.example") || l.TTL() != time.Hour {
		t.Errorf("got %s, %d versions, ttl %s", l.DID(), l.Len(), l.TTL())
	}
	doc, err := l.Document()
	if err != nil || len(doc.AssertionMethod) != 1 || doc.ID != l.DID() {
		t.Fatalf("document %+v: %v", doc, err)
	}
	next := func(k byte) []string { return []string{KeyHash(key(k).DID().Multibase())} }
	keys := func(k byte) []string { return []string{key(k).DID().Multibase()} }
	if _, err := l.Append(key(1), Update{UpdateKeys: keys(1), NextKeyHashes: next(3), Now: noon.Add(time.Hour)}); err == nil {
		t.Error("the first key, which is not committed, extended the log")
	}
	l2, err := l.Append(key(2), Update{UpdateKeys: keys(2), NextKeyHashes: next(3), Now: noon.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if !l2.Has(l.Head()) || l.Has(l2.Head()) || l2.SCID() != l.SCID() || l2.Forked(l) {
		t.Error("the second version does not extend the first")
	}
	other, err := l.Append(key(2), Update{UpdateKeys: keys(2), NextKeyHashes: next(4), Now: noon.Add(time.Hour)})
	if err != nil || !l2.Forked(other) || !other.Forked(l2) {
		t.Errorf("two second versions: forked %v, %v", l2.Forked(other), err)
	}
	end, err := l2.Append(key(3), Update{UpdateKeys: keys(3), NextKeyHashes: []string{}, Deactivate: true, Now: noon.Add(2 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := end.Document(); !errors.Is(err, ErrDeactivated) || !end.Deactivated() {
		t.Errorf("document of a deactivated DID: %v", err)
	}
	if _, err := end.Append(key(3), Update{Now: noon.Add(3 * time.Hour)}); err == nil {
		t.Error("a deactivated DID was extended")
	}
	copied, err := Verify(end.Bytes(), Check{DID: l.DID(), Now: noon.Add(3 * time.Hour)})
	if err != nil || copied.Head() != end.Head() || !bytes.Equal(copied.Bytes(), end.Bytes()) {
		t.Errorf("verified again: %v", err)
	}
	if _, err := l2.Append(key(3), Update{UpdateKeys: keys(3), NextKeyHashes: next(4), Now: noon}); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("a clock an hour behind: %v", err)
	}
}

func TestTwoVersionsInOneSecond(t *testing.T) {
	t.Parallel()
	l, err := Create("acme.example", key(1), Update{Document: document, Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	l2, err := l.Append(key(1), Update{Now: noon})
	if err != nil || !l2.Updated().After(l.Updated()) {
		t.Errorf("%v", err)
	}
}

func TestWebDocument(t *testing.T) {
	t.Parallel()
	l := create(t)
	raw, err := l.WebDocument()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := did.ParseDocument(raw, "did:web:acme.example")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(doc.AlsoKnownAs, []string{string(l.DID())}) || doc.AssertionMethod[0] != "did:web:acme.example#i1" || len(doc.Service) != 2 {
		t.Errorf("got %s", raw)
	}
}

// forge returns a log of one or two versions, whose hashes and signatures are right: of what change makes of the last.
func forge(t testing.TB, versions int, change func(e map[string]any)) []byte {
	t.Helper()
	first := map[string]any{"versionId": placeholder, "versionTime": noon.Format(time.RFC3339), "state": document(prefix + placeholder + ":acme.example"),
		"parameters": map[string]any{"method": version, "scid": placeholder, "updateKeys": []any{key(1).DID().Multibase()}}}
	if versions == 1 {
		change(first)
	}
	raw, err := firstLine(first, key(1), noon)
	if err != nil {
		t.Fatal(err)
	}
	if versions == 1 {
		return raw
	}
	l, err := Verify(raw, Check{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	e := map[string]any{"versionTime": noon.Add(time.Second).Format(time.RFC3339), "parameters": map[string]any{}, "state": l.State()}
	change(e)
	line, err := nextLine(e, 2, l.Head(), key(1), noon)
	if err != nil {
		t.Fatal(err)
	}
	return append(raw, line...)
}

func parameter(name string, v any) func(map[string]any) {
	return func(e map[string]any) { e["parameters"].(map[string]any)[name] = v }
}

func TestWrongLogsAreRejected(t *testing.T) {
	t.Parallel()
	elsewhere := func(e map[string]any) {
		e["state"].(map[string]any)["id"] = strings.Replace(e["state"].(map[string]any)["id"].(string), "acme", "evil", 1)
	}
	weak := "z6Mk" + strings.Repeat("1", 44)
	for name, c := range map[string]struct {
		versions int
		change   func(map[string]any)
		want     string
	}{
		"time in the future":             {1, func(e map[string]any) { e["versionTime"] = "2026-11-20T12:06:00Z" }, "in the future"},
		"time without a zone":            {1, func(e map[string]any) { e["versionTime"] = "2026-11-20T12:00:00" }, "not a time in UTC"},
		"time in another zone":           {1, func(e map[string]any) { e["versionTime"] = "2026-11-20T12:00:00+01:00" }, "not a time in UTC"},
		"equal time":                     {2, func(e map[string]any) { e["versionTime"] = noon.Format(time.RFC3339) }, "not after"},
		"another method":                 {1, parameter("method", "did:webvh:0.5"), "method"},
		"method of a later version":      {2, parameter("method", "did:webvh:2.0"), "method"},
		"no update keys":                 {1, parameter("updateKeys", []any{}), "updateKeys"},
		"update key of another kind":     {1, parameter("updateKeys", []any{weak}), "updateKeys"},
		"repeated update key":            {1, parameter("updateKeys", []any{key(1).DID().Multibase(), key(1).DID().Multibase()}), "repeated"},
		"hash that is none":              {1, parameter("nextKeyHashes", []any{"QmX"}), "nextKeyHashes"},
		"second SCID":                    {2, parameter("scid", KeyHash("x")), "only the first version"},
		"portable later":                 {2, parameter("portable", true), "only the first version"},
		"portable as text":               {1, parameter("portable", "true"), "a boolean"},
		"unknown parameter":              {1, parameter("prerotation", true), "unknown"},
		"ttl below zero":                 {1, parameter("ttl", -1.0), "ttl"},
		"ttl in parts of a second":       {1, parameter("ttl", 0.5), "ttl"},
		"another domain":                 {2, elsewhere, "not portable"},
		"document of another log":        {2, func(e map[string]any) { e["state"].(map[string]any)["id"] = prefix + KeyHash("x") + ":acme.example" }, "has the SCID"},
		"document of another method":     {2, func(e map[string]any) { e["state"].(map[string]any)["id"] = "did:web:acme.example" }, "not a did:webvh"},
		"document at an address":         {1, func(e map[string]any) { e["state"].(map[string]any)["id"] = prefix + placeholder + ":127.0.0.1" }, "address"},
		"witness without threshold":      {1, parameter("witness", map[string]any{"witnesses": []any{map[string]any{"id": string(key(5).DID())}}}), "threshold"},
		"witness named twice":            {1, parameter("witness", witnesses(2, 5, 5)), "repeated"},
		"witness that is a bare key":     {1, parameter("witness", map[string]any{"threshold": 1.0, "witnesses": []any{map[string]any{"id": key(5).DID().Multibase()}}}), "not a did:key"},
		"threshold above the witnesses":  {1, parameter("witness", witnesses(2, 5)), "threshold"},
		"threshold of zero":              {1, parameter("witness", witnesses(0, 5)), "threshold"},
		"witnesses that are not objects": {1, parameter("witness", map[string]any{"threshold": 1.0, "witnesses": []any{"x"}}), "not a did:key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Verify(forge(t, c.versions, c.change), Check{Now: noon})
			if !errors.Is(err, did.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestChangedBytesAreRejected(t *testing.T) {
	t.Parallel()
	whole := create(t).Bytes()
	l, err := Verify(whole, Check{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		changed := bytes.Clone(whole)
		changed[i] ^= 1
		if got, err := Verify(changed, Check{Now: noon}); err == nil && got.Head() != l.Head() {
			t.Fatalf("byte %d: %q verifies as another log", i, changed[i])
		}
	}
	first := string(forge(t, 1, func(map[string]any) {}))
	for name, raw := range map[string]string{
		"empty":                 "",
		"blank lines":           "\n\n",
		"first version missing": strings.SplitAfter(string(forge(t, 2, func(map[string]any) {})), "\n")[1],
		"a version twice":       first + first,
		"no proof":              strings.Replace(first, `"proof":`, `"proofs":`, 1),
		"member twice":          strings.Replace(first, `{"parameters":`, `{"state":{},"parameters":`, 1),
		"array":                 "[" + strings.TrimSpace(first) + "]\n",
		"extra member":          strings.Replace(first, `{"parameters":`, `{"registration":{},"parameters":`, 1),
		"too large":             strings.Repeat(" ", MaxLog+1),
	} {
		if _, err := Verify([]byte(raw), Check{Now: noon}); !errors.Is(err, did.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysMaySignOnlyWhatTheLogPermits(t *testing.T) {
	t.Parallel()
	first, err := Create("acme.example", key(1), Update{Document: document, Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	for name, u := range map[string]Update{
		"a foreign key":                 {},
		"a key that the version itself": {UpdateKeys: []string{key(2).DID().Multibase()}},
	} {
		if _, err := first.Append(key(2), u); !errors.Is(err, did.ErrInvalid) || !strings.Contains(err.Error(), "may not sign") {
			t.Errorf("%s: %v", name, err)
		}
	}
	committed := create(t)
	for name, u := range map[string]Update{
		"update keys omitted":   {NextKeyHashes: []string{KeyHash("x")}},
		"next hashes omitted":   {UpdateKeys: []string{key(2).DID().Multibase()}},
		"a key beside the hash": {UpdateKeys: []string{key(2).DID().Multibase(), key(3).DID().Multibase()}, NextKeyHashes: []string{KeyHash("x")}},
	} {
		if _, err := committed.Append(key(2), u); !errors.Is(err, did.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPortableLogMovesAndKeepsItsSCID(t *testing.T) {
	t.Parallel()
	raw := forge(t, 1, parameter("portable", true))
	l, err := Verify(raw, Check{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	move := func(aliases ...any) error {
		state := l.State()
		state["id"] = prefix + l.SCID() + ":acme.test"
		state["alsoKnownAs"] = aliases
		moved, err := l.Append(key(1), Update{Document: func(did.DID) map[string]any { return state }, Now: noon})
		if err == nil && (moved.DID() == l.DID() || moved.SCID() != l.SCID()) {
			t.Errorf("moved to %s", moved.DID())
		}
		return err
	}
	if err := move(string(l.DID())); err != nil {
		t.Error(err)
	}
	if err := move(); err == nil || !strings.Contains(err.Error(), "alsoKnownAs") {
		t.Errorf("moved without the old DID: %v", err)
	}
}

// witnesses is the parameter for test keys.
func witnesses(threshold int, keys ...byte) any {
	all := []any{}
	for _, n := range keys {
		all = append(all, map[string]any{"id": string(key(n).DID())})
	}
	return map[string]any{"threshold": float64(threshold), "witnesses": all}
}

// approve returns a proof of witness n for a version.
func approve(t *testing.T, n byte, versionID string) map[string]any {
	t.Helper()
	doc := map[string]any{"versionId": versionID}
	p, err := proof.Sign(doc, key(n), proof.Options{Created: noon})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{"versionId": versionID, "proof": []any{p}}
}

func TestWitnessesMustApprove(t *testing.T) {
	t.Parallel()
	ids := func(raw []byte) (all []string) {
		for line := range bytes.Lines(raw) {
			e, err := decode(bytes.TrimSpace(line))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e["versionId"].(string))
		}
		return all
	}
	one := forge(t, 1, parameter("witness", witnesses(2, 5, 6, 7)))
	two := forge(t, 2, parameter("witness", witnesses(1, 5)))
	id, later := ids(one)[0], ids(two)
	bad := approve(t, 6, id)
	bad["proof"].([]any)[0].(map[string]any)["created"] = "2026-11-20T11:00:00Z"
	for name, c := range map[string]struct {
		raw    []byte
		proofs []any
		ok     bool
	}{
		"two of three":              {one, []any{approve(t, 5, id), approve(t, 7, id)}, true},
		"none":                      {one, nil, false},
		"one":                       {one, []any{approve(t, 5, id)}, false},
		"one twice":                 {one, []any{approve(t, 5, id), approve(t, 5, id)}, false},
		"a stranger":                {one, []any{approve(t, 5, id), approve(t, 8, id)}, false},
		"a wrong signature":         {one, []any{approve(t, 5, id), bad}, false},
		"for another log":           {one, []any{approve(t, 5, id), approve(t, 6, "1-"+KeyHash("x"))}, false},
		"a first rule, its version": {two, []any{approve(t, 5, later[1])}, true},
		"a first rule, another one": {two, []any{approve(t, 5, later[0])}, false},
		"things that are no proofs": {one, []any{approve(t, 5, id), map[string]any{"versionId": id, "proof": []any{1.0, nil}}, 3.0}, false},
		"a file that is not a list": {one, []any{approve(t, 5, id)}, false},
		"versions beyond the limit": {one, slices.Repeat([]any{approve(t, 5, id)}, maxSeen+1), false},
		"two, and one wrong":        {one, []any{bad, approve(t, 5, id), approve(t, 7, id)}, true},
		"proofs beyond the witnesses": {one, []any{approve(t, 5, id), map[string]any{"versionId": id,
			"proof": append(slices.Repeat([]any{1.0}, maxWitnesses), approve(t, 7, id)["proof"].([]any)...)}}, false},
	} {
		raw := canonical(c.proofs)
		if name == "a file that is not a list" {
			raw = canonical(c.proofs[0])
		}
		if _, err := Verify(c.raw, Check{Witness: raw, Now: noon}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The rule of the version before approves the version that replaces it.
	first, err := Verify(one, Check{Witness: canonical([]any{approve(t, 5, id), approve(t, 6, id)}), Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	line, err := nextLine(map[string]any{"versionTime": noon.Add(time.Second).Format(time.RFC3339), "state": first.State(),
		"parameters": map[string]any{"witness": map[string]any{}}}, 2, first.Head(), key(1), noon)
	if err != nil {
		t.Fatal(err)
	}
	replaced := slices.Concat(one, line)
	last := ids(replaced)[1]
	for name, c := range map[string]struct {
		proofs []any
		ok     bool
	}{
		"removed with approval":    {[]any{approve(t, 5, last), approve(t, 6, last)}, true},
		"removed without approval": {[]any{approve(t, 5, id), approve(t, 6, id)}, false},
	} {
		if _, err := Verify(replaced, Check{Witness: canonical(c.proofs), Now: noon}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestURL(t *testing.T) {
	t.Parallel()
	scid := KeyHash("x")
	for location, want := range map[string]string{
		"example.com":             "https://example.com/.well-known/did.jsonl",
		"example.com:dids:issuer": "https://example.com/dids/issuer/did.jsonl",
		"127.0.0.1":               "",
	} {
		got, err := URL(did.DID(prefix + scid + ":" + location))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", location, got, err)
		}
	}
	for _, id := range []did.DID{"did:webvh:" + did.DID(scid), "did:webvh::example.com", "did:webvh:Qm:example.com", "did:web:example.com", ""} {
		if _, err := URL(id); err == nil {
			t.Errorf("%q has a URL", id)
		}
	}
}

// serve answers at https://acme.example:PORT, as the resolver sees it.
func serve(t *testing.T, h http.HandlerFunc) (*Resolver, string) {
	t.Helper()
	o, port := didtest.Serve(t, h)
	return New(o), "acme.example%3A" + port
}

func TestResolve(t *testing.T) {
	t.Parallel()
	var files map[string]string
	r, location := serve(t, func(w http.ResponseWriter, q *http.Request) {
		text, ok := files[q.URL.Path]
		switch {
		case strings.HasPrefix(text, "https:"):
			http.Redirect(w, q, text, http.StatusFound)
		case ok:
			_, _ = fmt.Fprint(w, text)
		default:
			http.NotFound(w, q)
		}
	})
	l, err := Create(location+":org", key(1), Update{Document: document})
	if err != nil {
		t.Fatal(err)
	}
	resolve := func(text string) error {
		files = map[string]string{"/org/did.jsonl": text}
		doc, err := r.Resolve(t.Context(), l.DID())
		if err == nil && doc.ID != l.DID() {
			t.Errorf("the document of %s", doc.ID)
		}
		return err
	}
	if err := resolve(string(l.Bytes())); err != nil {
		t.Error(err)
	}
	if err := resolve("https://evil.example/did.jsonl"); err == nil || !strings.Contains(err.Error(), "redirected") {
		t.Errorf("a redirect: %v", err)
	}
	if err := resolve(string(create(t).Bytes())); !errors.Is(err, did.ErrInvalid) {
		t.Errorf("the log of another DID: %v", err)
	}
	if err := resolve(strings.Repeat("\n", MaxLog+10)); !errors.Is(err, did.ErrInvalid) {
		t.Errorf("a log without end: %v", err)
	}
	files = nil
	if _, err := r.Resolve(t.Context(), l.DID()); !errors.Is(err, did.ErrNotFound) {
		t.Errorf("no log: %v", err)
	}
	// The file of the witnesses is fetched if the log needs it.
	witnessed := forge(t, 1, func(e map[string]any) {
		e["state"] = document(did.DID(prefix + placeholder + ":" + location))
		parameter("witness", witnesses(1, 5))(e)
	})
	var first struct {
		VersionID string `json:"versionId"`
		State     struct{ ID did.DID }
	}
	if err := json.Unmarshal(witnessed, &first); err != nil {
		t.Fatal(err)
	}
	files = map[string]string{"/.well-known/did.jsonl": string(witnessed)}
	if _, err := r.Resolve(t.Context(), first.State.ID); !errors.Is(err, did.ErrNotFound) {
		t.Errorf("without the file of the witnesses: %v", err)
	}
	files["/.well-known/did-witness.json"] = string(canonical([]any{approve(t, 5, first.VersionID)}))
	if _, err := r.Resolve(t.Context(), first.State.ID); err != nil {
		t.Errorf("with the file of the witnesses: %v", err)
	}
}

func TestCreateRejectsBadInput(t *testing.T) {
	t.Parallel()
	for _, location := range []string{"", "127.0.0.1", "acme.example/x", "acme.example:..", "acme.example#x", "häuser.example"} {
		if _, err := Create(location, key(1), Update{Document: document}); err == nil {
			t.Errorf("%q is a location", location)
		}
	}
	for name, doc := range map[string]func(did.DID) map[string]any{
		"none":         nil,
		"a Go integer": func(id did.DID) map[string]any { return map[string]any{"id": string(id), "n": 1} },
		"another id":   func(did.DID) map[string]any { return map[string]any{"id": "did:web:acme.example"} },
	} {
		if _, err := Create("acme.example", key(1), Update{Document: doc}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzVerify(f *testing.F) {
	one := forge(f, 1, func(map[string]any) {})
	f.Add(one, []byte("[]"))
	f.Add(forge(f, 2, parameter("witness", witnesses(1, 5))), []byte(`[{"versionId":"1-x","proof":{}}]`))
	f.Fuzz(func(t *testing.T, raw, witness []byte) {
		l, err := Verify(raw, Check{Witness: witness, Now: noon})
		if err != nil {
			return
		}
		again, err := Verify(l.Bytes(), Check{Witness: witness, Now: noon, DID: l.DID()})
		if err != nil || again.Head() != l.Head() {
			t.Fatalf("a verified log does not verify again: %v", err)
		}
		_, _ = l.Document()
		_, _ = l.WebDocument()
	})
}
