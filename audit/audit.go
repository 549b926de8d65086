// Package audit records the decisions of a node and the changes of its trust, policy and tokens in files that show later changes.
//
// A log is a folder with two chains of files, NNNNNN.jsonl for changes and allowed requests and denied-NNNNNN.jsonl for denied ones, so that
// many denials do not rotate the others away. Each line is a JSON object ([Line]) with the SHA-256 of the line before. The node signs
// checkpoints, and those of the first chain contain the newest hash of the second. [Verify] finds lines that were changed or removed. Lines
// at the end that were removed together with their checkpoints, and a log that was signed again, are found by comparison with a [Checkpoint] that
// another member has stored.
//
// No line contains inputs, outputs or tokens.
//
// The files: line.go has the format of a line, window.go the aggregation of equal decisions, chain.go the writing of files and recover.go
// their opening, verify.go the checks, read.go the reading, forward.go the forwarding, and witness.go the checkpoints of other nodes.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
)

// A Level determines which decisions are recorded. Changes are recorded at every level.
type Level string

// The levels, each with the decisions of the one before.
const (
	Off        Level = "off"
	Denied     Level = "denied"     // denied requests
	Restricted Level = "restricted" // and allowed requests to Things whose descriptions are not public
	All        Level = "all"        // and all other requests
)

// levels are the levels in their order.
var levels = []Level{Off, Denied, Restricted, All}

// Options of a log.
type Options struct {
	// Dir is the folder of the files. Open creates it, with mode 0700. Only one process may write to it. Empty: Open
	// returns a nil Log, which records nothing.
	Dir string
	// Signer signs the checkpoints.
	Signer did.Signer
	// Level is the least level of recorded decisions; empty means Denied.
	Level Level
	// Keep is the number of files of each chain, of 64 MiB each; 0 means 10. The oldest are deleted.
	Keep int
	// Forward is the receiver of a copy of each line; the zero value sends none.
	Forward Target
	// Log receives failures; nil discards them.
	Log *slog.Logger
	// Now returns the time; nil means time.Now.
	Now func() time.Time

	maxFile int64 // bytes; 0 means maxFile
}

// Limits of the files.
const (
	maxFile     = 64 << 20 // bytes, exceeded by at most the lines of one second
	defaultKeep = 10
)

// Intervals of writing.
const (
	flushEvery    = time.Second // aggregation of equal decisions, and fsync
	signEvery     = time.Minute // from the first line after a checkpoint to the next checkpoint
	signLines     = 1000        // lines between two checkpoints
	reportedEvery = time.Minute // aggregation beyond the limits of lines
)

// A Decision is an allowed or denied request. Its texts are shortened to 256 bytes in the log.
type Decision struct {
	// Who is the caller; nil is recorded without a name.
	Who *did.Principal
	// Op is the operation: connect, find, read, write, invoke, subscribe, …
	Op string
	// Thing is the reference of a Thing; empty for operations on the node. Name is the affordance, if any.
	Thing, Name string
	// Allow is the decision.
	Allow bool
	// Restricted means that the description of the Thing is not public.
	Restricted bool
	// Rule is the rule that decided, for example "policy.yaml:12".
	Rule string
	// Code is the code of the error that the caller receives; 0 without one.
	Code interact.Code
	// Trace is the trace id, 32 hexadecimal digits, or empty.
	Trace string
}

// Kinds of changes.
const (
	ChangeTrust  = "trust"  // organization, partners, credentials, revocations
	ChangePolicy = "policy" // rules of access
	ChangeToken  = "token"  // access tokens
	ChangeKey    = "key"    // keys of the node
)

// A Log is an open log. Its methods are safe for concurrent use; those of a nil Log record nothing.
//
// Decision and Change only add to memory. Run writes: equal decisions of one second are one line, and fsync follows each second, and each
// change at once.
type Log struct {
	opts     Options
	level    int
	head     atomic.Pointer[Head]       // of main, after the last fsync
	signed   atomic.Pointer[Checkpoint] // of main, on the disk; nil: none
	members  *witness                   // of the logs of other nodes
	wake     chan struct{}              // has room for one
	urgent   chan struct{}              // the same, for changes
	forward  *forwarder                 // nil without a target
	writing  sync.Mutex                 // held by the writer: Run, or Close
	main     *chain                     // owned by writing
	denied   *chain                     // owned by writing
	failing  bool                       // the last write failed; owned by writing
	reported time.Time                  // of the last aggregated lines; owned by writing

	changed atomic.Pointer[func(kind, detail string)] // see OnChange

	mu      sync.Mutex
	allows  window  // owned by mu
	denials window  // owned by mu
	changes []Line  // owned by mu
	lost    [2]lost // of main and denied; owned by mu
}

// lost counts what could not be recorded.
type lost struct {
	times uint64
	why   string
}

// maxChanges limits the changes that wait for the writer.
const maxChanges = 1024

// Open opens the log in o.Dir for one writer. An incomplete last line, which a crash leaves, is moved to a file of its own; a line records
// this. If the newest file of a chain is damaged, Open logs the place and starts a new file, whose first line names the place. Older files
// are not read: that is the task of [Verify]. The error is an [*interact.Error] if a user can fix the cause.
func Open(o Options) (*Log, error) {
	if o.Dir == "" {
		return nil, nil
	}
	o.Level, o.Keep, o.maxFile = cmp.Or(o.Level, Denied), cmp.Or(o.Keep, defaultKeep), cmp.Or(o.maxFile, maxFile)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Log{opts: o, level: slices.Index(levels, o.Level), wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
		allows: newWindow(allowLimits), denials: newWindow(denialLimits)}
	switch {
	case l.level < 0:
		return nil, interact.Errorf(interact.ConfigInvalid, "off, denied, restricted or all", "unknown level of the audit log %q", o.Level)
	case o.Signer == nil || o.Keep < 0:
		return nil, fmt.Errorf("open the audit log: a signer and at least one file are required")
	}
	if o.Forward.Network != "" {
		l.forward = newForwarder(o.Forward, o.Log)
	}
	if err := l.open(); err != nil {
		return nil, openError(o.Dir, errors.Join(err, l.closeFiles()))
	}
	return l, nil
}

func openError(dir string, err error) error {
	if storage.Full(err) {
		return &interact.Error{Code: interact.DiskFull, Title: "the disk of " + dir + " is full", Err: err, Hint: "free some space"}
	}
	return &interact.Error{Code: interact.ConfigInvalid, Title: "the audit log in " + dir + " cannot be opened", Err: err,
		Hint: "make the folder writable, or move it away"}
}

// open opens the chains. The newest checkpoint of main has a head of the denied chain, which must not be shorter.
func (l *Log) open() (err error) {
	if err = os.MkdirAll(l.opts.Dir, 0o700); err != nil {
		return err
	}
	if l.members, err = openWitness(filepath.Join(l.opts.Dir, "members")); err != nil {
		return err
	}
	now := l.opts.Now()
	if l.main, err = openChain(l, mainChain, Head{}, now); err != nil {
		return err
	}
	if l.denied, err = openChain(l, deniedChain, l.main.others, now); err != nil {
		return err
	}
	return l.sync()
}

// Level returns the level of recorded decisions.
func (l *Log) Level() Level {
	if l == nil {
		return Off
	}
	return l.opts.Level
}

// records reports whether the level includes a decision.
func (l *Log) records(d *Decision) bool {
	switch {
	case l == nil:
		return false
	case !d.Allow:
		return l.level >= 1
	case d.Restricted:
		return l.level >= 2
	}
	return l.level >= 3
}

// Decision records d if the level includes it. It does not wait for the disk. Beyond limits per node and second, denials are counted in one
// line per node and minute, and then in one line for all nodes; allowed requests beyond 4,096 different ones in a second are only counted.
func (l *Log) Decision(d Decision) {
	if !l.records(&d) {
		return
	}
	now := l.opts.Now()
	l.mu.Lock()
	w := &l.allows
	if !d.Allow {
		w = &l.denials
	}
	first := w.empty()
	w.add(&d, now)
	l.mu.Unlock()
	if first {
		signal(l.wake)
	}
}

// Change records a change at every level: kind is ChangeTrust, ChangePolicy, ChangeToken or ChangeKey, and detail names what was changed,
// without secrets, in at most 1,024 bytes.
func (l *Log) Change(kind, detail string) {
	if l == nil {
		return
	}
	detail = shorten(detail, maxDetail)
	l.change(Line{Event: kind, Detail: detail})
	if f := l.changed.Load(); f != nil {
		(*f)(kind, detail)
	}
}

// OnChange sets the function that is called after each Change, with its kind and detail. It must not block.
func (l *Log) OnChange(f func(kind, detail string)) {
	if l != nil {
		l.changed.Store(&f)
	}
}

// change adds the line of a change.
func (l *Log) change(line Line) {
	line.Time = l.opts.Now()
	l.mu.Lock()
	if len(l.changes) < maxChanges {
		l.changes = append(l.changes, line)
	} else {
		l.lose(0, 1, "too many changes at once")
	}
	l.mu.Unlock()
	signal(l.urgent)
}

// Rotate records that the node replaces its key by a statement ([rotation.Sign]). [Log.Close] signs the line with the old key; a log that is
// opened with the new key then continues the files.
func (l *Log) Rotate(statement []byte) error {
	if l == nil {
		return nil
	}
	s, err := rotation.Parse(statement)
	if err != nil {
		return err
	}
	if s.From != l.opts.Signer.DID() {
		return fmt.Errorf("record a rotation: it is of %s", s.From.Short())
	}
	l.change(Line{Event: ChangeKey, Detail: fmt.Sprintf("%s replaced by %s", s.From, s.To), Rotation: statement})
	return nil
}

// lose counts lines of a chain, 0 or 1, that are not recorded. The caller holds mu.
func (l *Log) lose(chain int, times uint64, why string) {
	l.lost[chain].times += times
	l.lost[chain].why = why
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is there already
	}
}

// Head returns the newest line of the first chain that is on the disk. Other members store it, and [Verify] compares it. Each checkpoint
// of that chain contains the head of the chain of denials.
func (l *Log) Head() Head {
	if l == nil {
		return Head{}
	}
	return *l.head.Load()
}

// Run writes until ctx ends, and then writes the rest. Only one Run may be active. It returns nil: failures are logged and counted.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.forward != nil {
		stop := l.forward.start()
		defer stop()
	}
	tick := time.NewTimer(0) // lines of before
	defer tick.Stop()
	for armed := true; ; {
		select {
		case <-ctx.Done():
			l.finish()
			return nil
		case <-l.urgent:
			l.write(false)
		case <-l.wake:
		case <-tick.C:
			armed = false
			l.write(true)
			l.checkpoint(false)
		}
		if !armed && l.pending() {
			tick.Reset(flushEvery)
			armed = true
		}
	}
}

// finish writes and signs everything.
func (l *Log) finish() {
	l.reported = time.Time{} // also the counts of the current minute
	l.write(true)
	l.checkpoint(true)
}

// pending reports whether the writer must become active without a further record.
func (l *Log) pending() bool {
	l.mu.Lock()
	waiting := !l.allows.idle() || !l.denials.idle() || l.lost[0].times+l.lost[1].times > 0
	l.mu.Unlock()
	return waiting || l.members.pending() || l.main.unsigned > 0 || l.denied.unsigned > 0
}

// Close writes the rest with a checkpoint and closes the files. Run must have returned.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.finish()
	return l.closeFiles()
}

func (l *Log) closeFiles() error {
	var err error
	for _, c := range []*chain{l.main, l.denied} {
		if c != nil {
			err = errors.Join(err, c.close())
		}
	}
	return err
}

// write writes the changes, and if all is true the decisions of the window as well, and calls fsync. Lines before a change in time precede
// it in the file.
func (l *Log) write(all bool) {
	now := l.opts.Now()
	report := all && now.Sub(l.reported) >= reportedEvery
	if report {
		l.reported = now
	}
	l.mu.Lock()
	changes := l.changes
	l.changes = nil
	allows := l.allows.take(report)
	var denials []Line
	if all {
		denials = l.denials.take(report)
	}
	missing := l.lost
	l.lost = [2]lost{}
	l.mu.Unlock()

	l.put(l.main, append(allows, changes...)...)
	l.put(l.denied, denials...)
	for i, c := range []*chain{l.main, l.denied} {
		if m := missing[i]; m.times > 0 {
			l.put(c, Line{Time: now, Event: EventLost, Times: m.times, Detail: m.why})
		}
	}
	l.fail(l.sync())
}

// put appends lines to a chain. The lines that fail are counted.
func (l *Log) put(c *chain, lines ...Line) {
	for i := range lines {
		err := c.append(&lines[i])
		if err == nil {
			if l.failing {
				l.failing = false
				l.opts.Log.Info("audit log written again", "dir", l.opts.Dir)
			}
			continue
		}
		l.fail(err)
		which := 0
		if c == l.denied {
			which = 1
		}
		if e := lines[i].Event; e != "" && e != EventLost {
			l.opts.Log.Error("audit line lost", "event", e, "detail", lines[i].Detail, "err", err)
		}
		l.mu.Lock()
		l.lose(which, max(lines[i].Times, 1), shorten("the file was not written: "+err.Error(), maxText))
		l.mu.Unlock()
	}
}

// fail logs the first of successive failures.
func (l *Log) fail(err error) {
	if err != nil && !l.failing {
		l.failing = true
		l.opts.Log.Error("audit log not written; lines are lost", "dir", l.opts.Dir, "err", err)
	}
}

// sync puts all lines on the disk.
func (l *Log) sync() error {
	err := errors.Join(l.denied.sync(), l.main.sync(), l.members.write())
	head := l.main.synced
	l.head.Store(&head)
	if c := l.main.signed; c != nil && c.N <= head.N {
		l.signed.Store(c)
	}
	return err
}

// checkpoint signs both chains if one has lines that are not signed, for long enough or if now is true. A checkpoint of main contains the
// head of the denied chain, which is on the disk before.
func (l *Log) checkpoint(now bool) {
	at := l.opts.Now()
	due := func(c *chain) bool { return c.unsigned > 0 && (now || at.Sub(c.unsignedSince) >= signEvery) }
	if !due(l.main) && !due(l.denied) {
		return
	}
	var err error
	if l.denied.unsigned > 0 {
		err = errors.Join(l.denied.sign(Head{}, at), l.denied.sync())
	}
	l.fail(errors.Join(err, l.main.sign(l.denied.synced, at), l.sync()))
}
