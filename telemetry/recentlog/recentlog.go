// Package recentlog keeps the newest log records of a process in memory, and changes the levels of its loggers at run time.
//
// A logger is the package that logs: the function of a record decides, so that no part of the program has to name itself. Packages of the
// program are named by their path in it ("gateway/tdd"), those of libraries and of the standard library by their import path ("net/http").
package recentlog

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Limits of the kept records.
const (
	MaxRecords = 2000
	MaxBytes   = 1 << 20 // of all, with their administration
	maxText    = 1 << 10 // bytes of a message or a value
	maxFields  = 24      // of a record
	maxRecord  = 4 << 10 // bytes of the fields of a record
	maxLoggers = 256     // with names that are kept, and with levels of their own
)

// All is the name that stands for all loggers without a level of their own.
const All = "*"

// Options of a [Log]. The zero value keeps records of all packages from the level info on.
type Options struct {
	// Level is the level of the loggers at the start.
	Level slog.Level
	// Home is the import path of the program with a slash at its end. Other modules log nothing, and the standard library only warnings, unless the
	// level of all is debug or they have a level of their own: what an operator must know of them, the program logs itself. Empty: all packages are
	// treated alike.
	Home string
}

// A Log has the newest records and the levels. It is safe for concurrent use. A writer never waits for a reader.
type Log struct {
	home   string
	levels atomic.Pointer[levels]
	names  sync.Map // of loggers, by program counter: as many as there are statements that log

	mu sync.Mutex
	// The following fields are owned by mu.
	kept  []Record // from first on
	first int
	bytes int
	seq   uint64          // of the newest record
	seen  map[string]bool // loggers
	wake  chan struct{}   // closed at the next record; nil if no reader waits
}

// levels are read without a lock and replaced as a whole.
type levels struct {
	all slog.Level
	own map[string]slog.Level
	low slog.Level // the lowest of them
}

// A Record is one kept record, or a gap.
type Record struct {
	// Seq grows by 1 with each record, and from one run of the process to the next.
	Seq    uint64
	At     time.Time
	Level  slog.Level
	Logger string
	Text   string
	Fields []Field
	// GapFrom is not 0 if the records GapFrom to Seq are not kept any longer. The other fields are empty then.
	GapFrom uint64
}

// A Field is an attribute of a record. Groups are part of the key ("http.route").
type Field struct {
	Key   string
	Value any // a string, bool, int64, uint64 or float64
}

// New returns a Log without records.
func New(o Options) *Log {
	l := &Log{home: o.Home, seq: uint64(time.Now().UnixMicro()), seen: map[string]bool{}}
	l.levels.Store(&levels{all: o.Level, low: o.Level})
	return l
}

// Levels returns the levels by the names of loggers; [All] has that of the others. The level of a logger is also that of the packages below
// its path that have none.
func (l *Log) Levels() map[string]slog.Level {
	now := l.levels.Load()
	all := maps.Clone(now.own)
	if all == nil {
		all = map[string]slog.Level{}
	}
	all[All] = now.all
	return all
}

// SetLevel sets the level of a logger, or of [All], until the process ends. It reports false if too many loggers have a level of their own.
func (l *Log) SetLevel(logger string, level slog.Level) bool {
	return l.change(func(n *levels) {
		if logger == All {
			n.all = level
		} else {
			n.own[strings.Clone(logger)] = level
		}
	})
}

// Unset removes the level of a logger: that of the path above it, or of all, applies again.
func (l *Log) Unset(logger string) { l.change(func(n *levels) { delete(n.own, logger) }) }

func (l *Log) change(f func(*levels)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.levels.Load()
	next := &levels{all: now.all, own: maps.Clone(now.own)}
	if next.own == nil {
		next.own = map[string]slog.Level{}
	}
	f(next)
	if len(next.own) > maxLoggers {
		return false
	}
	next.low = next.all
	for _, one := range next.own {
		next.low = min(next.low, one)
	}
	l.levels.Store(next)
	return true
}

// Loggers returns the names of the loggers that have logged, sorted.
func (l *Log) Loggers() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.seen))
}

// threshold returns the lowest level that a logger logs.
func (l *Log) threshold(logger string, foreign bool) slog.Level {
	now := l.levels.Load()
	if len(now.own) > 0 {
		for path := logger; path != ""; path = parent(path) {
			if level, ok := now.own[path]; ok {
				return level
			}
		}
	}
	if foreign && now.all > slog.LevelDebug {
		if isModule(logger) {
			return silent
		}
		return max(now.all, slog.LevelWarn)
	}
	return now.all
}

// isModule reports whether a package of a library is in a module of its own: its path begins with a domain. The standard library has none.
func isModule(path string) bool {
	domain, _, _ := strings.Cut(path, "/")
	return strings.Contains(domain, ".")
}

// silent is a level above all.
const silent = slog.Level(100)

// parent returns the path above a path; empty if there is none.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// overhead is what a record costs besides its texts: itself, and each field.
const (
	overhead      = int(unsafe.Sizeof(Record{}))
	fieldOverhead = int(unsafe.Sizeof(Field{})) + 16
)

func (r *Record) size() int {
	n := overhead + len(r.Text)
	for _, f := range r.Fields {
		n += fieldOverhead + f.size()
	}
	return n
}

// keep appends a record.
func (l *Log) keep(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	r.Seq = l.seq
	l.kept = append(l.kept, r)
	l.bytes += r.size()
	for len(l.kept)-l.first > MaxRecords || l.bytes > MaxBytes {
		l.bytes -= l.kept[l.first].size()
		l.kept[l.first] = Record{}
		l.first++
	}
	if l.first > 64 && l.first > len(l.kept)/8 { // so that the slice does not grow without limit
		l.kept = l.kept[:copy(l.kept, l.kept[l.first:])]
		clear(l.kept[len(l.kept):min(cap(l.kept), len(l.kept)+l.first)])
		l.first = 0
	}
	if len(l.seen) < maxLoggers {
		l.seen[r.Logger] = true
	}
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// Latest returns the number of the newest record, or one before the first.
func (l *Log) Latest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// Newest returns the newest limit records that fits accepts, the oldest first.
func (l *Log) Newest(limit int, fits func(*Record) bool) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := []Record{}
	for i := len(l.kept) - 1; i >= l.first && len(found) < limit; i-- {
		if fits(&l.kept[i]) {
			found = append(found, l.kept[i])
		}
	}
	slices.Reverse(found)
	return found
}

// Follow yields the records after the number seq as they are kept, until ctx ends. Records that were dropped before the reader took them
// are one record with GapFrom; so are those of an earlier run, whose numbers are lower.
func (l *Log) Follow(ctx context.Context, seq uint64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			batch, wake := l.after(seq)
			for _, r := range batch {
				if seq = r.Seq; !yield(r, nil) {
					return
				}
			}
			if wake == nil {
				continue
			}
			select {
			case <-wake:
			case <-ctx.Done():
				yield(Record{}, ctx.Err())
				return
			}
		}
	}
}

// batchSize is the number of records that a reader takes at once.
const batchSize = 64

// after returns the next records after seq; if there are none, a channel that is closed at the next one.
func (l *Log) after(seq uint64) (batch []Record, wake <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq >= l.seq {
		if l.wake == nil {
			l.wake = make(chan struct{})
		}
		return nil, l.wake
	}
	oldest := l.seq - uint64(len(l.kept)-l.first) + 1
	if seq+1 < oldest {
		batch, seq = append(batch, Record{GapFrom: seq + 1, Seq: oldest - 1}), oldest-1
	}
	rest := l.kept[l.first+int(seq+1-oldest):]
	return append(batch, rest[:min(len(rest), batchSize)]...), nil
}

// AtLeast returns a filter of records: of at least a level, and of a logger and the packages below its path. An empty logger accepts all.
func AtLeast(level slog.Level, logger string) func(*Record) bool {
	return func(r *Record) bool {
		below, ok := strings.CutPrefix(r.Logger, logger)
		return cmp.Compare(r.Level, level) >= 0 && (logger == "" || ok && (below == "" || below[0] == '/'))
	}
}
