package desk

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/wire"
)

// Pages of ListTasks (A2A 1.0 §3.1.4).
const (
	defaultPage = 50
	maxPage     = 100
)

// list returns the principal's tasks at this thing, by the time of their status, the newest first. A page token is the place of
// the last task of the page before, sealed: only who got it can use it, at this thing.
func (a *agent) list(op *wire.Operation) (json.RawMessage, error) {
	var p wire.List
	if e := wire.Read(op.Params, &p); e != nil {
		return nil, e
	}
	size, after, e := check(&p)
	if e != nil {
		return nil, e
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweepLocked(time.Now())
	var found []*task
	for _, t := range a.tasks {
		fits := t.principal == a.principal && t.thing == a.subject.Ref && (p.ContextID == "" || t.shown.ContextID == p.ContextID) &&
			(p.Status == "" || t.shown.Status.State == p.Status) && !t.at.Before(after)
		if fits {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, newestFirst)
	total := len(found)
	if p.PageToken != "" {
		place, e := a.unseal(p.PageToken)
		if e != nil {
			return nil, e
		}
		found = slices.DeleteFunc(found, func(t *task) bool { return newestFirst(t, place) <= 0 })
	}
	next := ""
	if len(found) > size {
		found = found[:size]
		next = a.seal(found[size-1])
	}
	tasks := make([]*wire.Task, len(found)) // never null
	for i, t := range found {
		tasks[i] = t.showLocked(p.HistoryLength, p.Artifacts)
	}
	return wire.Encode(map[string]any{"tasks": tasks, "nextPageToken": next, "pageSize": size, "totalSize": total}), nil
}

func newestFirst(x, y *task) int {
	return cmp.Or(y.at.Compare(x.at), strings.Compare(x.id, y.id))
}

// seal makes a page token of the place of a task.
func (a *agent) seal(t *task) string {
	place := append(binary.BigEndian.AppendUint64(nil, uint64(t.at.UnixNano())), t.id...)
	return base64.RawURLEncoding.EncodeToString(a.tokens.Seal(nil, nil, place, a.whose()))
}

func (a *agent) unseal(token string) (*task, *wire.Error) {
	sealed, err := base64.RawURLEncoding.DecodeString(token)
	var place []byte
	if err == nil {
		place, err = a.tokens.Open(nil, nil, sealed, a.whose())
	}
	if err != nil || len(place) < 8 {
		return nil, wire.Errorf(wire.InvalidParams, "the page token is none of this agent's").At("pageToken")
	}
	return &task{id: string(place[8:]), at: time.Unix(0, int64(binary.BigEndian.Uint64(place)))}, nil
}

// whose is what a page token is bound to.
func (a *agent) whose() []byte { return []byte(a.principal + "\x00" + a.subject.Ref) }

// newSeal returns a cipher with a key of its own, which ends with it.
func newSeal() cipher.AEAD {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err == nil {
		var seal cipher.AEAD
		if seal, err = cipher.NewGCMWithRandomNonce(block); err == nil {
			return seal
		}
	}
	panic(err) // the size of the key is right
}

func check(p *wire.List) (size int, after time.Time, e *wire.Error) {
	size = defaultPage
	if p.PageSize != nil {
		size = *p.PageSize
	}
	switch {
	case size < 1 || size > maxPage:
		return 0, after, wire.Errorf(wire.InvalidParams, "pageSize is 1 to %d", maxPage).At("pageSize")
	case p.Status != "" && !p.Status.Known():
		return 0, after, wire.Errorf(wire.InvalidParams, "status %q is no state", p.Status).At("status")
	case p.HistoryLength != nil && *p.HistoryLength < 0:
		return 0, after, wire.Errorf(wire.InvalidParams, "historyLength is below zero").At("historyLength")
	}
	if p.After != "" {
		t, err := time.Parse(time.RFC3339Nano, p.After)
		if err != nil {
			return 0, after, wire.Errorf(wire.InvalidParams, "statusTimestampAfter is no time").At("statusTimestampAfter")
		}
		after = t
	}
	return size, after, nil
}
