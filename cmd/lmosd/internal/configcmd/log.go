package configcmd

import (
	"context"
	"log/slog"
	"runtime"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
)

// Logger returns the log of a node on standard error: lines for people on a terminal, else JSON for programs.
func Logger(a *cli.Console, c *configs.Config) *slog.Logger {
	level := levelOf(c.Telemetry.Log.Level)
	var h slog.Handler
	switch format := c.Telemetry.Log.Format; {
	case format == "json" || format == "auto" && !a.Talk.TTY:
		h = slog.NewJSONHandler(a.Talk, &slog.HandlerOptions{Level: level, ReplaceAttr: inMilliseconds})
	case a.Talk.TTY:
		h = terminal.NewLog(a.Talk, level)
	default:
		h = slog.NewTextHandler(a.Talk, &slog.HandlerOptions{Level: level})
	}
	return slog.New(&ownLog{Handler: h, level: level})
}

// CommandLogger returns the log of a command that runs without a node: warnings, and with -v all messages.
func CommandLogger(a *cli.Console) *slog.Logger {
	c := configs.Default()
	if c.Telemetry.Log.Level = "warn"; a.Flags.Verbose {
		c.Telemetry.Log.Level = "debug"
	}
	return Logger(a, c)
}

// inMilliseconds adds the unit to durations, which JSON does not have: took_ms for took.
func inMilliseconds(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		return slog.Float64(attr.Key+"_ms", cli.Milliseconds(attr.Value.Duration()))
	}
	return attr
}

func levelOf(name string) slog.Level {
	var l slog.Level
	_ = l.UnmarshalText([]byte(name)) // the configuration was checked; other values are info
	return l
}

// An ownLog passes on the records of lmosd, and of libraries only warnings, because their messages ("processloop shutting down") do not
// concern operators. The level debug shows all.
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

// ours reports whether the function at pc belongs to this program, if that is known.
func ours(pc uintptr) bool {
	if pc == 0 {
		return true
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return strings.HasPrefix(f.Function, "main.") || strings.HasPrefix(f.Function, "github.com/lmosd/lmosd/")
}
