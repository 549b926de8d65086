package organization

import (
	"encoding/json"

	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// maxDocument limits the documents of [Organization.Sign], in bytes.
const maxDocument = 4 << 20

// Sign returns the JSON object of v with a proof by the issuing key of this node. The error wraps [ErrNotIssuer].
func (o *Organization) Sign(v any) ([]byte, error) {
	signer, method, err := o.Signer()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	doc, err := jcs.Object(text, maxDocument)
	if err != nil {
		return nil, err
	}
	if doc["proof"], err = proof.Sign(doc, signer, proof.Options{Created: o.now(), Method: method}); err != nil {
		return nil, err
	}
	return jcs.Append(nil, doc)
}
