package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/renameio/v2"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Bounds of what is kept of tools.
const (
	maxPins     = 2 * maxListed
	maxPin      = 64 << 10 // bytes of a tool
	maxPinFile  = 64 << 20
	maxShown    = 12 // lines of a difference
	maxShownOne = 200
)

// pins are the tools of a server as they were when they were first seen. A tool that says something else later is held back, so that
// nobody calls it who was told what it did before: it is in no list, and calls of it are refused, until it is approved or is again what
// it was.
type pins struct {
	path    string // empty: they are kept as long as the process runs
	approve bool   // what has changed is taken as it is
	log     *slog.Logger

	mu   sync.Mutex
	all  map[string]json.RawMessage // by name
	held map[string]string          // by name: what differs
}

// openPins reads the file at path; an absent one is none yet.
func openPins(path string, approve bool, log *slog.Logger) (*pins, error) {
	p := &pins{path: path, approve: approve, log: log, all: map[string]json.RawMessage{}, held: map[string]string{}}
	if path == "" {
		return p, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	var raw []byte
	if err == nil {
		defer f.Close()
		raw, err = io.ReadAll(io.LimitReader(f, maxPinFile))
	}
	if err == nil {
		err = json.Unmarshal(raw, &p.all)
	}
	if err != nil || p.all == nil {
		return nil, &interact.Error{Code: interact.ConfigFile, Title: "the approved tools in " + path + " cannot be read", Err: err,
			Hint: "see what it is; without the file, the tools are approved as they are now"}
	}
	for name, pin := range p.all {
		var text bytes.Buffer
		_ = json.Compact(&text, pin) // it was read
		p.all[name] = text.Bytes()
	}
	return p, nil
}

// pinned is what of a tool counts, in one spelling: all that a model is told of it.
func pinned(raw json.RawMessage) (name string, pin json.RawMessage) {
	var t map[string]json.RawMessage
	if json.Unmarshal(raw, &t) != nil || json.Unmarshal(t["name"], &name) != nil {
		return "", nil
	}
	of := map[string]json.RawMessage{}
	for _, key := range []string{"title", "description", "inputSchema", "outputSchema", "annotations"} {
		if v := t[key]; v != nil {
			of[key] = v
		}
	}
	text, err := json.Marshal(of)
	if err == nil {
		if v, bad := jcs.Decode(text, len(text)); bad == nil { // else it stays as it is spelled
			text, err = jcs.Append(nil, v)
		}
	}
	if err != nil || len(text) > maxPin {
		sum := sha256.Sum256(text)
		text, _ = json.Marshal(map[string]string{"sha256": hex.EncodeToString(sum[:])})
	}
	return name, text
}

// take takes note of the tools of a list, and says which of them are held back.
func (p *pins) take(tools []json.RawMessage) (held []bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held = make([]bool, len(tools))
	fresh := false
	for i, raw := range tools {
		name, pin := pinned(raw)
		if pin == nil {
			continue
		}
		was, known := p.all[name]
		switch {
		case known && string(was) == string(pin):
			delete(p.held, name)
			continue
		case known && !p.approve:
			held[i] = true
			p.holdLocked(name, was, pin)
			continue
		case known:
			p.log.Warn("a tool was changed by its server, and is approved as it is", "tool", name, "changes", differences(was, pin))
		case len(p.all) >= maxPins:
			continue
		}
		p.all[name], fresh = pin, true
	}
	if fresh {
		p.saveLocked()
	}
	return held
}

func (p *pins) holdLocked(name string, was, is json.RawMessage) {
	what := strings.Join(differences(was, is), "; ")
	if before, held := p.held[name]; held && before == what {
		return
	}
	p.held[name] = what
	p.log.Warn("a tool was changed by its server, and is held back until it is approved", "tool", name, "changes", what)
}

// saveLocked writes the file. The next change tries again.
func (p *pins) saveLocked() {
	if p.path == "" {
		return
	}
	raw, err := json.MarshalIndent(p.all, "", "\t")
	if err == nil {
		err = replace(p.path, append(raw, '\n'))
	}
	if err != nil {
		p.log.Error("the approved tools cannot be kept", "file", p.path, "err", err)
	}
}

// replace writes a file as a whole.
func replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(filepath.Dir(path)))
}

// warnings say what is held back, and why.
func (p *pins) warnings() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.held)) {
		all = append(all, fmt.Sprintf("the tool %s was changed by its server, and is held back until it is approved (--approve): %s", name, p.held[name]))
	}
	return all
}

// judge refuses calls of what is held back.
func (p *pins) judge(_ context.Context, m *wire.Message) error {
	if m.Method() != wire.CallTool {
		return nil
	}
	name := m.Text("name")
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, held := p.held[name]; held {
		return interact.Errorf(interact.Forbidden, "the operator of its host approves it: lmosd expose … --approve",
			"the tool %s was changed by its server, and is held back", interact.Clip(name, maxShort))
	}
	return nil
}

// A guarded server keeps back what is held back from those who talk to it in its own protocol.
type guarded struct {
	*backend.Backend
	pins *pins
}

// Call implements [wire.Server].
func (g *guarded) Call(ctx context.Context, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error) {
	if err := g.pins.judge(ctx, m); err != nil {
		return nil, err
	}
	r, err := g.Backend.Call(ctx, m, notify)
	if err == nil && m.Method() == listTools {
		r = g.pins.filter(r)
	}
	return r, err
}

const listTools = "tools/list"

// filter takes out of a list of tools what is held back. A list of which nothing is stays as it is.
func (p *pins) filter(r *wire.Message) *wire.Message {
	raw, _ := r.InResult("tools")
	var tools []json.RawMessage
	if raw == nil || json.Unmarshal(raw, &tools) != nil {
		return r
	}
	held := p.take(tools)
	if !slices.Contains(held, true) {
		return r
	}
	rest := []byte{'['}
	for i, one := range tools {
		if held[i] {
			continue
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(rest, one...)
	}
	return r.WithResult(append(rest, ']'), "tools")
}

// Session implements [wire.Server].
func (g *guarded) Session(ctx context.Context) (wire.Conn, error) {
	conn, err := g.Backend.Session(ctx)
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: conn, pins: g.pins, lists: map[wire.ID]bool{}}, nil
}

// A guardedConn is a session of the old era. Calls are judged before they come here ([backend.Serve]).
type guardedConn struct {
	wire.Conn
	pins *pins

	mu    sync.Mutex
	lists map[wire.ID]bool // requests for lists that wait
}

// maxLists bounds the lists that one session waits for. One that asks for more gets no answer to those.
const maxLists = 256

func (c *guardedConn) Write(ctx context.Context, m *wire.Message) error {
	if m.IsRequest() && m.Method() == listTools {
		c.mu.Lock()
		if len(c.lists) >= maxLists {
			c.mu.Unlock()
			return interact.Errorf(interact.Overloaded, "wait for the answers", "%d lists are asked for at once", maxLists)
		}
		c.lists[m.ID()] = true
		c.mu.Unlock()
	}
	return c.Conn.Write(ctx, m)
}

func (c *guardedConn) Read(ctx context.Context) (*wire.Message, error) {
	m, err := c.Conn.Read(ctx)
	if err != nil || !m.IsResponse() {
		return m, err
	}
	c.mu.Lock()
	list := c.lists[m.ID()]
	delete(c.lists, m.ID())
	c.mu.Unlock()
	if list && m.Error() == nil {
		m = c.pins.filter(m)
	}
	return m, nil
}

// differences are the places at which two values differ, as JSON pointers, and what is there.
func differences(was, is json.RawMessage) []string {
	a, b := map[string]string{}, map[string]string{}
	flatten(a, "", was, 0)
	flatten(b, "", is, 0)
	places := map[string]bool{}
	for at := range a {
		places[at] = places[at] || a[at] != b[at]
	}
	for at := range b {
		places[at] = places[at] || a[at] != b[at]
	}
	var out []string
	for _, at := range slices.Sorted(maps.Keys(places)) {
		if !places[at] {
			continue
		}
		if len(out) == maxShown {
			return append(out, "…")
		}
		old, now := a[at], b[at]
		if old == "" {
			old = "nothing"
		}
		if now == "" {
			now = "nothing"
		}
		out = append(out, interact.Readable(fmt.Sprintf("%s: %s → %s", at, interact.Clip(old, maxShownOne), interact.Clip(now, maxShownOne))))
	}
	return out
}

func flatten(to map[string]string, at string, raw json.RawMessage, depth int) {
	var object map[string]json.RawMessage
	if depth > maxLevels || json.Unmarshal(raw, &object) != nil || len(object) == 0 {
		to[at] = string(raw)
		return
	}
	for name, v := range object {
		flatten(to, at+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), v, depth+1)
	}
}
