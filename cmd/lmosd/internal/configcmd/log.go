package configcmd

import (
	"log/slog"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/telemetry/recentlog"
)

// Logger returns the log of a node on standard error, lines for people on a terminal, else JSON for programs; with its newest records and its
// levels.
func Logger(a *cli.Console, c *configs.Config) (*slog.Logger, *recentlog.Log) {
	recent := recentlog.New(recentlog.Options{Level: levelOf(c.Telemetry.Log.Level), Home: home})
	const all = slog.LevelDebug // recent decides
	var h slog.Handler
	switch format := c.Telemetry.Log.Format; {
	case format == "json" || format == "auto" && !a.Talk.TTY:
		h = slog.NewJSONHandler(a.Talk, &slog.HandlerOptions{Level: all, ReplaceAttr: inMilliseconds})
	case a.Talk.TTY:
		h = terminal.NewLog(a.Talk, all)
	default:
		h = slog.NewTextHandler(a.Talk, &slog.HandlerOptions{Level: all})
	}
	return slog.New(recent.Handler(h)), recent
}

// SetLevel sets the level of all loggers to that of the configuration.
func SetLevel(log *recentlog.Log, c *configs.Config) {
	log.SetLevel(recentlog.All, levelOf(c.Telemetry.Log.Level))
}

// home is the import path of the program. Messages of libraries ("processloop shutting down") do not concern operators.
const home = "github.com/lmosd/lmosd/"

// CommandLogger returns the log of a command that runs without a node: warnings, and with -v all messages.
func CommandLogger(a *cli.Console) *slog.Logger {
	c := configs.Default()
	if c.Telemetry.Log.Level = "warn"; a.Flags.Verbose {
		c.Telemetry.Log.Level = "debug"
	}
	log, _ := Logger(a, c)
	return log
}

// inMilliseconds adds the unit to durations, which JSON does not have: took_ms for took.
func inMilliseconds(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		return slog.Float64(attr.Key+"_ms", api.Milliseconds(attr.Value.Duration()))
	}
	return attr
}

func levelOf(name string) slog.Level {
	var l slog.Level
	_ = l.UnmarshalText([]byte(name)) // the configuration was checked; other values are info
	return l
}
