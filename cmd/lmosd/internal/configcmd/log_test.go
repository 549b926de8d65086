package configcmd

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
)

// at is when everything in these tests is logged.
var at = time.Date(2026, 11, 20, 10, 0, 5, 0, time.Local)

// logged returns what a logger of a terminal, or of a pipe, writes for a record.
func logged(t *testing.T, level, format string, env []string, log func(*slog.Logger)) string {
	t.Helper()
	var out bytes.Buffer
	c := configs.Default()
	c.Telemetry.Log.Level, c.Telemetry.Log.Format = level, format
	l, _ := Logger(cli.New(env, nil, &bytes.Buffer{}, &out), c)
	log(l)
	return out.String()
}

func record(l *slog.Logger, level slog.Level, message string, attrs ...slog.Attr) {
	r := slog.NewRecord(at, level, message, 0)
	r.AddAttrs(attrs...)
	if l.Enabled(context.Background(), level) {
		_ = l.Handler().Handle(context.Background(), r) // it writes into memory
	}
}

func TestLogForms(t *testing.T) {
	t.Parallel()
	log := func(l *slog.Logger) {
		record(l, slog.LevelInfo, "published", slog.Duration("took", 4432*time.Microsecond))
	}
	if got := logged(t, "info", "auto", nil, log); !strings.HasSuffix(got, `"level":"INFO","msg":"published","took_ms":4.432}`+"\n") {
		t.Errorf("JSON: %s", got)
	}
	if got := logged(t, "info", "text", nil, log); !strings.HasSuffix(got, " level=INFO msg=published took=4.432ms\n") {
		t.Errorf("text: %s", got)
	}
	if got := logged(t, "info", "auto", []string{"LMOSD_FORCE_TTY=80", "NO_COLOR=1"}, log); got != "10:00:05  published  took=4.4ms\n" {
		t.Errorf("on a terminal: %s", got)
	}
	if got := logged(t, "warn", "json", []string{"LMOSD_FORCE_TTY=80"}, log); got != "" {
		t.Errorf("below the level: %s", got)
	}
}

// Errors of other modules are left out unless everything is asked for; of the standard library, what is not a warning.
func TestLogOfLibraries(t *testing.T) {
	t.Parallel()
	standard, module := reflect.ValueOf(strings.ToUpper).Pointer()+1, reflect.ValueOf(pflag.NewFlagSet).Pointer()+1
	for name, test := range map[string]struct {
		level string
		of    slog.Level
		from  uintptr
		want  bool
	}{
		"information":                 {"info", slog.LevelInfo, standard, false},
		"a warning":                   {"info", slog.LevelWarn, standard, true},
		"information at debug":        {"debug", slog.LevelInfo, standard, true},
		"a warning at error":          {"error", slog.LevelWarn, standard, false},
		"an error of a module":        {"info", slog.LevelError, module, false},
		"the same at debug":           {"debug", slog.LevelError, module, true},
		"debug of a module, at debug": {"debug", slog.LevelDebug, module, true},
	} {
		got := logged(t, test.level, "auto", nil, func(l *slog.Logger) {
			r := slog.NewRecord(at, test.of, "shutting down", test.from)
			if l.Enabled(t.Context(), test.of) {
				_ = l.With("a", 1).WithGroup("g").Handler().Handle(t.Context(), r) // it writes into memory
			}
		})
		if (got != "") != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
