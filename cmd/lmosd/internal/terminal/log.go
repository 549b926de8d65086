package terminal

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// NewLog returns the handler of a log on a terminal, with a line for each record of at least level.
func NewLog(to *Screen, level slog.Level) slog.Handler { return &terminalLog{to: to, level: level} }

// A terminalLog writes a record as one line for people. Control characters are replaced.
type terminalLog struct {
	to     *Screen
	level  slog.Level
	before string // the printed attributes of With
	group  string // with a trailing dot
}

// Enabled implements [slog.Handler].
func (l *terminalLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

// Handle implements [slog.Handler].
func (l *terminalLog) Handle(_ context.Context, r slog.Record) error {
	after := l.before
	r.Attrs(func(attr slog.Attr) bool {
		after += l.attr(attr)
		return true
	})
	// One write per line, so that lines of goroutines do not mix.
	l.to.Line(LogLine(l.to, r.Time, r.Level, r.Message) + after)
	return nil
}

// WithAttrs implements [slog.Handler].
func (l *terminalLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *l
	for _, attr := range attrs {
		with.before += l.attr(attr)
	}
	return &with
}

// WithGroup implements [slog.Handler].
func (l *terminalLog) WithGroup(name string) slog.Handler {
	with := *l
	with.group += name + "."
	return &with
}

func (l *terminalLog) attr(attr slog.Attr) string {
	value := attr.Value.Resolve()
	text := value.String()
	if value.Kind() == slog.KindDuration {
		text = rounded(value.Duration())
	}
	return LogAttr(l.to, l.group+attr.Key, text)
}

// LogLine returns the beginning of a log line: the time of day, the level if it is unusual, the message.
func LogLine(s *Screen, at time.Time, level slog.Level, message string) string {
	word := ""
	switch {
	case level >= slog.LevelError:
		word = s.Paint(Red, "error: ")
	case level >= slog.LevelWarn:
		word = s.Paint(Yellow, "warning: ")
	case level < slog.LevelInfo:
		word = s.Paint(Dim, "debug: ")
	}
	return s.Paint(Dim, at.Local().Format(time.TimeOnly)) + "  " + word + OneLine(message)
}

// LogAttr returns an attribute: a name and a value, in quotes if it is ambiguous.
func LogAttr(s *Screen, name, value string) string {
	if value = Printable(value); value == "" || strings.ContainsAny(value, " \t\n\"=") {
		value = strconv.Quote(value)
	}
	return "  " + s.Paint(Dim, OneLine(name)+"=") + value
}

// rounded returns d with few digits.
func rounded(d time.Duration) string {
	if d < time.Minute {
		return strings.ReplaceAll(Millis(float64(d)/float64(time.Millisecond)), " ", "")
	}
	return fmt.Sprint(d.Round(time.Second))
}
