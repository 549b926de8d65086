package node

import (
	"context"
	"iter"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// exported is the mesh as bridges see it (bridge.Mesh).
type exported struct{ *Node }

// Do asks any thing, here or elsewhere.
func (e exported) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return e.mesh.Do(ctx, m)
}

// Signer is the node's key.
func (e exported) Signer() did.Signer { return e.key }

// PublicURL is where consumers elsewhere reach the API.
func (e exported) PublicURL() string {
	if e.opts.HTTP == nil {
		return ""
	}
	return e.opts.HTTP.PublicURL
}
