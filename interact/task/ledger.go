package task

import (
	"cmp"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/td"
)

// Limits of the texts of an entry, and of a stored entry, in bytes.
const (
	maxActionID = 256 // interact.Message.ActionID
	maxThing    = td.MaxID + 256
	maxAction   = 1024
	maxEntry    = 32 << 10
)

// A Store stores the entries of a [Ledger]; every go-datastore implements it. The ledger needs a store or namespace of its own.
type Store interface {
	Put(ctx context.Context, key ds.Key, value []byte) error
	Delete(ctx context.Context, key ds.Key) error
	Query(ctx context.Context, q query.Query) (query.Results, error)
	// Sync returns when all writes are durable.
	Sync(ctx context.Context, prefix ds.Key) error
}

// LedgerOptions are the settings of a [Ledger]. The zero value works.
type LedgerOptions struct {
	// Keep is how long an entry is kept after the start of its action; 0 means a day.
	Keep time.Duration
	// Max limits the entries; 0 means 10,000. Above it, the oldest are dropped.
	Max int
	// Log receives warnings; nil discards them.
	Log *slog.Logger
}

// An Entry is an action that a consumer of this node has started.
type Entry struct {
	// ActionID identifies the run at its host.
	ActionID string
	// Thing is the reference that the consumer used, and Action is the action.
	Thing, Action string
	// Began is the time of the request, by the clock of this node.
	Began time.Time
	// State is the last state that this node received; it may be pending long after the end, if no consumer queried it.
	State interact.Status
	// LastSeen is when this node received the state, by its clock.
	LastSeen time.Time
	// Ended is the end by the clock of the host, or else when this node received it; zero: the action has not ended as far as this
	// node knows.
	Ended time.Time
	// By is the principal of the consumer that started the run.
	By *did.Principal
}

// parseCaller returns the principal of a stored caller: the part of [did.Principal.ID] after "local".
func parseCaller(text string) *did.Principal {
	if unproven := did.Consumer(did.Unproven, ""); text == unproven.ID() {
		return unproven
	}
	return did.Consumer(did.Process, strings.TrimPrefix(text, "#"))
}

// callerText is the inverse of [parseCaller].
func callerText(p *did.Principal) string {
	return strings.TrimPrefix(p.ID(), did.Consumer(did.Process, "").ID())
}

// A Ledger stores the actions that the consumers of this node have started, so that they can be queried later, also after a restart
// of the node. It is safe for concurrent use.
type Ledger struct {
	store Store
	o     LedgerOptions

	mu sync.Mutex
	// entries and order are owned by mu. The elements are of *record, oldest first.
	entries map[string]*list.Element
	order   list.List

	changed atomic.Pointer[func(e Entry, started bool)] // see OnChange

	disk sync.Mutex // held while an entry is put or deleted, so that the store matches the memory
}

// A record is an entry with its time by the monotonic clock: a change of the system clock does not expire it.
type record struct {
	Entry
	added time.Time
}

// NewLedger returns the ledger of the entries in store. Unreadable entries are dropped. The error is that of the store.
func NewLedger(store Store, o LedgerOptions) (*Ledger, error) {
	o.Keep = cmp.Or(max(o.Keep, 0), 24*time.Hour)
	o.Max = cmp.Or(max(o.Max, 0), 10_000)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	l := &Ledger{store: store, o: o, entries: map[string]*list.Element{}}
	if err := l.restore(context.Background(), time.Now()); err != nil {
		return nil, fmt.Errorf("read the ledger of tasks: %w", err)
	}
	return l, nil
}

// restore reads the store and deletes old and unreadable entries.
func (l *Ledger) restore(ctx context.Context, now time.Time) error {
	res, err := l.store.Query(ctx, query.Query{})
	if err != nil {
		return err
	}
	defer res.Close()
	var all []*record
	var bad []string
	for r := range res.Next() {
		if r.Error != nil {
			return r.Error
		}
		e, err := parseEntry(r.Value)
		if err != nil || keyOf(e.ActionID).String() != r.Key {
			l.o.Log.Warn("task ledger entry unreadable", "error", err)
			bad = append(bad, r.Key)
			continue
		}
		// An entry from the future has the age 0: the clock was set back.
		all = append(all, &record{e, now.Add(-max(now.Sub(e.Began), 0))})
	}
	slices.SortFunc(all, func(a, b *record) int { return a.added.Compare(b.added) })
	for _, r := range all {
		l.entries[r.ActionID] = l.order.PushBack(r)
	}
	for _, k := range bad {
		if err := l.store.Delete(ctx, ds.RawKey(k)); err != nil { // for example a full disk: retried at the next start
			l.o.Log.Warn("unreadable task ledger entry not deleted", "error", err)
		}
	}
	l.erase(ctx, l.trim(now))
	return nil
}

// Middleware returns the middleware for messages of the consumers of this node to the mesh. The first state of an action with an
// ActionID that is not final is stored before it is yielded, unless the call has a key and is not detached, so that it ends with
// its consumer. Final states are stored when they are received, from the action or in replies to QueryAction and CancelAction.
// Messages of other nodes pass. If the store fails, the ledger logs it and the interaction continues, because it has started.
func (l *Ledger) Middleware() interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.From.Local() {
				switch m.Type {
				case interact.InvokeAction:
					return l.invoke(ctx, t, m)
				case interact.QueryAction, interact.CancelAction:
					return l.query(ctx, t, m)
				}
			}
			return t.Do(ctx, m)
		})
	}
}

// invoke stores an action that starts.
func (l *Ledger) invoke(ctx context.Context, t interact.Thing, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		f := invocation{Ledger: l, ctx: ctx, request: m, began: time.Now(), yield: yield}
		t.Do(ctx, m)(f.reply) // not a loop: its body would allocate each captured variable
	}
}

// An invocation stores its states.
type invocation struct {
	*Ledger
	ctx     context.Context
	request *interact.Message
	began   time.Time
	id      string // of the action; empty before the first state
	yield   func(*interact.Message, error) bool
}

func (f *invocation) reply(r *interact.Message, err error) bool {
	switch {
	case err != nil:
		if f.id != "" && isKnown(err) {
			f.mark(f.ctx, f.id, interact.StatusFailed, time.Time{})
		}
	case f.id == "" && r.ActionID != "" && !r.Status.Final() && (f.request.Key == "" || f.request.Detach):
		if _, known := f.Get(r.ActionID); known && !f.of(r.ActionID, f.request.Thing) {
			break // a run of another host
		}
		f.id = strings.Clone(r.ActionID) // the texts may be parts of long ones
		f.add(f.ctx, Entry{ActionID: f.id, Thing: strings.Clone(f.request.Thing), Action: strings.Clone(f.request.Name), Began: f.began, State: r.Status, LastSeen: time.Now(),
			By: parseCaller(callerText(f.request.From))})
	case f.id != "":
		f.mark(f.ctx, f.id, r.Status, r.Time)
	}
	return f.yield(r, err)
}

// isKnown reports whether an error means that the action failed, and not that this node lost the connection.
func isKnown(err error) bool {
	e := interact.AsError(err)
	switch e.Code {
	case interact.Unreachable, interact.Timeout, interact.Cancelled, interact.Overloaded, interact.RelayLimited, interact.NodeLost, interact.ShuttingDown:
		return false
	}
	return !e.Started
}

// query sends a query and stores the states in the replies.
func (l *Ledger) query(ctx context.Context, t interact.Thing, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		for r, err := range t.Do(ctx, m) {
			if err == nil && r.Type == interact.ActionStatus && l.of(r.ActionID, m.Thing) {
				l.mark(ctx, r.ActionID, r.Status, r.Time)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// of reports whether id is a run of thing: a host may not report on runs of other Things.
func (l *Ledger) of(id, thing string) bool {
	e, ok := l.Get(id)
	return ok && e.Thing == thing
}

// List returns the entries, newest first.
func (l *Ledger) List() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	all := []Entry{}
	for e := l.order.Back(); e != nil; e = e.Prev() {
		if r := e.Value.(*record); now.Sub(r.added) < l.o.Keep {
			all = append(all, r.Entry)
		}
	}
	return all
}

// Get returns the entry of the run id.
func (l *Ledger) Get(id string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e != nil && time.Since(e.Value.(*record).added) < l.o.Keep {
		return e.Value.(*record).Entry, true
	}
	return Entry{}, false
}

func (l *Ledger) dropLocked(e *list.Element) {
	delete(l.entries, l.order.Remove(e).(*record).ActionID)
}

// add adds an entry and returns when it is durable. An existing entry is not replaced: another host may use the same id.
func (l *Ledger) add(ctx context.Context, e Entry) {
	if err := e.check(); err != nil {
		l.o.Log.Warn("action not stored: invalid entry", "thing", e.Thing, "action", e.Action, "error", err)
		return
	}
	now := time.Now()
	l.mu.Lock()
	_, known := l.entries[e.ActionID]
	if !known {
		l.entries[e.ActionID] = l.order.PushBack(&record{e, now})
	}
	l.mu.Unlock()
	if known {
		return
	}
	l.notify(e, true)
	ctx = context.WithoutCancel(ctx) // the consumer may leave
	l.erase(ctx, l.trim(now))
	err := l.save(ctx, e.ActionID)
	if err == nil {
		err = l.store.Sync(ctx, ds.NewKey("/"))
	}
	if err != nil {
		l.o.Log.Error("action not stored on disk", "thing", e.Thing, "action", e.Action, "id", e.ActionID,
			"error", err)
	}
}

// mark stores the state of an action at a time by the clock of its host. It is not synced, because the host can be queried again.
func (l *Ledger) mark(ctx context.Context, id string, state interact.Status, at time.Time) {
	now := time.Now()
	var after Entry
	l.mu.Lock()
	e := l.entries[id]
	changed := e != nil && state != e.Value.(*record).State && !e.Value.(*record).State.Final()
	if e != nil {
		e.Value.(*record).LastSeen = now
	}
	if changed {
		r := e.Value.(*record)
		if r.State = state; state.Final() {
			if r.Ended = at; at.Before(r.Began) || at.After(now) { // no time, or the clocks differ
				r.Ended = now
			}
		}
		after = r.Entry
	}
	l.mu.Unlock()
	if changed {
		l.notify(after, false)
	}
	if !changed || !state.Final() {
		return
	}
	if err := l.save(context.WithoutCancel(ctx), id); err != nil {
		l.o.Log.Warn("end of an action not stored on disk", "id", id, "error", err)
	}
}

// OnChange sets the function that is called after an entry was added, and after its state has changed. It must not block.
func (l *Ledger) OnChange(f func(e Entry, started bool)) { l.changed.Store(&f) }

func (l *Ledger) notify(e Entry, started bool) {
	if f := l.changed.Load(); f != nil {
		(*f)(e, started)
	}
}

// trim drops entries that are too old or too many, and returns their ids, to be erased.
func (l *Ledger) trim(now time.Time) (gone []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.order.Front(); e != nil; e = l.order.Front() {
		r := e.Value.(*record)
		if l.order.Len() <= l.o.Max && now.Sub(r.added) < l.o.Keep {
			break
		}
		gone = append(gone, r.ActionID)
		l.dropLocked(e)
	}
	return gone
}

// save writes the entry of the run id to the store.
func (l *Ledger) save(ctx context.Context, id string) error {
	l.disk.Lock()
	defer l.disk.Unlock()
	l.mu.Lock()
	e := l.entries[id]
	var data []byte
	if e != nil {
		data = e.Value.(*record).append(nil)
	}
	l.mu.Unlock()
	if e == nil { // dropped in between
		return nil
	}
	return l.store.Put(ctx, keyOf(id), data)
}

// erase deletes runs from the store, unless they were added again. Entries that cannot be deleted are dropped at the next start.
func (l *Ledger) erase(ctx context.Context, ids []string) {
	l.disk.Lock()
	defer l.disk.Unlock()
	for _, id := range ids {
		l.mu.Lock()
		_, back := l.entries[id]
		l.mu.Unlock()
		if back {
			continue
		}
		if err := l.store.Delete(ctx, keyOf(id)); err != nil {
			l.o.Log.Warn("task ledger entry not deleted", "id", id, "error", err)
		}
	}
}

// keyOf returns the datastore key of the run id: a hash, because the host chooses the id.
func keyOf(id string) ds.Key {
	sum := sha256.Sum256([]byte(id))
	return ds.NewKey(hex.EncodeToString(sum[:]))
}

// A storedEntry is the JSON of an entry, version 1.
type storedEntry struct {
	V        int        `json:"v"`
	ActionID string     `json:"actionID"`
	Thing    string     `json:"thing"`
	Action   string     `json:"action"`
	Began    time.Time  `json:"began"`
	State    string     `json:"state"`
	LastSeen *time.Time `json:"heard,omitempty"`
	By       string     `json:"by,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
}

// append appends the encoded entry.
func (e *Entry) append(dst []byte) []byte {
	l := storedEntry{V: 1, ActionID: e.ActionID, Thing: e.Thing, Action: e.Action, Began: e.Began.UTC(), State: e.State.String(),
		By: callerText(e.By)}
	for _, t := range []struct {
		at time.Time
		to **time.Time
	}{{e.LastSeen, &l.LastSeen}, {e.Ended, &l.Ended}} {
		if !t.at.IsZero() {
			at := t.at.UTC()
			*t.to = &at
		}
	}
	data, _ := json.Marshal(l) // check rejects years without a JSON form
	return append(dst, data...)
}

// parseEntry decodes a stored entry.
func parseEntry(data []byte) (Entry, error) {
	if len(data) > maxEntry {
		return Entry{}, fmt.Errorf("entry too large: %d bytes", len(data))
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	var l storedEntry
	if err := d.Decode(&l); err != nil {
		return Entry{}, err
	}
	if l.V != 1 || d.More() {
		return Entry{}, fmt.Errorf("unsupported version %d, or trailing data", l.V)
	}
	e := Entry{ActionID: l.ActionID, Thing: l.Thing, Action: l.Action, Began: l.Began, State: interact.StatusOf(l.State), By: parseCaller(l.By)}
	if l.Ended != nil {
		e.Ended = *l.Ended
	}
	if e.LastSeen = e.Began; l.LastSeen != nil {
		e.LastSeen = *l.LastSeen
	}
	return e, e.check()
}

// check returns an error if a value of the entry is invalid or exceeds its limit.
func (e *Entry) check() error {
	for _, text := range []struct {
		what, text string
		most       int
	}{{"actionID", e.ActionID, maxActionID}, {"thing", e.Thing, maxThing}, {"action", e.Action, maxAction}} {
		if len(text.text) > text.most || !utf8.ValidString(text.text) {
			return fmt.Errorf("expected as %s at most %d bytes of valid text", text.what, text.most)
		}
	}
	if e.ActionID == "" {
		return errors.New("actionID missing")
	}
	for _, t := range []time.Time{e.Began, e.LastSeen, e.Ended} {
		if y := t.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("invalid year %d", y)
		}
	}
	return nil
}

// Newer reports whether the stored entry a is a later state of a task than b, or b is unreadable. A task that has ended does not change.
func Newer(a, b []byte) bool {
	var x, y struct{ State string }
	if json.Unmarshal(a, &x) != nil {
		return false
	}
	return json.Unmarshal(b, &y) != nil || interact.StatusOf(x.State).Final() && !interact.StatusOf(y.State).Final()
}

// NameOf returns the id, action and Thing of a stored entry, which may be damaged.
func NameOf(entry []byte) string {
	return fmt.Sprintf("%s (%s of %s)", storage.Salvage(entry, "actionID"), storage.Salvage(entry, "action"), storage.Salvage(entry, "thing"))
}
