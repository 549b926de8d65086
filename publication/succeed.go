package publication

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// successionWait limits the time in which the withdrawals of a succession reach another node.
const successionWait = 5 * time.Second

// Succeed hands the Things of this node to the next key of the node: it stores each publication again with a TD of that key, which a publisher
// with the key restores, and then withdraws it here. With moved, references to the Things lead to those of the next key. Things of agents in
// this process, or attached to it, are only withdrawn: their agents publish them again. It may be repeated. It returns the number of Things that
// were withdrawn, after other nodes have received that or 5 s.
func (p *Publisher) Succeed(ctx context.Context, next did.Signer, moved bool) (int, error) {
	var successor did.DID
	if moved {
		successor = next.DID()
	}
	ended, err := p.succeed(ctx, next, successor)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, successionWait)
	defer cancel()
	for pending := ended; ; {
		var mu sync.Mutex
		var left []*Publication
		var all sync.WaitGroup
		for _, pub := range pending {
			all.Go(func() {
				if r := (&Result{Publication: pub, Reach: p.announceSoon(ctx, pub)}); r.IsPending() {
					mu.Lock()
					defer mu.Unlock()
					left = append(left, pub)
				}
			})
		}
		all.Wait()
		if pending = left; len(pending) == 0 || backoff.Sleep(ctx, 200*time.Millisecond) != nil {
			return len(ended), nil
		}
	}
}

// succeed stores the publications of the next key, and then the withdrawals, which it returns.
func (p *Publisher) succeed(ctx context.Context, next did.Signer, successor did.DID) (ended []*Publication, err error) {
	if err := p.o.Index.awaitAll(ctx); err != nil {
		return nil, err
	}
	p.turn.Lock()
	defer p.turn.Unlock()
	things := slices.DeleteFunc(p.orphans.things(), func(thing string) bool { return p.o.Index.Get(thing) != nil })
	for _, pub := range p.o.Index.All() {
		switch {
		case pub.Moved != "" && pub.Moved == successor: // withdrawn by an earlier call, which may not have announced it
			ended = append(ended, pub)
		case pub.Owner != "": // the grant names the old key
			if pub.Description != nil {
				last, err := p.endHostingLocked(ctx, pub, time.Now())
				if err != nil {
					return nil, fmt.Errorf("end the hosting of %s: %w", pub.Thing, err)
				}
				p.o.Log.Warn("the grant of a hosted Thing names the old key of this node: ask its owner for one with the new key", "thing", pub.Thing,
					"owner", pub.Owner, "key", next.DID())
				ended = append(ended, last)
			}
		case pub.Description != nil:
			if pub.handler == nil {
				if err := p.storeFor(ctx, next, pub); err != nil {
					return nil, fmt.Errorf("hand over %s: %w", pub.Thing, err)
				}
			}
			things = append(things, pub.Thing)
		}
	}
	for _, thing := range things {
		end := func() (*Publication, error) { return p.endLocked(ctx, thing, 0, successor) }
		if orphan := p.orphans.get(thing); orphan != nil && orphan.Owner != "" {
			end = func() (*Publication, error) { return p.endHostingLocked(ctx, orphan, time.Now()) }
		}
		pub, err := end()
		if err != nil {
			return nil, fmt.Errorf("withdraw %s: %w", thing, err)
		}
		ended = append(ended, pub)
	}
	return ended, nil
}

// storeFor stores a publication for the next key of the node: its TD, signed by that key. An id that contains the present key gets the next one.
func (p *Publisher) storeFor(ctx context.Context, next did.Signer, pub *Publication) error {
	raw, err := withoutProof(pub.Signed.TD)
	if err != nil {
		return err
	}
	members, err := jcs.Members(raw)
	if err != nil {
		return err
	}
	for i := range members {
		if members[i].Name == "id" {
			if members[i].Raw, err = json.Marshal(successorOf(pub.Thing, next.DID()).Name); err != nil {
				return err
			}
		}
	}
	t, err := td.Complete(jcs.Join(members), next.DID())
	if err != nil {
		return err
	}
	now := time.Now()
	lease := p.lease(uint64(now.UnixMilli()), now)
	for i := range lease.Hosts {
		lease.Hosts[i].Node = next.DID()
	}
	signed, err := td.Sign(t, next, lease)
	if err != nil {
		return err
	}
	of := &Publication{Thing: t.ID, Seq: lease.Seq, Signed: signed, Registration: pub.Registration, For: pub.For, Audience: t.Visibility}
	b, err := json.Marshal(of)
	if err != nil {
		return err
	}
	if err := p.o.CallerSecrets.rename(pub.Thing, t.ID); err != nil {
		return err
	}
	if err := p.o.Store.Put(ctx, storeKey(next.DID(), t.ID), b); err != nil {
		return p.o.Disk.Failed(err)
	}
	return nil
}

// isOthers reports whether a stored entry is of the other key of a node that replaces its key. Entries of the key that was replaced are deleted; the
// directory gets their withdrawals, because perhaps no other node has received them: it gives them out as long as they are valid.
func (p *Publisher) isOthers(ctx context.Context, key string, value []byte) (bool, error) {
	other := p.o.Rotation.Other(p.o.Signer.DID())
	thing := ThingOf(value)
	if other == "" || ds.RawKey(key) != storeKey(other, thing) {
		return false, nil
	}
	if p.o.Rotation.Follows(p.o.Signer.DID()) {
		p.repeatWithdrawal(ctx, value)
		if err := p.o.Store.Delete(ctx, ds.RawKey(key)); err != nil {
			return true, p.o.Disk.Failed(err)
		}
	}
	return true, nil
}

// repeatWithdrawal adds the withdrawal in a stored entry of the key that was replaced to the directory, which may have lost the last seconds before a
// crash.
func (p *Publisher) repeatWithdrawal(ctx context.Context, value []byte) {
	var old Publication
	if json.Unmarshal(value, &old) != nil || old.Withdrawn.IsZero() || old.Signed == nil || old.Owner != "" {
		return
	}
	now := time.Now()
	d, err := old.describe(ctx, p.o.Verifier, now)
	if err == nil {
		_, err = p.o.Directory.Add(d)
	}
	if err != nil {
		p.o.Log.Debug("withdrawal of the key before not repeated", "thing", old.Thing, "err", err)
	}
}

// storeKey returns the key of a Thing in the store: the hash of owner and id.
func storeKey(owner did.DID, thing string) ds.Key {
	return ds.NewKey(fmt.Sprintf("%x", td.Key(owner, thing)))
}
