package did_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/did"
)

// The document of a did:key, with $D for the DID, $K and $X for the two fragments.
const keyDocument = `{"@context":["https://www.w3.org/ns/did/v1","https://w3id.org/security/multikey/v1"],"id":"$D",` +
	`"verificationMethod":[{"id":"$D#$K","type":"Multikey","controller":"$D","publicKeyMultibase":"$K"}],` +
	`"authentication":["$D#$K"],"assertionMethod":["$D#$K"],"capabilityInvocation":["$D#$K"],` +
	`"capabilityDelegation":["$D#$K"],` +
	`"keyAgreement":[{"id":"$D#$X","type":"Multikey","controller":"$D","publicKeyMultibase":"$X"}]}`

func TestKeyDocuments(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		doc, err := did.Keys().Resolve(t.Context(), did.DID(v.did))
		if err != nil {
			t.Fatal(err)
		}
		want := strings.NewReplacer("$D", v.did, "$K", v.did[8:], "$X", v.x).Replace(keyDocument)
		if string(doc.Raw) != want {
			t.Errorf("%s: document\n%s\nwant\n%s", v.name, doc.Raw, want)
		}
		// The typed view equals that of the parsed bytes.
		read, err := did.ParseDocument(doc.Raw, did.DID(v.did))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read, doc); diff != "" {
			t.Errorf("%s: computed document differs from its own bytes:\n%s", v.name, diff)
		}
	}
}

func TestKeysResolveDIDKeyOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		id   did.DID
		want error
	}{
		{"did:web:example.com", did.ErrMethod},
		{p256, did.ErrMethod},
		{"", did.ErrMethod},
		{did.DID(string(counting) + "x"), did.ErrInvalid},
	} {
		if doc, err := did.Keys().Resolve(t.Context(), c.id); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.id, doc, err, c.want)
		}
	}
}

// A fixedResolver has a fixed result.
type fixedResolver struct {
	doc *did.Document
	err error
}

func (a fixedResolver) Resolve(context.Context, did.DID) (*did.Document, error) { return a.doc, a.err }

func TestResolversDispatchByMethod(t *testing.T) {
	t.Parallel()
	web := &did.Document{ID: "did:web:example.com"}
	r := did.Resolvers(map[string]did.Resolver{"key": did.Keys(), "web": fixedResolver{doc: web}})
	if doc, err := r.Resolve(t.Context(), web.ID); err != nil || doc != web {
		t.Errorf("did:web: %v, %v", doc, err)
	}
	if doc, err := r.Resolve(t.Context(), counting); err != nil || doc.ID != counting {
		t.Errorf("did:key: %v, %v", doc, err)
	}
	for _, id := range []did.DID{"did:dht:x", ""} {
		if _, err := r.Resolve(t.Context(), id); !errors.Is(err, did.ErrMethod) {
			t.Errorf("%q: %v, want ErrMethod", id, err)
		}
	}
}

func TestFallbackUsesTheNextOnlyForOtherMethods(t *testing.T) {
	t.Parallel()
	found := &did.Document{ID: "did:key:x"}
	unknown, missing := fixedResolver{err: did.ErrMethod}, fixedResolver{err: did.ErrNotFound}
	for _, c := range []struct {
		name string
		rs   []did.Resolver
		doc  *did.Document
		err  error
	}{
		{"the first has the document", []did.Resolver{fixedResolver{doc: found}, missing}, found, nil},
		{"the second has the document", []did.Resolver{unknown, fixedResolver{doc: found}}, found, nil},
		{"a rejection is final", []did.Resolver{missing, fixedResolver{doc: found}}, nil, did.ErrNotFound},
		{"unknown method", []did.Resolver{unknown, unknown}, nil, did.ErrMethod},
		{"no resolvers", nil, nil, did.ErrMethod},
	} {
		doc, err := did.Fallback(c.rs...).Resolve(t.Context(), "did:key:x")
		if doc != c.doc || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", c.name, doc, err)
		}
	}
}
