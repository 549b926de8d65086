package proof_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// A memory is a signer for examples; programs use a *keystore.Key.
type memory struct {
	private ed25519.PrivateKey
	id      did.DID
}

func (m memory) DID() did.DID { return m.id }

func (m memory) Sign(_ did.Purpose, msg []byte) ([]byte, error) {
	return ed25519.Sign(m.private, msg), nil
}

// A document is decoded strictly, signed, and verified; the result is the signed document.
func Example() {
	private := ed25519.NewKeyFromSeed(make([]byte, 32))
	id, err := did.FromKey(private.Public().(ed25519.PublicKey))
	if err != nil {
		fmt.Println(err)
		return
	}
	doc, err := jcs.Object([]byte(`{"title":"Weather","id":"urn:example:1"}`), 128<<10)
	if err != nil {
		fmt.Println(err)
		return
	}
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	if doc["proof"], err = proof.Sign(doc, memory{private, id}, proof.Options{Created: noon}); err != nil {
		fmt.Println(err)
		return
	}
	v, err := proof.Verify(context.Background(), doc, proof.Check{Now: noon})
	fmt.Println(v.Document["title"], v.Owner.Short(), v.Created.Format(time.DateOnly), err)

	doc["title"] = "Whether"
	_, err = proof.Verify(context.Background(), doc, proof.Check{Now: noon})
	fmt.Println(err)
	// Output:
	// Weather z6MkiTBz… 2026-11-20 <nil>
	// the signature of z6MkiTBz… does not verify: the document or its proof was changed after signing
}
