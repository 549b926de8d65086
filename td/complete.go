package td

import (
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

// Complete prepares a TD for signing by owner. It adds the contexts of a signed TD: those of TD 1.0 and 1.1 in this order, which all known
// clients accept; that of WoT Discovery, because a directory cannot add it to a signed TD; that of Data Integrity; and the prefixes "lmos"
// and "lmosd", if their terms are used. A TD without an id gets "urn:lmos:<owner>:<slug of the title>". All other bytes are unchanged. A
// complete TD is returned unchanged.
//
// A signed TD is never changed: its proof must verify with did:key alone, and [Sign] accepts it only from its owner. A member
// "registration" is rejected, because only a directory adds it. The error is a [*ValidationError], or wraps [ErrOwner] for an id that
// contains another owner, or [ErrSignature] for a proof that does not verify.
func Complete(raw []byte, owner did.DID) (*Thing, error) {
	t, err := check(raw)
	if err != nil {
		return nil, err
	}
	if _, ok := t.doc["registration"]; ok {
		return nil, invalid("/registration", "is added by directories; remove it before the TD is signed")
	}
	if _, ok := t.doc["proof"]; ok {
		return t.withView(), checkSigned(t)
	}
	if t.ID != "" {
		if err := checkOwner(t.ID, owner); err != nil {
			return nil, err
		}
	}
	edits := completion(t, owner)
	if len(edits) == 0 {
		return t.withView(), nil
	}
	t.Raw = apply(t.Raw, edits)
	if t.doc, err = decode(t.Raw); err != nil { // it is too large now
		return nil, err
	}
	return t.withView(), nil
}

func invalid(pointer, reason string) error {
	return &ValidationError{Issues: []Issue{{Pointer: pointer, Reason: reason}}}
}

// checkSigned returns an error for a signed TD that every receiver rejects.
func checkSigned(t *Thing) error {
	if t.ID == "" {
		return invalid("", `the TD is signed and "id" is missing: remove "proof" to have both added`)
	}
	// Sign checks the validity period of the proof, because it has the time.
	created, _ := time.Parse(time.RFC3339, text(object(t.doc["proof"])["created"]))
	if _, err := proof.Verify(context.Background(), t.doc, proof.Check{Now: created}); err != nil {
		return fmt.Errorf(`%w: %w; remove "proof" to have the TD signed again`, ErrSignature, err)
	}
	return nil
}

// completion returns the edits that complete t.
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

// quote returns ASCII text as a JSON string.
func quote(s string) string { return string(bytesOf(s)) }

// completeContext returns the edits for the missing entries of @context, whose value is at v.
func completeContext(t *Thing, v span) []edit {
	front, middle, last := missingContexts(t.doc)
	if t.Raw[v.from] == '"' {
		return contextArray(t.Raw, v, front, middle, last)
	}
	all := parts(t.Raw, v.from)
	sep := separator(t.Raw, v.from, all)
	if len(all) == 1 && !strings.Contains(sep, "\n") {
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

// contextArray returns the edit that converts a @context of one string to an array.
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

// tdContexts returns the number of leading entries of @context that are versions of the TD context, at least 1.
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
