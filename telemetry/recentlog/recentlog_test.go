package recentlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

const home = "github.com/lmosd/lmosd/"

func newLog(level slog.Level) (*Log, *slog.Logger, *bytes.Buffer) {
	out := &bytes.Buffer{}
	l := New(Options{Level: level, Home: home})
	return l, slog.New(l.Handler(slog.NewTextHandler(out, nil))), out
}

func anything(*Record) bool { return true }

func texts(all []Record) (got []string) {
	for _, r := range all {
		got = append(got, r.Text)
	}
	return got
}

// at logs a record of a function.
func at(l *slog.Logger, level slog.Level, function any, text string) {
	r := slog.NewRecord(time.Now(), level, text, reflect.ValueOf(function).Pointer()+1)
	if l.Enabled(context.Background(), level) {
		_ = l.Handler().Handle(context.Background(), r)
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	l, log, out := newLog(slog.LevelInfo)
	log.Debug("hidden")
	log.With("agent", "weather").WithGroup("http").Info("answered", "took", 1500*time.Microsecond, "n", 3, "ok", true, "err", errors.New("broken"),
		slog.Group("in", "size", 1.5), slog.Group("", "flat", uint64(2)), slog.Attr{}, "at", time.Unix(0, 0))
	all := l.Newest(10, anything)
	if len(all) != 1 {
		t.Fatalf("%d records", len(all))
	}
	r := all[0]
	if r.Logger != "telemetry/recentlog" || r.Text != "answered" || r.Level != slog.LevelInfo || r.Seq != l.Latest() {
		t.Errorf("record %+v", r)
	}
	want := []Field{{"agent", "weather"}, {"http.took_ms", 1.5}, {"http.n", int64(3)}, {"http.ok", true}, {"http.err", "broken"},
		{"http.in.size", 1.5}, {"http.flat", uint64(2)}, {"http.at", "1970-01-01T00:00:00Z"}}
	if !reflect.DeepEqual(r.Fields, want) {
		t.Errorf("fields %v, want %v", r.Fields, want)
	}
	if !strings.Contains(out.String(), "agent=weather http.took=1.5ms") {
		t.Errorf("passed on: %s", out)
	}
	if !slices.Equal(l.Loggers(), []string{"telemetry/recentlog"}) {
		t.Errorf("loggers %v", l.Loggers())
	}
}

// A level holds for a logger and the packages below it, from its change on.
func TestLevels(t *testing.T) {
	t.Parallel()
	l, log, _ := newLog(slog.LevelInfo)
	say := func(text string) {
		at(log, slog.LevelDebug, newLog, text)
		at(log, slog.LevelDebug, lazyregexp.New, "other "+text)
	}
	say("1")
	l.SetLevel("telemetry", slog.LevelDebug)
	say("2")
	l.SetLevel("telemetry/recentlog", slog.LevelWarn)
	say("3")
	l.SetLevel(All, slog.LevelDebug)
	say("4")
	l.Unset("telemetry/recentlog")
	say("5")
	l.SetLevel(All, slog.LevelInfo)
	l.Unset("telemetry")
	say("6")
	if got := texts(l.Newest(100, anything)); !slices.Equal(got, []string{"2", "other 4", "5", "other 5"}) {
		t.Errorf("kept %q", got)
	}
	if got := l.Levels(); len(got) != 1 || got[All] != slog.LevelInfo {
		t.Errorf("levels %v", got)
	}
	if log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("debug is enabled after its last logger is reset")
	}
	for i := range maxLoggers {
		l.SetLevel(fmt.Sprint("x", i), slog.LevelInfo)
	}
	if l.SetLevel("one more", slog.LevelDebug) || !l.SetLevel("x7", slog.LevelDebug) {
		t.Error("the number of levels is not bounded")
	}
}

// Libraries log warnings, unless everything is wanted or they have a level.
func TestLibraries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		all, own slog.Level
		of       slog.Level
		want     bool
	}{
		{"information", slog.LevelInfo, 99, slog.LevelInfo, false},
		{"a warning", slog.LevelInfo, 99, slog.LevelWarn, true},
		{"information at debug", slog.LevelDebug, 99, slog.LevelInfo, true},
		{"a warning at error", slog.LevelError, 99, slog.LevelWarn, false},
		{"information with a level", slog.LevelWarn, slog.LevelInfo, slog.LevelInfo, true},
	} {
		l, log, out := newLog(c.all)
		if c.own != 99 {
			l.SetLevel("net/http", c.own)
		}
		at(log.With("a", 1).WithGroup("g"), c.of, http.NewRequest, "listening")
		if got := len(l.Newest(1, anything)) == 1; got != c.want || (out.Len() > 0) != c.want {
			t.Errorf("%s: kept %v, written %q", c.name, got, out)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	l := New(Options{Home: home})
	for function, want := range map[string]name{
		"github.com/lmosd/lmosd/gateway.(*Gateway).drain":                 {"gateway", false},
		"github.com/lmosd/lmosd/gateway/tdd.New.func1":                    {"gateway/tdd", false},
		"main.(*app).serve":                                               {"main", false},
		"net/http.(*Server).logf":                                         {"net/http", true},
		"gopkg.in/yaml%2ev3.Unmarshal":                                    {"gopkg.in/yaml.v3", true},
		"github.com/libp2p/go-libp2p/p2p/net/swarm.(*Swarm).dialNextAddr": {"github.com/libp2p/go-libp2p/p2p/net/swarm", true},
		"": {unknown, false},
	} {
		if got := l.nameOf(function); got != want {
			t.Errorf("%s: %v, want %v", function, got, want)
		}
	}
	if got, foreign := l.loggerOf(0); got != unknown || foreign {
		t.Errorf("without a function: %q", got)
	}
}

// The ring is bounded by number and by bytes, whatever is logged.
func TestBounds(t *testing.T) {
	t.Parallel()
	l, log, _ := newLog(slog.LevelInfo)
	check := func(what string) {
		t.Helper()
		sum := 0
		for _, r := range l.Newest(MaxRecords+1, anything) {
			sum += r.size()
		}
		if sum != l.bytes || sum > MaxBytes || len(l.kept)-l.first > MaxRecords || cap(l.kept) > 2*MaxRecords+1000 {
			t.Errorf("%s: %d bytes, counted %d, %d records in a slice of %d", what, sum, l.bytes, len(l.kept)-l.first, cap(l.kept))
		}
	}
	for i := range 3 * MaxRecords {
		log.Info("short", "i", i)
	}
	check("short records")
	if n := len(l.Newest(MaxRecords+1, anything)); n != MaxRecords {
		t.Errorf("%d short records", n)
	}
	huge := strings.Repeat("ü", 2<<10)
	many := []any{}
	for i := range 30 {
		many = append(many, fmt.Sprint("k", i), huge)
	}
	log = slog.New(l.Handler(slog.DiscardHandler)).With(many...)
	for range 400 {
		log.Info(huge, many...)
	}
	check("long records")
	r := l.Newest(1, anything)[0]
	if len(r.Text) > maxText || !strings.HasSuffix(r.Text, "…") || len(r.Fields) == 0 || r.size() > 4*maxRecord {
		t.Errorf("a record of %d bytes, %d fields", r.size(), len(r.Fields))
	}
}

// A reader gets each record once and in order; what it missed is a gap. A writer does not wait for it.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, log, _ := newLog(slog.LevelInfo)
		ctx, cancel := context.WithCancel(t.Context())
		log.Info("before")
		first := l.Latest()
		var got []Record
		done := make(chan error)
		resume := make(chan struct{})
		go func() {
			for r, err := range l.Follow(ctx, first) {
				if err != nil {
					done <- err
					return
				}
				if got = append(got, r); len(got) == 2 {
					<-resume // a slow reader
				}
			}
		}()
		log.Info("a")
		synctest.Wait()
		log.Info("b")
		synctest.Wait()
		for i := range MaxRecords + 5 {
			log.Info(fmt.Sprint(i))
		}
		close(resume)
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if len(got) != 2+1+MaxRecords || got[0].Text != "a" || got[1].Text != "b" {
			t.Fatalf("%d records", len(got))
		}
		gap := got[2]
		if gap.GapFrom != first+3 || gap.Seq != first+7 || got[3].Seq != gap.Seq+1 || got[3].Text != "5" {
			t.Errorf("gap %+v, then %+v", gap, got[3])
		}
	})
}

// A number of an earlier run is a gap, one from the future waits.
func TestFollowAnotherRun(t *testing.T) {
	t.Parallel()
	l, log, _ := newLog(slog.LevelInfo)
	log.Info("a")
	for r, err := range l.Follow(t.Context(), 7) {
		if err != nil || r.GapFrom != 8 || r.Seq != l.Latest()-1 {
			t.Errorf("%+v, %v", r, err)
		}
		break
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for r, err := range l.Follow(ended, l.Latest()+9) {
		if err == nil {
			t.Errorf("got %+v", r)
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level  slog.Level
		logger string
		want   bool
	}{
		{slog.LevelDebug, "", true}, {slog.LevelInfo, "gateway", true}, {slog.LevelInfo, "gateway/tdd", true}, {slog.LevelWarn, "", false},
		{slog.LevelInfo, "gate", false}, {slog.LevelInfo, "gateway/tdd/x", false}, {slog.LevelInfo, "node", false},
	} {
		if got := AtLeast(c.level, c.logger)(&Record{Level: slog.LevelInfo, Logger: "gateway/tdd"}); got != c.want {
			t.Errorf("%v %q: %v", c.level, c.logger, got)
		}
	}
}

type secret string

func (secret) LogValue() slog.Value { return slog.StringValue("hidden by its type") }

func TestSecrets(t *testing.T) {
	t.Parallel()
	const token = "lmos_0123456789012345678901234567890123456789012345678"
	for given, want := range map[string]string{
		"token " + token + " refused":                                  "token [redacted] refused",
		"Authorization: Bearer abcdefgh12":                             "Authorization: Bearer [redacted]",
		"Authorization: Basic dXNlcjpwYXNz":                            "Authorization: Basic [redacted]",
		"GET https://u:p@h.example/x?access_token=abc&a=1":             "GET https://[redacted]@h.example/x?access_token=[redacted]&a=1",
		`{"client_secret": "abc","a":1}`:                               `{"client_secret": "[redacted]","a":1}`,
		`x-api-key=abc and api_key=abc`:                                `x-api-key=[redacted] and api_key=[redacted]`,
		`got "{\"password\":\"abc\"}"`:                                 `got "{\"password\":\"[redacted]"}"`,
		"join lmos-invite:AAAA.BBBB now":                               "join [redacted] now",
		"eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln expired":            "[redacted] expired",
		"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----": "[redacted]",
		"-----BEGIN PRIVATE KEY-----\nMC4C":                            "[redacted]",
		"basic needs, a bearer of news":                                "basic needs, a bearer of news",
		"invalid token: it has expired":                                "invalid token: it has expired",
		"dial http://127.0.0.1:4668/things/a@b failed":                 "dial http://127.0.0.1:4668/things/a@b failed",
	} {
		l, log, _ := newLog(slog.LevelInfo)
		log.Info(given, "err", errors.New(given))
		r := l.Newest(1, anything)[0]
		if r.Text != want || r.Fields[0].Value != want {
			t.Errorf("%q: text %q, field %q", given, r.Text, r.Fields[0].Value)
		}
	}
	l, log, _ := newLog(slog.LevelInfo)
	log.With("password", "a").Info("x", "access_token", "b", "X-API-Key", "c", "apiKey", "d", "callerSecret", 7, "value", secret("e"), "tokens", 3)
	want := []Field{{"password", Redacted}, {"access_token", Redacted}, {"X-API-Key", Redacted}, {"apiKey", Redacted}, {"callerSecret", Redacted},
		{"value", "hidden by its type"}, {"tokens", int64(3)}}
	if got := l.Newest(1, anything)[0].Fields; !reflect.DeepEqual(got, want) {
		t.Errorf("fields %v", got)
	}
}

// A disabled level costs no allocation.
func TestDisabledCostsNothing(t *testing.T) {
	_, log, _ := newLog(slog.LevelInfo)
	if n := testing.AllocsPerRun(100, func() { log.LogAttrs(context.Background(), slog.LevelDebug, "x") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever is logged, the kept text is short, valid, and without the tokens in it.
func FuzzRedact(f *testing.F) {
	f.Add("GET /?access_token=", "x")
	f.Add("\xff{\"client_secret\":\"", "\"}")
	f.Fuzz(func(t *testing.T, before, after string) {
		const token = "lmos_0123456789012345678901234567890123456789012345678"
		got := clean(before + " " + token + " " + after)
		if strings.Contains(got, token) || len(got) > maxText || !utf8.ValidString(got) {
			t.Errorf("%q", got)
		}
	})
}
