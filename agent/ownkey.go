package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws"
	"github.com/lmosd/lmosd/td"
)

// A keyed attaches an agent with a key of its own: it registers grants in place of TDs, and the next one before the last one ends.
type keyed struct {
	ctx    context.Context
	node   *api.Client
	holder api.KeyHolder
	draft  func() (td []byte, changed <-chan struct{})
	log    *slog.Logger

	last []byte             // the last grant, encoded
	stop context.CancelFunc // of the last wait
	work sync.WaitGroup     // the waits
}

// newKeyed signs the first grant of the Thing of o for the node of to. The caller closes the result.
func newKeyed(ctx context.Context, to Node, o *ws.AttachOptions) (*keyed, error) {
	k := &keyed{ctx: ctx, holder: api.KeyHolder{Key: to.Key, Visibility: to.Visibility}, draft: o.Changing, log: o.Log, stop: func() {}}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.draft == nil {
		raw := o.TD
		k.draft = func() ([]byte, <-chan struct{}) { return raw, nil }
	}
	var err error
	if k.node, err = api.Dial(to.Addr, to.Token); err != nil {
		return nil, err
	}
	raw, _ := k.draft()
	if _, err = k.sign(raw); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

const askWait = 10 * time.Second

// sign sets the last grant, and returns when the next one is due.
func (k *keyed) sign(raw []byte) (due time.Time, err error) {
	draft, err := td.Draft(raw)
	if err != nil {
		return time.Time{}, interact.AsError(err)
	}
	ctx, cancel := context.WithTimeout(k.ctx, askWait)
	defer cancel()
	id, err := k.node.Identity(ctx) // each time: the node may have replaced its key
	if err != nil {
		return time.Time{}, err
	}
	if err := k.holder.Follow(ctx, k.node, draft); err != nil {
		return time.Now().Add(api.OwnGrantLife / 2), err
	}
	g, due, err := k.holder.Grant(draft, id.DID, time.Now())
	if err != nil {
		return time.Time{}, interact.AsError(err)
	}
	encoded, err := g.Encode()
	if err == nil {
		k.last = encoded
	}
	return due, err
}

// next returns the grant to register, and a channel that is closed when there is another one. It replaces the Changing of [ws.AttachOptions].
func (k *keyed) next() ([]byte, <-chan struct{}) {
	k.stop()
	raw, changed := k.draft()
	due, err := k.sign(raw)
	if err != nil {
		if due.IsZero() {
			due = time.Now().Add(maxPause)
		}
		k.log.Warn("grant of the agent not signed again", "err", err)
	}
	ctx, stop := context.WithCancel(k.ctx)
	k.stop = stop
	another := make(chan struct{})
	k.work.Go(func() {
		select {
		case <-changed:
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return
		}
		close(another)
	})
	return k.last, another
}

// close ends the waits.
func (k *keyed) close() {
	k.stop()
	k.work.Wait()
	if k.node != nil {
		k.node.Close()
	}
}
