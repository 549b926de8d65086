package dht

import (
	"context"
	"log/slog"

	golog "github.com/ipfs/go-log/v2"
	"go.uber.org/zap/zapcore"
)

// SetLibraryLog makes the library of the DHT log to h, which decides by level, instead of writing errors to standard error. It applies to the process.
func SetLibraryLog(h slog.Handler) {
	golog.SetPrimaryCore(core{h})
	_ = golog.SetLogLevel("*", "debug") // the name is valid; h decides
}

// A core passes the records of zap on to a handler.
type core struct{ h slog.Handler }

// Enabled implements [zapcore.Core].
func (c core) Enabled(l zapcore.Level) bool { return c.h.Enabled(context.Background(), levelOf(l)) }

// With implements [zapcore.Core].
func (c core) With(fields []zapcore.Field) zapcore.Core { return core{c.h.WithAttrs(attrsOf(fields))} }

// Check implements [zapcore.Core].
func (c core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return checked
	}
	return checked.AddCore(e, c)
}

// Write implements [zapcore.Core].
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, levelOf(e.Level), e.Message, e.Caller.PC)
	r.AddAttrs(attrsOf(fields)...)
	return c.h.Handle(context.Background(), r)
}

// Sync implements [zapcore.Core].
func (c core) Sync() error { return nil }

// levelOf returns a level of zap, which counts in steps of 1 from -1 (debug).
func levelOf(l zapcore.Level) slog.Level { return min(slog.Level(l)*4, slog.LevelError) }

func attrsOf(fields []zapcore.Field) []slog.Attr {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(m)
	}
	attrs := make([]slog.Attr, 0, len(m.Fields))
	for name, value := range m.Fields {
		attrs = append(attrs, slog.Any(name, value))
	}
	return attrs
}
