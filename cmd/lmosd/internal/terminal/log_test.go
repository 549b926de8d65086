package terminal

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"
)

// moment is when everything in these tests is logged.
var moment = time.Date(2026, 11, 20, 10, 0, 5, 0, time.Local)

// tell logs a record of that moment.
func tell(l *slog.Logger, level slog.Level, message string, attrs ...slog.Attr) {
	r := slog.NewRecord(moment, level, message, 0)
	r.AddAttrs(attrs...)
	if l.Enabled(context.Background(), level) {
		_ = l.Handler().Handle(context.Background(), r) // it writes into memory
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	logged := func(level slog.Level, color bool, log func(*slog.Logger)) string {
		var out bytes.Buffer
		log(slog.New(NewLog(&Screen{Writer: &out, TTY: true, color: color}, level)))
		return out.String()
	}
	for want, log := range map[string]func(*slog.Logger){
		"10:00:05  published  thing=urn:x  took=4.4ms\n": func(l *slog.Logger) {
			tell(l, slog.LevelInfo, "published", slog.String("thing", "urn:x"), slog.Duration("took", 4432*time.Microsecond))
		},
		"10:00:05  warning: port busy  by=\"process 1 (x)\"  took=1m30s\n": func(l *slog.Logger) {
			tell(l, slog.LevelWarn, "port busy", slog.String("by", "process 1 (x)"), slog.Duration("took", 90*time.Second))
		},
		"10:00:05  error: it broke  err=\"a\ufffd[2J b\"  empty=\"\"\n": func(l *slog.Logger) {
			tell(l, slog.LevelError, "it\nbroke", slog.Any("err", errors.New("a\x1b[2J b")), slog.String("empty", ""))
		},
		"10:00:05  x  node=1  g.peer=2  g.h.n=3\n": func(l *slog.Logger) {
			tell(l.With("node", 1).WithGroup("g").With("peer", 2).WithGroup("h"), slog.LevelInfo, "x", slog.Int("n", 3))
		},
		"": func(l *slog.Logger) { tell(l, slog.LevelDebug, "detail") },
	} {
		if got := logged(slog.LevelInfo, false, log); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	got := logged(slog.LevelDebug, true, func(l *slog.Logger) { tell(l, slog.LevelDebug, "detail") })
	if got != "\x1b[2m10:00:05\x1b[0m  \x1b[2mdebug: \x1b[0mdetail\n" {
		t.Errorf("in colour: %q", got)
	}
}
