package recentlog

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
)

// Handler returns a handler that keeps what the levels of l permit, and passes it on to next, whose own level does not count. It is the
// only handler that decides by level: next must write all that it gets.
func (l *Log) Handler(next slog.Handler) slog.Handler { return &handler{log: l, next: next} }

// A handler is one with attributes and groups of With.
type handler struct {
	log    *Log
	next   slog.Handler
	fields []Field
	group  string // with a dot at its end
}

// Enabled implements [slog.Handler]: a disabled level costs this comparison. While one logger has a lower level than the others, records of all
// are made from that level on.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.log.levels.Load().low
}

// Handle implements [slog.Handler].
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	name, foreign := h.log.loggerOf(r.PC)
	if r.Level < h.log.threshold(name, foreign) {
		return nil
	}
	k := Record{At: r.Time, Level: r.Level, Logger: name, Text: clean(r.Message), Fields: h.fields[:len(h.fields):len(h.fields)]}
	r.Attrs(func(a slog.Attr) bool {
		k.Fields = appendFields(k.Fields, h.group, a)
		return !isFull(k.Fields) // before further values are searched for secrets
	})
	k.Fields = bound(k.Fields)
	h.log.keep(k)
	return h.next.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.next, with.fields = h.next.WithAttrs(attrs), h.fields[:len(h.fields):len(h.fields)]
	for _, a := range attrs {
		if isFull(with.fields) {
			break
		}
		with.fields = appendFields(with.fields, h.group, a)
	}
	with.fields = bound(with.fields)
	return &with
}

// WithGroup implements [slog.Handler].
func (h *handler) WithGroup(name string) slog.Handler {
	with := *h
	with.next = h.next.WithGroup(name)
	if name != "" {
		with.group += name + "."
	}
	return &with
}

// A name is the logger of a statement.
type name struct {
	logger  string
	foreign bool
}

// unknown is the logger of records without a function.
const unknown = "unknown"

// loggerOf returns the logger of the function at pc, and whether it belongs to a library.
func (l *Log) loggerOf(pc uintptr) (logger string, foreign bool) {
	if pc == 0 {
		return unknown, false
	}
	if known, ok := l.names.Load(pc); ok {
		n := known.(name)
		return n.logger, n.foreign
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	n := l.nameOf(f.Function)
	l.names.Store(pc, n)
	return n.logger, n.foreign
}

// nameOf returns the logger of a function, such as "github.com/lmosd/lmosd/gateway.(*Gateway).drain".
func (l *Log) nameOf(function string) name {
	slash := strings.LastIndexByte(function, '/') + 1
	dot := strings.IndexByte(function[slash:], '.')
	if dot < 0 {
		return name{logger: unknown}
	}
	path := function[:slash+dot]
	own, ok := strings.CutPrefix(path, l.home)
	return name{strings.ReplaceAll(own, "%2e", "."), !ok && path != "main"} // a dot in the last part of a path is escaped
}

// appendFields appends an attribute, or the members of a group.
func appendFields(fields []Field, group string, a slog.Attr) []Field {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, one := range v.Group() {
			if isFull(fields) {
				break
			}
			fields = appendFields(fields, group, one)
		}
		return fields
	}
	if a.Key == "" && v.Any() == nil {
		return fields
	}
	f := Field{Key: shorten(group + a.Key)}
	switch v.Kind() {
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64:
		f.Value = v.Any()
	case slog.KindDuration: // JSON has no unit
		f.Key, f.Value = f.Key+"_ms", float64(v.Duration().Round(time.Microsecond))/float64(time.Millisecond)
	case slog.KindTime:
		f.Value = v.Time().UTC().Format(time.RFC3339Nano)
	default:
		f.Value = clean(v.String())
	}
	if isSecret(a.Key) {
		f.Value = Redacted
	}
	return append(fields, f)
}

// size returns the bytes of a field.
func (f *Field) size() int {
	text, _ := f.Value.(string)
	return len(f.Key) + len(text)
}

// isFull reports whether fields have reached a limit of a record.
func isFull(fields []Field) bool {
	total := 0
	for _, f := range fields {
		total += f.size()
	}
	return len(fields) >= maxFields || total >= maxRecord
}

// bound drops the fields beyond the limits of a record.
func bound(fields []Field) []Field {
	total := 0
	for i, f := range fields {
		if total += f.size(); total > maxRecord || i >= maxFields {
			return fields[:i:i]
		}
	}
	return fields
}

// clean returns text without secrets, shortened. The search for secrets is bounded.
func clean(text string) string { return shorten(Redact(text[:min(len(text), 2*maxText)])) }

// shorten returns a copy of text with at most maxText bytes, in valid UTF-8.
func shorten(text string) string {
	if len(text) > maxText {
		end := maxText - len("…")
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		return strings.ToValidUTF8(text[:end], "�") + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
