package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/configs"
)

// logger returns the log of the node on standard error: lines for people on a terminal, else JSON for programs.
func (a *app) logger(c *configs.Config) *slog.Logger {
	level := levelOf(c.Telemetry.Log.Level)
	var h slog.Handler
	switch format := c.Telemetry.Log.Format; {
	case format == "json" || format == "auto" && !a.talk.tty:
		h = slog.NewJSONHandler(a.talk, &slog.HandlerOptions{Level: level, ReplaceAttr: inMilliseconds})
	case a.talk.tty:
		h = &terminalLog{to: a.talk, level: level}
	default:
		h = slog.NewTextHandler(a.talk, &slog.HandlerOptions{Level: level})
	}
	return slog.New(&ownLog{Handler: h, level: level})
}

// inMilliseconds gives a duration its unit: took_ms for took. JSON has no durations.
func inMilliseconds(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		return slog.Float64(attr.Key+"_ms", milliseconds(attr.Value.Duration()))
	}
	return attr
}

func levelOf(name string) slog.Level {
	var l slog.Level
	_ = l.UnmarshalText([]byte(name)) // The configuration was checked; anything else is info.
	return l
}

// An ownLog passes on what lmosd says, and of its libraries only warnings: what is news to a library ("processloop shutting
// down") is none to whoever runs a node. The level debug shows all.
type ownLog struct {
	slog.Handler
	level slog.Level
}

// Handle implements [slog.Handler].
func (l *ownLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn && l.level > slog.LevelDebug && !ours(r.PC) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (l *ownLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &ownLog{l.Handler.WithAttrs(attrs), l.level}
}

// WithGroup implements [slog.Handler].
func (l *ownLog) WithGroup(name string) slog.Handler {
	return &ownLog{l.Handler.WithGroup(name), l.level}
}

// ours reports whether the function at pc belongs to this program, as far as that is known.
func ours(pc uintptr) bool {
	if pc == 0 {
		return true
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return strings.HasPrefix(f.Function, "main.") || strings.HasPrefix(f.Function, "github.com/lmosd/lmosd/")
}

// A terminalLog writes a record as one line for people. What strangers sent cannot command the terminal.
type terminalLog struct {
	to     *screen
	level  slog.Level
	before string // what With gave, as it is printed
	group  string // with a dot behind it
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
	// One write a line, so that lines of two goroutines do not mix.
	l.to.line(logLine(l.to, r.Time, r.Level, r.Message) + after)
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
		text = short(value.Duration())
	}
	return logAttr(l.to, l.group+attr.Key, text)
}

// logLine returns the beginning of a line of the log: the time of the day, the level if it is unusual, the message.
func logLine(s *screen, at time.Time, level slog.Level, message string) string {
	word := ""
	switch {
	case level >= slog.LevelError:
		word = s.paint(red, "error: ")
	case level >= slog.LevelWarn:
		word = s.paint(yellow, "warning: ")
	case level < slog.LevelInfo:
		word = s.paint(dim, "debug: ")
	}
	return s.paint(dim, at.Local().Format(time.TimeOnly)) + "  " + word + oneLine(message)
}

// logAttr returns what is known beside the message: a name and a value, in quotes if it could be misread.
func logAttr(s *screen, name, value string) string {
	if value = printable(value); value == "" || strings.ContainsAny(value, " \t\n\"=") {
		value = strconv.Quote(value)
	}
	return "  " + s.paint(dim, oneLine(name)+"=") + value
}

// short returns d without the digits that nobody reads.
func short(d time.Duration) string {
	if d < time.Minute {
		return strings.ReplaceAll(millis(float64(d)/float64(time.Millisecond)), " ", "")
	}
	return fmt.Sprint(d.Round(time.Second))
}
