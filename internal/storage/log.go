package storage

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// every is the minimum time between equal messages.
const every = 10 * time.Second

// Exit codes of a process whose store cannot continue.
const (
	exitFailed = 1
	exitFull   = 9
)

// A limited log writes equal messages at most once per interval, with the number of omitted ones.
type limited struct {
	log     *slog.Logger
	now     func() time.Time
	mu      sync.Mutex
	entries map[string]*logEntry // by message, so at most one per log call in the code; owned by mu
}

type logEntry struct {
	last time.Time
	left int // since the last message
}

func newLimited(log *slog.Logger) *limited {
	return &limited{log: log, now: time.Now, entries: map[string]*logEntry{}}
}

// write logs a message, limited by its constant text.
func (l *limited) write(level slog.Level, text string, args ...any) {
	l.writeAs(text, level, text, args...)
}

func (l *limited) writeAs(key string, level slog.Level, text string, args ...any) {
	l.mu.Lock()
	s, now := l.entries[key], l.now()
	if s == nil {
		s = &logEntry{}
		l.entries[key] = s
	}
	if now.Sub(s.last) < every {
		s.left++
		l.mu.Unlock()
		return
	}
	if s.left > 0 {
		args = append(args, "left out", s.left)
	}
	s.last, s.left = now, 0
	l.mu.Unlock()
	l.log.Log(context.Background(), level, text, args...)
}

// pebbleLog forwards the messages of the database. A failed write of its log is fatal by design, because the database would otherwise
// acknowledge unwritten data. disk handles a full disk.
type pebbleLog struct {
	*limited
	exit func(code int)
}

func newPebbleLog(log *slog.Logger) pebbleLog { return pebbleLog{newLimited(log), os.Exit} }

// Infof implements [pebble.Logger], as do those below.
func (l pebbleLog) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.writeAs(format, slog.LevelDebug, "store", "text", fmt.Sprintf(format, args...))
	}
}

func (l pebbleLog) Errorf(format string, args ...any) {
	l.writeAs(format, slog.LevelError, "store", "text", fmt.Sprintf(format, args...))
}

func (l pebbleLog) Fatalf(format string, args ...any) {
	code := exitFailed
	for _, a := range args {
		if err, ok := a.(error); ok && Full(err) {
			code = exitFull
		}
	}
	l.log.Error("store failed; acknowledged writes are durable", "text", fmt.Sprintf(format, args...),
		"hint", "see the disk's space and health, then start lmosd again")
	l.exit(code)
}
