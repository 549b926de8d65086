package tdd

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/internal/sse"
)

// event is a received event.
type event struct{ name, id, data string }

func newLines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	return s
}

// nextEvent reads an event and skips comments; the zero event is the end.
func nextEvent(t *testing.T, lines *bufio.Scanner) (e event) {
	t.Helper()
	for lines.Scan() {
		line := lines.Text()
		if line == "" && e.name == "" {
			t.Error("an empty event")
		}
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			e.data += value
		}
		if line == "" && e.name != "" {
			return e
		}
	}
	return event{}
}

// listen opens an event stream; end closes it.
func listen(t *testing.T, c *http.Client, path, last string) (lines *bufio.Scanner, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", "http://x"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != sse.MediaType {
		t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	lines = newLines(resp.Body) // no blank line follows the comment: some clients take it for the end of an event
	if !lines.Scan() || lines.Text() != ": " {
		t.Fatalf("the first line is %q", lines.Text())
	}
	return lines, func() {
		cancel()
		resp.Body.Close()
	}
}

// The Events API: WoT Discovery §7.3.2.2; tdd-notification tdd-notification-sse.
func TestEventRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		client, end := w.client()
		defer end()
		streams := map[string]*bufio.Scanner{}
		for _, path := range []string{"/events", "/events?diff=true", "/events?diff=false", "/events/thing_created",
			"/events/thing_updated?diff=true", "/events/thing_deleted?diff=true"} {
			lines, end := listen(t, client, path, "")
			defer end()
			streams[path] = lines
		}
		synctest.Wait() // all of them watch
		w.add("urn:x:a", "A")
		w.add("urn:x:a", "B", `"description":"line"`)
		w.do(t, exchange{method: "DELETE", path: "/things/urn:x:a", status: 204})
		const only = `{"id":"urn:x:a"}`
		var ids []string
		for path, want := range map[string][]event{
			"/events": {{name: created, data: only}, {name: updated, data: only},
				{name: deleted, data: only}}, // tdd-notification-data tdd-notification-data-td-id tdd-notification-event-types
			"/events?diff=false": {{name: created, data: only}, {name: updated, data: only}, {name: deleted, data: only}},
			"/events?diff=true": {{name: created, data: `"title":"A"`}, {name: updated, data: `"title":"B"`},
				// tdd-notification-data-create-full tdd-notification-data-update-diff
				{name: deleted, data: only}}, // tdd-notification-data-delete-diff
			"/events/thing_created":           {{name: created, data: only}}, // tdd-notification-filter-type
			"/events/thing_updated?diff=true": {{name: updated, data: `"description":"line"`}},
			"/events/thing_deleted?diff=true": {{name: deleted, data: only}},
		} {
			var before uint64
			for _, e := range want {
				got := nextEvent(t, streams[path])
				var data map[string]any
				if err := json.Unmarshal([]byte(got.data), &data); err != nil || data["id"] != "urn:x:a" { // tdd-notification-data-update-id
					t.Errorf("%s: %v in %+v", path, err, got)
				}
				if got.name != e.name || !strings.Contains(got.data, e.data) || e.data == only && got.data != only {
					t.Errorf("%s: got %+v, want %+v", path, got, e)
				}
				id, err := strconv.ParseUint(got.id, 10, 64) // tdd-notification-event-id
				if err != nil || id <= before {
					t.Errorf("%s: id %q after %d", path, got.id, before)
				}
				if before = id; path == "/events" {
					ids = append(ids, got.id)
				}
			}
		}
		if patch := nextEvent(t, again(t, client, "/events/thing_updated?diff=true", ids[0])).data; strings.Contains(patch,
			"securityDefinitions") {
			t.Errorf("a diff contains unchanged members: %s", patch)
		}
		// A reconnect resumes after the last event that the client received.
		for i, want := range []string{updated, deleted} {
			if e := nextEvent(t, again(t, client, "/events", ids[i])); e.name != want || e.id != ids[i+1] {
				t.Errorf("after %s: %+v", ids[i], e)
			}
		}
		if e := nextEvent(t, again(t, client, "/events?lastEventId="+ids[1], "")); e.name != deleted {
			t.Errorf("by the query: %+v", e)
		}
		// Clients that missed changes get an event for it, then the oldest change in memory; the same holds for ids of other directories.
		for _, last := range []string{"1", "0", "x", "99999999999999999999",
			strconv.FormatInt(time.Now().Add(24*time.Hour).UnixMicro(), 10)} {
			lines := again(t, client, "/events/thing_created", last)
			if e := nextEvent(t, lines); e.name != overflow || e.id == "" {
				t.Errorf("after %s: %+v", last, e)
			}
			if e := nextEvent(t, lines); e.name != created || e.id != ids[0] {
				t.Errorf("after %s, then: %+v", last, e)
			}
		}
	})
}

func again(t *testing.T, c *http.Client, path, last string) *bufio.Scanner {
	lines, end := listen(t, c, path, last)
	t.Cleanup(end)
	return lines
}

func TestEventsRefuse(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.run(t, []exchange{
		{rule: "tdd-notification-filter-type: unknown", path: "/events/thing_moved", status: 404},
		{path: "/events/thing_created/x", status: 404}, {path: "/events?diff=2", status: 400}, {path: "/events?x=1", status: 400},
		{rule: "tdd-http-head", method: "HEAD", path: "/events", want: map[string]string{"Content-Type": sse.MediaType}},
		{rule: "tdd-http-head", method: "HEAD", path: "/events/thing_created?diff=true"}, {method: "POST", path: "/events",
			status: 405},
	})
	w.Drain()
	w.do(t, exchange{path: "/events", status: 503})
}

// Idle streams send keep-alives, their number is limited, readers that are too slow are disconnected, and a drain ends all.
func TestEventStreamsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, func(o *Options) { o.Watchers = 2 })
		client, end := w.client()
		defer end()
		lines, _ := listen(t, client, "/events", "")
		_, leave := listen(t, client, "/events", "")
		w.do(t, exchange{path: "/events", status: 503})
		began, beats := time.Now(), 0
		for beats < 3 && lines.Scan() {
			if lines.Text() == ": " {
				beats++
			}
		}
		if passed := time.Since(began); passed != 45*time.Second {
			t.Errorf("three keep-alives in %s", passed)
		}
		leave()
		synctest.Wait()
		slow, _ := listen(t, client, "/events", "") // a slot is free again
		for i := range 100 {
			w.add(fmt.Sprintf("urn:x:%d", i), strings.Repeat("long", 200))
		}
		time.Sleep(time.Minute) // the pipe blocks
		synctest.Wait()
		w.mu.Lock()
		if w.watchers != 0 {
			t.Errorf("%d watchers, want 0", w.watchers)
		}
		w.mu.Unlock()
		for slow.Scan() {
		}
		lines, _ = listen(t, client, "/events", "")
		w.Drain()
		if e := nextEvent(t, lines); e != (event{}) {
			t.Errorf("after the end: %+v", e)
		}
	})
}
