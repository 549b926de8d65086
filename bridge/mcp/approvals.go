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

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Bounds of what is kept of tools.
const (
	maxPins     = 4 * maxListed
	maxPin      = 64 << 10 // bytes of one; of what is larger the hash is kept
	maxAllPins  = 32 << 20 // bytes; then all that is new is kept as its hash
	maxPinFile  = 64 << 20
	maxShown    = 12 // lines of a difference
	maxShownOne = 200
)

// pins are what a server told models when it was first seen: its tools and prompts, and its instructions. A tool or prompt that says
// something else later is held back, so that nobody calls it who was told what it did before: it is in no list, and calls of it are
// refused, until it is approved or is again what it was. Instructions that are something else are not passed on.
type pins struct {
	path    string // empty: they are kept as long as the process runs
	approve bool   // what has changed is taken as it is
	log     *slog.Logger

	mu   sync.Mutex
	all  map[string]json.RawMessage // by key
	size int                        // bytes of all
	held map[string]string          // by key: what differs
}

// Keys of pins: a kind, and the server's own name.
const (
	toolPins     = "tools/"
	promptPins   = "prompts/"
	instructions = "instructions"
)

// counts are the members of a tool or prompt that count: all that a model is told of it.
var counts = map[string][]string{
	toolPins:   {"title", "description", "inputSchema", "outputSchema", "annotations"},
	promptPins: {"title", "description", "arguments"},
}

// calledIn is a key in words.
func calledIn(key string) string {
	kind, name, named := strings.Cut(key, "/")
	if !named {
		return "what the server tells models of itself"
	}
	return "the " + strings.TrimSuffix(kind, "s") + " " + interact.Clip(name, maxShort)
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
		p.size += text.Len()
	}
	return p, nil
}

// pinned is what of a tool or prompt counts, in one spelling. Of what is not plain JSON, a member that is there twice, say, or very
// large, all counts as it is spelled.
func pinned(kind string, raw json.RawMessage) (key string, pin json.RawMessage) {
	var name string
	var t map[string]json.RawMessage
	if json.Unmarshal(raw, &t) != nil || json.Unmarshal(t["name"], &name) != nil || alike(t, "name") != "" {
		return "", nil
	}
	text := []byte(raw)
	if _, bad := jcs.Decode(raw, 2*maxPin); bad == nil {
		of := map[string]json.RawMessage{}
		for member, v := range t {
			if slices.ContainsFunc(counts[kind], func(one string) bool { return strings.EqualFold(one, member) }) {
				of[member] = v
			}
		}
		text, _ = json.Marshal(of) // it was JSON
		if v, bad := jcs.Decode(text, len(text)); bad == nil {
			text, _ = jcs.Append(nil, v) // it was decoded
		}
	}
	if len(text) > maxPin {
		text = hashOf(text)
	}
	return kind + name, text
}

// alike returns a member that is spelled like name but for case: there are clients that take it for that. Empty: there is none.
func alike(object map[string]json.RawMessage, name string) string {
	for member := range object {
		if member != name && strings.EqualFold(member, name) {
			return member
		}
	}
	return ""
}

func hashOf(text []byte) json.RawMessage {
	sum := sha256.Sum256(text)
	out, _ := json.Marshal(map[string]string{"sha256": hex.EncodeToString(sum[:])}) // texts always can
	return out
}

// take takes note of the tools or prompts of a list, and says which of them are held back: those that were changed; of two that have
// one name and are not the same, both; and what is no tool or prompt.
func (p *pins) take(kind string, items []json.RawMessage) (held []bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held = make([]bool, len(items))
	keys, first := make([]string, len(items)), map[string]json.RawMessage{}
	twice := map[string]bool{}
	for i, raw := range items {
		key, pin := pinned(kind, raw)
		if pin == nil {
			continue
		}
		if was, there := first[key]; !there {
			first[key] = pin
		} else if !bytes.Equal(was, pin) {
			twice[key] = true
		}
		keys[i] = key
	}
	fresh := false
	for key, pin := range first {
		fresh = p.seeLocked(key, pin, twice[key]) || fresh
	}
	for i, key := range keys {
		_, held[i] = p.held[key]
		held[i] = held[i] || key == ""
	}
	if fresh {
		p.saveLocked()
	}
	return held
}

// takeInstructions takes note of the instructions of a server, and reports whether they are held back.
func (p *pins) takeInstructions(text string) (held bool) {
	pin, _ := json.Marshal(text) // a text always can
	if len(pin) > maxPin {
		pin = hashOf(pin)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if text == "" && p.all[instructions] != nil {
		return false // to say nothing is no change that harms
	}
	if p.seeLocked(instructions, pin, false) {
		p.saveLocked()
	}
	_, held = p.held[instructions]
	return held
}

// seeLocked compares a pin with what it was, and reports whether it is new.
func (p *pins) seeLocked(key string, pin json.RawMessage, twice bool) (fresh bool) {
	was, known := p.all[key]
	switch {
	case twice:
		p.holdLocked(key, "there are several that say something else")
		return false
	case known && (bytes.Equal(was, pin) || bytes.Equal(was, hashOf(pin))):
		delete(p.held, key)
		return false
	case known && !p.approve:
		p.holdLocked(key, strings.Join(differences(was, pin), "; "))
		return false
	case known:
		p.log.Warn("a server says something else, which is approved as it is", "of", calledIn(key), "changes", differences(was, pin))
	case len(p.all) >= maxPins:
		p.holdLocked(key, "the server has had too many to keep them apart")
		return false
	}
	delete(p.held, key)
	if p.size += len(pin) - len(was); p.size > maxAllPins {
		p.size -= len(pin)
		pin = hashOf(pin)
		p.size += len(pin)
	}
	p.all[key] = pin
	return true
}

// maxHeld bounds what is held back by its name; a server that has more of it has nothing that anybody may call.
const maxHeld = 2 * maxPins

func (p *pins) holdLocked(key, what string) {
	before, held := p.held[key]
	if held && before == what || len(p.held) >= maxHeld {
		return
	}
	p.held[key] = what
	p.log.Warn("a server says something else, which is held back until it is approved", "of", calledIn(key), "changes", what)
}

// saveLocked writes the file, one pin a line. The next change tries again.
func (p *pins) saveLocked() {
	if p.path == "" {
		return
	}
	var text bytes.Buffer
	between := "{\n"
	for _, key := range slices.Sorted(maps.Keys(p.all)) {
		name, _ := json.Marshal(key) // a text always can
		text.WriteString(between)
		text.Write(name)
		text.WriteString(": ")
		text.Write(p.all[key])
		between = ",\n"
	}
	text.WriteString("\n}\n")
	if err := replace(p.path, text.Bytes()); err != nil {
		p.log.Error("what was approved cannot be kept", "file", p.path, "err", err)
	}
}

// replace writes a file as a whole.
func replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// maxWarned bounds what is said of what is held back.
const maxWarned = 50

// warnings say what is held back, and why.
func (p *pins) warnings() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(p.held)) {
		if len(all) == maxWarned {
			return append(all, fmt.Sprintf("%d more are held back", len(p.held)-maxWarned))
		}
		all = append(all, interact.Readable(fmt.Sprintf("%s was changed by the server, and is held back until it is approved (--approve): %s",
			calledIn(key), p.held[key])))
	}
	return all
}

// judge refuses calls of what is held back.
func (p *pins) judge(_ context.Context, m *protocol.Message) error {
	key := ""
	switch m.Method() {
	case protocol.CallTool:
		key = toolPins + m.Text("name")
	case protocol.GetPrompt:
		key = promptPins + m.Text("name")
	default:
		return nil
	}
	if m.Text("name") == "" { // a server might take ["x"] for "x"
		return protocol.Errorf(protocol.InvalidParams, "%s names nothing", m.Method())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, held := p.held[key]; held {
		return interact.Errorf(interact.Forbidden, "the operator of its host approves it",
			"%s was changed by its server, and is held back", interact.Readable(calledIn(key))).Then(interact.StepExpose, "TARGET", "approve")
	}
	return nil
}

// A guarded server keeps back what is held back from those who talk to it in its own protocol.
type guarded struct {
	*backend.Backend
	pins *pins
}

// Call implements [protocol.Server].
func (g *guarded) Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	if err := g.pins.judge(ctx, m); err != nil {
		return nil, err
	}
	r, err := g.Backend.Call(ctx, m, notify)
	if err == nil {
		r = g.pins.filter(m.Method(), r)
	}
	return r, err
}

// Methods whose results tell models something.
const (
	listTools   = "tools/list"
	listPrompts = "prompts/list"
)

// tells reports whether the result of a method is filtered.
func tells(method string) bool {
	return method == listTools || method == listPrompts || method == protocol.Discover || method == protocol.Initialize
}

// filter takes out of the result of a method what is held back. A result of which nothing is stays as it is.
func (p *pins) filter(method string, r *protocol.Message) *protocol.Message {
	switch method {
	case listTools:
		return p.filterList(toolPins, "tools", r)
	case listPrompts:
		return p.filterList(promptPins, "prompts", r)
	case protocol.Discover, protocol.Initialize:
		var text string
		if raw, _ := r.InResult(instructions); raw != nil {
			_ = json.Unmarshal(raw, &text) // what is no text is none
		}
		if r.Error() == nil && p.takeInstructions(text) {
			return r.WithResult(nil, instructions)
		}
	}
	return r
}

func (p *pins) filterList(kind, member string, r *protocol.Message) *protocol.Message {
	var result map[string]json.RawMessage
	var all []json.RawMessage
	if json.Unmarshal(r.Result(), &result) != nil {
		return r
	}
	for other := alike(result, member); other != ""; other = alike(result, member) {
		r = r.WithResult(nil, other)
		delete(result, other)
	}
	switch {
	case result[member] == nil:
		return r
	case json.Unmarshal(result[member], &all) != nil:
		return r.WithResult(json.RawMessage("[]"), member)
	}
	held := p.take(kind, all)
	if !slices.Contains(held, true) {
		return r
	}
	rest := []byte{'['}
	for i, one := range all {
		if held[i] {
			continue
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(rest, one...)
	}
	return r.WithResult(append(rest, ']'), member)
}

// Session implements [protocol.Server].
func (g *guarded) Session(ctx context.Context) (protocol.Conn, error) {
	conn, err := g.Backend.Session(ctx)
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: conn, pins: g.pins, asked: map[protocol.ID]string{}}, nil
}

// A guardedConn is a session of the old era. Calls are judged before they come here ([backend.Serve]).
type guardedConn struct {
	protocol.Conn
	pins *pins

	mu    sync.Mutex
	asked map[protocol.ID]string // methods of requests that wait, whose results are filtered
}

// maxLists bounds the lists that one session waits for. One that asks for more ends.
const maxLists = 256

func (c *guardedConn) Write(ctx context.Context, m *protocol.Message) error {
	if m.IsRequest() {
		if err := c.note(m); err != nil {
			return err
		}
	}
	return c.Conn.Write(ctx, m)
}

// note remembers what m asks. Two requests with one id are one too many: a filtered one would hide behind the other.
func (c *guardedConn) note(m *protocol.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, twice := c.asked[m.ID()]
	switch {
	case twice:
		return interact.Errorf(interact.Invalid, "give each request an id of its own", "a request with the id %s waits already", m.ID())
	case !tells(m.Method()):
		return nil
	case len(c.asked) >= maxLists:
		return interact.Errorf(interact.Overloaded, "wait for the answers", "%d lists are asked for at once", maxLists)
	}
	c.asked[m.ID()] = m.Method()
	return nil
}

func (c *guardedConn) Read(ctx context.Context) (*protocol.Message, error) {
	m, err := c.Conn.Read(ctx)
	if err != nil || !m.IsResponse() {
		return m, err
	}
	c.mu.Lock()
	method := c.asked[m.ID()]
	delete(c.asked, m.ID())
	c.mu.Unlock()
	if m.Error() == nil {
		m = c.pins.filter(method, m)
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
