package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// node-wot finds all Things of the mesh in the directory of a node, and uses the directory as a Thing.
func TestNodeWotExploresTheDirectory(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m := testmesh.Start(t)
	want := []string{}
	for i := range 3 {
		name := fmt.Sprintf("lamp-%d", i)
		_, raw, thing := newLamp(t, name)
		m.Offer(t, raw, thing)
		m.Known(t, name)
		want = append(want, name)
	}
	var saw struct {
		Titles, Errors, Type []string
		Affordances          [][]string
		Page                 int
		Retrieved, One       bool
		Matches              []string
	}
	run(t, &saw, "wot-explore.mjs", m.API+"/.well-known/wot", "$[?@.title=='lamp-1'].title")
	slices.Sort(saw.Titles)
	if !slices.Equal(saw.Titles, want) || len(saw.Errors) > 0 {
		t.Errorf("explored %v, %v; want %v", saw.Titles, saw.Errors, want)
	}
	if !slices.Contains(saw.Type, "ThingDirectory") || saw.Page != 1 || !saw.Retrieved || !saw.One ||
		!slices.Equal(saw.Matches, []string{"lamp-1"}) {
		t.Errorf("saw %+v", saw)
	}
	same(t, "affordances", saw.Affordances,
		`[["things"],["createAnonymousThing","createThing","deleteThing","partiallyUpdateThing","retrieveThing",`+
			`"searchJSONPath","searchXPath","updateThing"],["thingCreated","thingDeleted","thingUpdated"]]`)
}

// A client of server-sent events that loses its connection reconnects with Last-Event-ID, and misses no event.
func TestEventSourceResumesTheDirectorysEvents(t *testing.T) {
	t.Parallel()
	testprogram.Path(t, "node")
	if exec.Command("node", "--experimental-eventsource", "-e", "new EventSource('http://127.0.0.1:9').close()").Run() != nil {
		t.Skip("this node has no EventSource")
	}
	m := testmesh.Start(t)
	p := newCutter(t, strings.TrimPrefix(m.API, "http://"))
	cmd := exec.CommandContext(t.Context(), "node", "--experimental-eventsource", "event-source.mjs",
		"http://"+p.Addr().String()+"/events")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		_ = cmd.Wait()         // killed
	})
	lines := bufio.NewScanner(out)
	next := func() (e struct {
		Name, ID string
		Data     struct{ ID string }
	}) {
		t.Helper()
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &e) != nil {
			t.Fatalf("got %q, %v", lines.Text(), lines.Err())
		}
		return e
	}
	publish := func(name string) string {
		t.Helper()
		_, raw, thing := newLamp(t, name)
		m.Offer(t, raw, thing)
		return m.Known(t, name).ID
	}
	if e := next(); e.Name != "open" {
		t.Fatalf("got %+v", e)
	}
	if id, e := publish("before"), next(); e.Name != "thing_created" || e.Data.ID != id || e.ID == "" {
		t.Errorf("got %+v", e)
	}
	p.cut(true)
	ids := []string{publish("between-1"), publish("between-2")}
	p.cut(false)
	if e := next(); e.Name != "open" {
		t.Fatalf("got %+v", e)
	}
	for _, id := range ids {
		if e := next(); e.Name != "thing_created" || e.Data.ID != id {
			t.Errorf("got %+v, want %s", e, id)
		}
	}
}

// A cutter forwards connections to an address, and cuts them.
type cutter struct {
	net.Listener
	mu   sync.Mutex
	off  bool                  // owned by mu, as is open
	open map[net.Conn]net.Conn // to the address, by the client's
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, open: map[net.Conn]net.Conn{}}
	var g sync.WaitGroup
	g.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.DialTimeout("tcp", to, time.Second)
			if err != nil || !c.keep(near, far) {
				near.Close()
				continue
			}
			g.Go(func() { io.Copy(far, near); far.Close() })
			g.Go(func() { io.Copy(near, far); near.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.cut(true)
		g.Wait()
	})
	return c
}

// keep registers a connection, unless they are cut.
func (c *cutter) keep(near, far net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off {
		far.Close()
		return false
	}
	c.open[near] = far
	return true
}

// cut ends all connections and rejects further ones, or accepts them again.
func (c *cutter) cut(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off
	for near, far := range c.open {
		near.Close()
		far.Close()
		delete(c.open, near)
	}
}
