package api

import (
	"context"

	"github.com/lmosd/lmosd/did"
)

// KeptCheckpoints are the checkpoints of the audit log of this node that another member keeps. Their signatures are not verified yet
// (audit.ParseCheckpoint).
type KeptCheckpoints struct {
	Node did.DID `json:"node"`
	// Lines are signed lines of the log.
	Lines []string `json:"lines"`
	// Error is the reason if the member did not answer.
	Error string `json:"error,omitempty"`
}

// KeptCheckpointsList is GET /v1/audit/checkpoints: one entry for each connected member.
type KeptCheckpointsList struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []KeptCheckpoints `json:"items"`
}

// KeptCheckpoints asks the connected members for the checkpoints of the audit log of this node that they keep.
func (c *Client) KeptCheckpoints(ctx context.Context) (*KeptCheckpointsList, error) {
	return get[KeptCheckpointsList](ctx, c, "/v1/audit/checkpoints")
}
