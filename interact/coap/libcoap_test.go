package coap

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/td"
)

// coapClient runs libcoap's command-line client.
func coapClient(t *testing.T, args ...string) (out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, libcoap(t, "client"), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("coap-client %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	t.Logf("coap-client %s: %q %q", strings.Join(args, " "), clip(stdout.String(), 200), clip(stderr.String(), 200))
	return stdout.String() + stderr.String()
}

// libcoap returns the path of a program of libcoap, with the TLS library that it finds first.
func libcoap(t *testing.T, what string) string {
	t.Helper()
	name := "coap-" + what
	return testprogram.Path(t, name+"-openssl", name+"-gnutls", name+"-notls", name)
}

// A store is a mesh of one Thing that stores written values and notifies observers.
type store struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{}
	watched bool
}

func (s *store) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		s.mu.Lock()
		value, changed := s.values[m.Name], s.changed
		s.watched = s.watched || m.Type == interact.ObserveProperty
		s.mu.Unlock()
		switch m.Type {
		case interact.ReadProperty:
			yield(m.Reply(interact.PropertyReading, "", value), nil)
		case interact.WriteProperty:
			data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
			if err != nil {
				yield(nil, err)
				return
			}
			s.set(m.Name, data)
			yield(m.Reply(interact.Acknowledgement, "", nil), nil)
		case interact.InvokeAction:
			r := m.Reply(interact.ActionStatus, m.ContentType, m.Data)
			r.Status = interact.StatusCompleted
			yield(r, nil)
		case interact.ObserveProperty:
			for {
				select {
				case <-changed:
				case <-ctx.Done():
					yield(nil, ctx.Err())
					return
				}
				s.mu.Lock()
				value, changed = s.values[m.Name], s.changed
				s.mu.Unlock()
				if !yield(m.Reply(interact.PropertyReading, "", value), nil) {
					return
				}
			}
		}
	}
}

func (s *store) set(name string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[name] = value
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *store) get(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.values[name])
}

// isWatched reports whether it was ever observed: earlier changes are not sent.
func (s *store) isWatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watched
}

func newStore() *store { return &store{values: map[string][]byte{}, changed: make(chan struct{})} }

// lampTD describes the Thing of store.
const lampTD = `"properties": {"level": {"type": "integer", "observable": true, "forms": [{"href": "BASE/level"}]},
	"text": {"type": "string", "forms": [{"href": "BASE/text"}]}},
	"actions": {"echo": {"input": {}, "output": {}, "forms": [{"href": "BASE/echo"}]}}`

func TestLibcoapClient(t *testing.T) {
	t.Parallel()
	libcoap(t, "client")
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	mesh.set("level", []byte("7"))
	known := func(context.Context) iter.Seq[*td.Description] {
		return func(yield func(*td.Description) bool) { yield(described(thing)) }
	}
	at := "coap://" + startServer(t, ServerOptions{Mesh: interact.Checked(thing)(mesh), Known: known}, thing).String()
	props := at + "/things/urn:example:thing/properties/"

	if got := coapClient(t, props+"level"); !strings.Contains(got, "7") {
		t.Errorf("get: %q", got)
	}
	if got := coapClient(t, "-N", props+"level"); !strings.Contains(got, "7") {
		t.Errorf("get, not confirmable: %q", got)
	}
	coapClient(t, "-m", "put", "-t", "50", "-e", "21", props+"level")
	if got := mesh.get("level"); got != "21" {
		t.Errorf("put wrote %q", got)
	}
	if got := coapClient(t, "-m", "post", "-t", "50", "-e", `{"a":1}`,
		at+"/things/urn%3Aexample%3Athing/actions/echo"); !strings.Contains(got, `{"a":1}`) {
		t.Errorf("post: %q", got)
	}
	if got := coapClient(t, at+"/.well-known/core"); !strings.Contains(got, `</things/urn:example:thing>;rt="wot.thing";ct=432`) {
		t.Errorf("well-known: %q", got)
	}
	if got := coapClient(t, at+"/things/urn:example:thing"); !strings.Contains(got, `"title": "Thing"`) {
		t.Errorf("TD: %q", got)
	}
	if got := coapClient(t, "-A", "60", "-w", props+"level"); got != "\x15\n\n" {
		t.Errorf("CBOR: %q", got)
	}
	if got := coapClient(t, props+"nothing"); !strings.Contains(got, "4.04 LMOS-1405") {
		t.Errorf("an unknown property: %q", got)
	}
	if got := coapClient(t, at+"/nowhere"); !strings.Contains(got, "4.04") || !strings.Contains(got, "LMOS-1404") {
		t.Errorf("an unknown path: %q", got)
	}
	if got := coapClient(t, "-O", "65001,x", props+"level"); !strings.Contains(got, "4.02") {
		t.Errorf("an unknown critical option: %q", got)
	}
}

func TestLibcoapBlocks(t *testing.T) {
	t.Parallel()
	libcoap(t, "client")
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	at := "coap://" + startServer(t, ServerOptions{Mesh: mesh}, thing).String()
	text := big(100 << 10)
	file := t.TempDir() + "/text"
	writeFile(t, file, text)
	for _, args := range [][]string{{}, {"-b", "64"}} {
		mesh.set("text", nil)
		args = append(args, "-t", "50", at+"/things/urn:example:thing/properties/text")
		coapClient(t, append([]string{"-m", "put", "-f", file}, args...)...)
		if mesh.get("text") != text {
			t.Errorf("%v: put wrote %d bytes, want %d", args, len(mesh.get("text")), len(text))
		}
		if got := coapClient(t, args...); !strings.Contains(got, text) {
			t.Errorf("%v: get gave %d bytes, want %d", args, len(got), len(text))
		}
		if got := coapClient(t, append([]string{"-m", "post", "-f", file}, append(args[:len(args)-1:len(args)-1],
			at+"/things/urn:example:thing/actions/echo")...)...); !strings.Contains(got, text) {
			t.Errorf("%v: post gave %d bytes, want %d", args, len(got), len(text))
		}
	}
}

// TestLibcoapRepeats loses the second datagram that the client sends.
func TestLibcoapRepeats(t *testing.T) {
	t.Parallel()
	libcoap(t, "client")
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	at := "coap://" + startServer(t, ServerOptions{Mesh: mesh}, thing).String()
	file := t.TempDir() + "/text"
	writeFile(t, file, big(4<<10))
	coapClient(t, "-l", "2", "-m", "put", "-f", file, "-t", "50", at+"/things/urn:example:thing/properties/text")
	if mesh.get("text") != big(4<<10) {
		t.Errorf("put wrote %d bytes", len(mesh.get("text")))
	}
}

func TestLibcoapObserves(t *testing.T) {
	t.Parallel()
	libcoap(t, "client")
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	mesh.set("level", []byte("1000"))
	at := "coap://" + startServer(t, ServerOptions{Mesh: mesh}, thing).String()
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for n := 1001; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				mesh.set("level", fmt.Appendf(nil, "%d", n))
			}
		}
	})
	got := coapClient(t, "-s", "1", "-w", at+"/things/urn:example:thing/properties/level")
	close(stop)
	work.Wait()
	if lines := strings.Fields(got); len(lines) < 4 || lines[0] == lines[len(lines)-1] {
		t.Errorf("observed %q", got)
	}
}
