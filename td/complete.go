package td

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jsonedit"
)

// Complete makes a TD ready to be signed by owner. It adds the contexts that a signed TD has: those of TD 1.0 and 1.1
// in this order, which every known client reads; that of WoT Discovery, so that a directory need not add it later;
// that of Data Integrity; and the prefixes "lmos" and "lmosd", if their terms are used. If the TD has no id, it gets
// "urn:lmos:<owner>:<slug of the title>". All else stays byte for byte, and a TD that lacks nothing is returned as it
// is.
//
// A TD that is signed already is never changed: its proof must verify, by did:key alone, and [Sign] accepts it from
// its owner only. A member "registration" is refused: it is what a directory says. The error is a [*ValidationError],
// or wraps [ErrOwner] for an id that names another owner, or [ErrSignature] for a proof that does not verify.
func Complete(raw []byte, owner did.DID) (*Thing, error) {
	t, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if _, ok := t.doc["registration"]; ok {
		return nil, invalid("/registration", "is what a directory says about a TD; remove it before the TD is signed")
	}
	if _, ok := t.doc["proof"]; ok {
		return t, checkSigned(t)
	}
	if t.ID != "" {
		if err := checkOwner(t.ID, owner); err != nil {
			return nil, err
		}
	}
	edits := completion(t, owner)
	if len(edits) == 0 {
		return t, nil
	}
	return Parse(apply(t.Raw, edits))
}

func invalid(pointer, reason string) error {
	return &ValidationError{Issues: []Issue{{Pointer: pointer, Reason: reason}}}
}

// checkSigned refuses a signed TD that nobody would accept.
func checkSigned(t *Thing) error {
	if t.ID == "" {
		return invalid("", `the TD is signed and "id" is missing: remove "proof" to have both made`)
	}
	// Whether the proof is in its time is for Sign to say, which has a clock.
	created, _ := time.Parse(time.RFC3339, text(object(t.doc["proof"])["created"]))
	if _, err := proof.Verify(context.Background(), t.doc, proof.Check{Now: created}); err != nil {
		return fmt.Errorf(`%w: %w; remove "proof" to have the TD signed anew`, ErrSignature, err)
	}
	return nil
}

// completion returns the edits that make t complete.
func completion(t *Thing, owner did.DID) []edit {
	open := jsonedit.SkipSpace(t.Raw, 0)
	members := parts(t.Raw, open)
	at := slices.IndexFunc(members, func(m span) bool {
		var name string
		_ = json.Unmarshal(t.Raw[m.from:jsonedit.SkipString(t.Raw, m.from)], &name) // valid: it was decoded before
		return name == "@context"
	})
	value := valueOf(t.Raw, members[at]) // the schema requires @context
	edits := completeContext(t, value)
	if t.ID == "" {
		id := separator(t.Raw, open, members) + `"id": ` + quote(mintID(owner, Slug(t.Title)))
		edits = append(edits, edit{span{value.to, value.to}, id})
	}
	return edits
}

// quote writes ASCII as a JSON string.
func quote(s string) string { return string(bytesOf(s)) }

// completeContext returns the edits for what is missing in @context, whose value stands at v.
func completeContext(t *Thing, v span) []edit {
	front, middle, last := missingContexts(t.doc)
	if t.Raw[v.from] == '"' {
		return contextArray(t.Raw, v, front, middle, last)
	}
	all := parts(t.Raw, v.from)
	sep := separator(t.Raw, v.from, all)
	if len(all) == 1 && !bytes.Contains([]byte(sep), []byte("\n")) {
		sep = ", "
	}
	var edits []edit
	for _, uri := range front {
		edits = append(edits, edit{span{all[0].from, all[0].from}, quote(uri) + sep})
	}
	after := all[tdContexts(t.doc)-1].to
	for _, uri := range middle {
		edits = append(edits, edit{span{after, after}, sep + quote(uri)})
	}
	if len(last) > 0 {
		edits = append(edits, prefixEdit(t.Raw, all, sep, last))
	}
	return edits
}

// contextArray makes an array of a @context that is one string.
func contextArray(b []byte, v span, front, middle []string, last []prefix) []edit {
	if len(front)+len(middle)+len(last) == 0 {
		return nil
	}
	text := "["
	for _, uri := range front {
		text += quote(uri) + ", "
	}
	text += string(b[v.from:v.to])
	for _, uri := range middle {
		text += ", " + quote(uri)
	}
	if len(last) > 0 {
		text += ", {" + declarations(last) + "}"
	}
	return []edit{{v, text + "]"}}
}

func declarations(all []prefix) string {
	members := make([]string, len(all))
	for i, p := range all {
		members[i] = p.member()
	}
	return strings.Join(members, ", ")
}

// prefixEdit adds prefixes to the first map of @context, or appends a map.
func prefixEdit(b []byte, all []span, sep string, missing []prefix) edit {
	for _, e := range all {
		if b[e.from] != '{' {
			continue
		}
		text := declarations(missing)
		if len(parts(b, e.from)) > 0 {
			text += ", "
		}
		return edit{span{e.from + 1, e.from + 1}, text}
	}
	end := all[len(all)-1].to
	return edit{span{end, end}, sep + "{" + declarations(missing) + "}"}
}

// tdContexts returns how many entries of @context, from the first, are versions of the TD context: at least one.
func tdContexts(doc map[string]any) int {
	list := contexts(doc)
	n := slices.IndexFunc(list, func(c any) bool { return c != Context10 && c != Context11 })
	if n < 0 {
		return len(list)
	}
	return max(n, 1)
}

// missingContexts returns the entries that @context lacks before its first entry and after its TD contexts, and the missing prefixes.
func missingContexts(doc map[string]any) (front, middle []string, last []prefix) {
	list := contexts(doc)
	has := func(uri string) bool { return slices.Contains(list, any(uri)) }
	switch {
	case has(Context11) && !has(Context10):
		front = append(front, Context10)
	case has(Context10) && !has(Context11):
		middle = append(middle, Context11)
	}
	for _, uri := range []string{ContextDiscovery, ContextProof} {
		if !has(uri) {
			middle = append(middle, uri)
		}
	}
	return front, middle, missingPrefixes(doc)
}
