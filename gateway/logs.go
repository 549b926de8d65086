package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/telemetry/recentlog"
)

// Limits of requests for the log.
const (
	maxLogStreams = 16
	logLimit      = 100 // records without the parameter limit
	maxLevelBody  = 1 << 10
	logKeepAlive  = 15 * time.Second
)

// levelNames are the levels that may be set.
var levelNames = []string{"debug", "info", "warn", "error"}

// loggerName is the form of the path of a package.
var loggerName = lazyregexp.New(`^(\*|[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*)$`)

// logs returns the log records of the node.
func (g *Gateway) logs() (*recentlog.Log, error) {
	if g.o.Logs == nil {
		return nil, interact.Errorf(interact.NoAffordance, "", "this node keeps no log records").Then(interact.StepStatus)
	}
	return g.o.Logs, nil
}

// A logRequest is a parsed GET /v1/logs.
type logRequest struct {
	fits   func(*recentlog.Record) bool
	limit  int
	before uint64 // the cursor; 0: from the newest on
}

func parseLogs(r *http.Request) (q logRequest, err error) {
	v, err := tdd.Params(r, "limit", "level", "logger", "cursor")
	if err != nil {
		return q, err
	}
	level := slog.LevelDebug
	if name := v.Get("level"); name != "" {
		if level, err = parseLevel(name, interact.Usage); err != nil {
			return q, err
		}
	}
	logger := v.Get("logger")
	if logger != "" && (logger == recentlog.All || !isLogger(logger)) {
		return q, interact.Errorf(interact.Usage, "for example logger=gateway", "%q is not the name of a logger", tdd.Clip(logger))
	}
	if q.limit, err = tdd.Integer(v, "limit", 1, recentlog.MaxRecords, logLimit); err != nil {
		return q, err
	}
	if v.Get("cursor") != "" {
		if q.before, err = strconv.ParseUint(v.Get("cursor"), 10, 64); err != nil || q.before == 0 {
			return q, interact.Errorf(interact.Usage, "send next of the page before", "%q is not a cursor", tdd.Clip(v.Get("cursor")))
		}
	}
	q.fits = recentlog.AtLeast(level, logger)
	return q, nil
}

// isLogger reports whether name has the form of the name of a logger, or is that of all.
func isLogger(name string) bool { return len(name) <= 128 && loggerName().MatchString(name) }

// parseLevel returns the level with a name. The error has the code.
func parseLevel(name string, code interact.Code) (l slog.Level, err error) {
	if !slices.Contains(levelNames, name) {
		return l, interact.Errorf(code, "one of "+strings.Join(levelNames, ", "), "unknown level %q", tdd.Clip(name))
	}
	return l, l.UnmarshalText([]byte(name))
}

func (g *Gateway) getLogs(w http.ResponseWriter, r *http.Request) error {
	l, err := g.logs()
	if err != nil {
		return err
	}
	q, err := parseLogs(r)
	if err != nil {
		return err
	}
	if wantsEvents(r) {
		return g.followLogs(w, r, l, q)
	}
	list := api.LogList{APIVersion: api.APIVersion, Kind: "LogList", Latest: l.Latest(), LogLevels: levelsOf(l)}
	found := l.Newest(q.limit+1, func(r *recentlog.Record) bool { return (q.before == 0 || r.Seq < q.before) && q.fits(r) })
	if len(found) > q.limit {
		found = found[1:]
		list.Next = strconv.FormatUint(found[0].Seq, 10)
	}
	list.Items = make([]api.LogRecord, 0, len(found))
	for _, one := range found {
		list.Items = append(list.Items, logRecord(&one))
	}
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, http.StatusOK, list)
}

func logRecord(r *recentlog.Record) api.LogRecord {
	shown := api.LogRecord{Seq: r.Seq, At: r.At.UTC(), Level: strings.ToLower(r.Level.String()), Logger: r.Logger, Text: r.Text}
	if len(r.Fields) > 0 {
		shown.Fields = make(map[string]any, len(r.Fields))
	}
	for _, f := range r.Fields {
		shown.Fields[f.Key] = f.Value
	}
	return shown
}

func levelsOf(l *recentlog.Log) api.LogLevels {
	shown := api.LogLevels{Levels: map[string]string{}, Loggers: l.Loggers()}
	for name, level := range l.Levels() {
		shown.Levels[name] = strings.ToLower(level.String())
	}
	if shown.Loggers == nil {
		shown.Loggers = []string{}
	}
	return shown
}

// followLogs sends the newest records, or those after Last-Event-ID, and then further ones: events log and gap.
func (g *Gateway) followLogs(w http.ResponseWriter, r *http.Request, l *recentlog.Log, q logRequest) error {
	return g.stream(w, r, &g.logStreams, maxLogStreams, "log records", func(ctx context.Context, e *sse.Writer) {
		after, err := strconv.ParseUint(r.Header.Get("Last-Event-Id"), 10, 64)
		if latest := l.Latest(); err != nil || after == 0 || after > latest {
			after = latest
			for _, one := range l.Newest(q.limit, func(r *recentlog.Record) bool { return r.Seq <= latest && q.fits(r) }) {
				if sendLog(e, &one) != nil {
					return // the client disconnected
				}
			}
		}
		sse.Follow(ctx, e, logKeepAlive, func(ctx context.Context) iter.Seq2[recentlog.Record, error] { return l.Follow(ctx, after) },
			func(one recentlog.Record) error {
				if one.GapFrom == 0 && !q.fits(&one) {
					return nil
				}
				return sendLog(e, &one)
			})
	})
}

// stream calls send with a stream of server-sent events, and sends why it ends if the client did not end it. ctx ends with the request and with
// the gateway. At most most streams are open of those that open counts.
func (g *Gateway) stream(w http.ResponseWriter, r *http.Request, open *atomic.Int64, most int64, what string,
	send func(ctx context.Context, e *sse.Writer)) error {
	defer open.Add(-1)
	if open.Add(1) > most {
		return interact.Errorf(interact.Overloaded, "try again later", "%d streams of %s are open", most, what)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.streamCtx, cancel)()
	e := sse.NewWriter(w, g.o.timeouts.write)
	defer e.End()
	send(ctx, e)
	switch lost, ok := errors.AsType[*interact.Error](context.Cause(r.Context())); {
	case ok: // the rights of the client have ended
		problem.Send(e, lost)
	case g.streamCtx.Err() != nil:
		problem.Send(e, errShuttingDown())
	}
	return nil
}

func sendLog(e *sse.Writer, r *recentlog.Record) error {
	name, doc := "log", any(logRecord(r))
	if r.GapFrom > 0 {
		name, doc = "gap", api.LogGap{Kind: "gap", From: r.GapFrom, To: r.Seq}
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return e.Send(name, strconv.FormatUint(r.Seq, 10), data)
}

// logMethods are the methods of /v1/logs/{logger}, whose name may have slashes.
func (g *Gateway) logMethods() map[string]http.Handler {
	return map[string]http.Handler{
		http.MethodPut:    g.protect(admin, g.putLevel),
		http.MethodDelete: g.protect(admin, g.deleteLevel),
	}
}

// logger returns the log, and the logger that the path of r names.
func (g *Gateway) logger(r *http.Request) (l *recentlog.Log, name string, err error) {
	if l, err = g.logs(); err != nil {
		return nil, "", err
	}
	if _, err := tdd.Params(r); err != nil {
		return nil, "", err
	}
	if name = r.PathValue("ref"); !isLogger(name) {
		return nil, "", interact.Errorf(interact.Invalid, "for example gateway, or * for all", "%q is not the name of a logger", tdd.Clip(name))
	}
	return l, name, nil
}

func (g *Gateway) putLevel(w http.ResponseWriter, r *http.Request) error {
	l, name, err := g.logger(r)
	if err != nil {
		return err
	}
	var body api.LogLevelRequest
	if err := readLimited(w, r, maxLevelBody, &body, `{"level": "debug"}`); err != nil {
		return err
	}
	level, err := parseLevel(body.Level, interact.Invalid)
	if err != nil {
		return err
	}
	if !l.SetLevel(name, level) {
		return interact.Errorf(interact.Overloaded, "remove some, or set the level of a path above them", "too many loggers have a level of their own")
	}
	g.log.Warn("log level changed until the node ends", "of", name, "to", body.Level) // a level that hides it hides little
	return writeJSON(w, http.StatusOK, api.LogLevelsDocument{APIVersion: api.APIVersion, Kind: "LogLevels", LogLevels: levelsOf(l)})
}

func (g *Gateway) deleteLevel(w http.ResponseWriter, r *http.Request) error {
	l, name, err := g.logger(r)
	if err != nil {
		return err
	}
	if name == recentlog.All {
		return interact.Errorf(interact.NotAllowed, "set another one", "the level of all loggers cannot be removed")
	}
	l.Unset(name)
	g.log.Warn("log level removed", "of", name)
	return writeJSON(w, http.StatusOK, api.LogLevelsDocument{APIVersion: api.APIVersion, Kind: "LogLevels", LogLevels: levelsOf(l)})
}
