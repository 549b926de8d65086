package trust

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/trust/exchange"
)

// Checkpoints has the signed checkpoints of audit logs: of the one of this node, and those that other members have sent (audit.Log).
type Checkpoints interface {
	// Checkpoint returns number, hash and line of the newest one of this node; a nil line: none.
	Checkpoint() (n uint64, hash string, line []byte)
	// Lacks reports whether the one of a node with this number and hash is news.
	Lacks(node did.DID, n uint64, hash string) bool
	// Take verifies and stores one of a node.
	Take(node did.DID, line []byte) error
	// Kept returns the stored ones of a node.
	Kept(node did.DID) [][]byte
}

// Limits of the exchange of checkpoints.
const (
	announceEvery = time.Minute     // the least pause between two announcements
	keptTime      = 5 * time.Second // of one member
	keptAtOnce    = 8
)

// checkpointLocked returns the newest checkpoint of this node as a document for members, or none.
func (t *Trust) checkpointLocked() []exchange.Known {
	if t.org == nil || t.o.Checkpoints == nil {
		return nil
	}
	n, hash, line := t.o.Checkpoints.Checkpoint()
	if line == nil {
		return nil
	}
	return []exchange.Known{{SCID: t.org.SCID(), Kind: exchange.KindCheckpoint, Version: n, Head: hash}}
}

// lacksCheckpointLocked reports whether this node takes a checkpoint from a node.
func (t *Trust) lacksCheckpointLocked(from did.DID, k exchange.Known) bool {
	n := t.nodes[from]
	return t.o.Checkpoints != nil && n != nil && n.principal.Relation == did.Own && t.o.Checkpoints.Lacks(from, k.Version, k.Head)
}

// takeCheckpoint stores the checkpoint of a member.
func (t *Trust) takeCheckpoint(from did.DID, line []byte) error {
	return t.o.Checkpoints.Take(from, line)
}

// checkpointForLocked returns the newest checkpoint of this node for a member; nil for others, or if there is none.
func (t *Trust) checkpointForLocked(p *did.Principal) []byte {
	if t.o.Checkpoints == nil || p.Relation != did.Own {
		return nil
	}
	_, _, line := t.o.Checkpoints.Checkpoint()
	return line
}

// serveKept returns the checkpoints of a member that are kept here, one in a line.
func (t *Trust) serveKept(id did.DID) (*exchange.Response, error) {
	if t.o.Checkpoints == nil || t.Principal(id).Relation != did.Own {
		return nil, refused
	}
	return &exchange.Response{Body: bytes.Join(t.o.Checkpoints.Kept(id), []byte("\n"))}, nil
}

// announceCheckpoint announces a new checkpoint to the connected members. Others get it with the hello.
func (t *Trust) announceCheckpoint() {
	t.mu.Lock()
	all, now := t.checkpointLocked(), t.now()
	if len(all) == 0 || all[0].Head == t.announced || now.Sub(t.announcedAt).Abs() < announceEvery {
		t.mu.Unlock()
		return
	}
	t.announced, t.announcedAt = all[0].Head, now
	to := t.peersLocked(func(p *did.Principal) bool { return p.Relation == did.Own })
	t.mu.Unlock()
	for _, id := range to {
		t.start(func(ctx context.Context) {
			if _, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpHave, Known: all}); err != nil {
				t.o.Log.Debug("checkpoint not announced", "peer", id.Short(), "err", err)
			}
		})
	}
}

// KeptCheckpoints asks the connected members for the checkpoints of this node's audit log that they keep. Their lines are not verified.
func (t *Trust) KeptCheckpoints(ctx context.Context) []api.KeptCheckpoints {
	t.mu.RLock()
	members := t.peersLocked(func(p *did.Principal) bool { return p.Relation == did.Own })
	t.mu.RUnlock()
	all := make([]api.KeptCheckpoints, len(members))
	slots := make(chan struct{}, keptAtOnce)
	var g sync.WaitGroup
	for i, id := range members {
		slots <- struct{}{}
		g.Go(func() {
			defer func() { <-slots }()
			all[i] = t.keptAt(ctx, id)
		})
	}
	g.Wait()
	return all
}

// keptAt asks one member.
func (t *Trust) keptAt(ctx context.Context, id did.DID) api.KeptCheckpoints {
	ctx, cancel := context.WithTimeout(ctx, keptTime)
	defer cancel()
	k := api.KeptCheckpoints{Node: id, Lines: []string{}}
	r, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpKept})
	if err != nil {
		k.Error = err.Error()
		return k
	}
	for line := range bytes.SplitSeq(r.Body, []byte("\n")) {
		if len(line) > 0 {
			k.Lines = append(k.Lines, string(line))
		}
	}
	return k
}
