package mcp

import (
	"bytes"
	"cmp"
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

// Bounds of the approved definitions.
const (
	maxApprovals      = 4 * maxListed
	maxApproval       = 64 << 10 // bytes of one; of a larger one only the hash is stored
	maxApprovalsBytes = 32 << 20 // bytes; beyond it only hashes are stored
	maxApprovalsFile  = 64 << 20
	maxShown          = 12 // lines of a difference
	maxShownOne       = 200
)

// approvals are the definitions that a server gave to models when it was first seen: tools, prompts and instructions. A tool or prompt
// that changed is held back, because users approved the old definition: it is not listed and not callable until it is approved or matches
// its approved definition again. Changed instructions are not passed on.
type approvals struct {
	path    string // empty: stored in memory only
	approve bool   // changes are approved automatically
	log     *slog.Logger

	mu   sync.Mutex
	all  map[string]json.RawMessage // by key
	size int                        // bytes of all
	held map[string]string          // by key: the differences
}

// Keys of approvals: a kind, and the name at the server.
const (
	toolKeys     = "tools/"
	promptKeys   = "prompts/"
	instructions = "instructions"
)

// approvedMembers are the members of a tool or prompt that models see.
var approvedMembers = map[string][]string{
	toolKeys:   {"title", "description", "inputSchema", "outputSchema", "annotations"},
	promptKeys: {"title", "description", "arguments"},
}

// keyText returns a key as text.
func keyText(key string) string {
	kind, name, named := strings.Cut(key, "/")
	if !named {
		return "the instructions text"
	}
	return "the " + strings.TrimSuffix(kind, "s") + " " + interact.Clip(name, maxShort)
}

// openApprovals reads the file at path; a missing file is empty.
func openApprovals(path string, approve bool, log *slog.Logger) (*approvals, error) {
	a := &approvals{path: path, approve: approve, log: log, all: map[string]json.RawMessage{}, held: map[string]string{}}
	if path == "" {
		return a, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	var raw []byte
	if err == nil {
		defer f.Close()
		raw, err = io.ReadAll(io.LimitReader(f, maxApprovalsFile))
	}
	if err == nil {
		err = json.Unmarshal(raw, &a.all)
	}
	if err != nil || a.all == nil {
		return nil, &interact.Error{Code: interact.ConfigFile, Title: "malformed approvals file " + path, Err: err,
			Hint: "repair it, or remove it to approve the current tools"}
	}
	for name, definition := range a.all {
		var text bytes.Buffer
		_ = json.Compact(&text, definition) // cannot fail: it was parsed
		a.all[name] = text.Bytes()
		a.size += text.Len()
	}
	return a, nil
}

// approvedForm returns the approved members of a tool or prompt in canonical form. A definition without a canonical form, for example
// with duplicate members, or a very large one, counts as a whole.
func approvedForm(kind string, raw json.RawMessage) (key string, definition json.RawMessage) {
	var name string
	var t map[string]json.RawMessage
	if json.Unmarshal(raw, &t) != nil || json.Unmarshal(t["name"], &name) != nil || caseVariant(t, "name") != "" {
		return "", nil
	}
	text := []byte(raw)
	if _, bad := jcs.Decode(raw, 2*maxApproval); bad == nil {
		of := map[string]json.RawMessage{}
		for member, v := range t {
			if slices.ContainsFunc(approvedMembers[kind], func(one string) bool { return strings.EqualFold(one, member) }) {
				of[member] = v
			}
		}
		text = protocol.Encode(of)
		if v, bad := jcs.Decode(text, len(text)); bad == nil {
			text, _ = jcs.Append(nil, v) // cannot fail: decoded above
		}
	}
	if len(text) > maxApproval {
		text = hashOf(text)
	}
	return kind + name, text
}

// caseVariant returns a member that differs from name only in case; some clients accept it as name. Empty if there is none.
func caseVariant(object map[string]json.RawMessage, name string) string {
	for member := range object {
		if member != name && strings.EqualFold(member, name) {
			return member
		}
	}
	return ""
}

func hashOf(text []byte) json.RawMessage {
	sum := sha256.Sum256(text)
	return protocol.Encode(map[string]string{"sha256": hex.EncodeToString(sum[:])})
}

// check records the tools or prompts of a list and reports for each whether it is held back: because it is changed, malformed, or another
// item has the same name.
func (a *approvals) check(kind string, items []json.RawMessage) (held []bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held = make([]bool, len(items))
	keys, first := make([]string, len(items)), map[string]json.RawMessage{}
	twice := map[string]bool{}
	for i, raw := range items {
		key, definition := approvedForm(kind, raw)
		if definition == nil {
			continue
		}
		if was, there := first[key]; !there {
			first[key] = definition
		} else if !bytes.Equal(was, definition) {
			twice[key] = true
		}
		keys[i] = key
	}
	fresh := false
	for key, definition := range first {
		fresh = a.compareLocked(key, definition, twice[key]) || fresh
	}
	for i, key := range keys {
		_, held[i] = a.held[key]
		held[i] = held[i] || key == ""
	}
	if fresh {
		a.saveLocked()
	}
	return held
}

// checkInstructions records the instructions of a server and reports whether they are held back.
func (a *approvals) checkInstructions(text string) (held bool) {
	definition := protocol.Encode(text)
	if len(definition) > maxApproval {
		definition = hashOf(definition)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if text == "" && a.all[instructions] != nil {
		return false // removing the instructions is harmless
	}
	if a.compareLocked(instructions, definition, false) {
		a.saveLocked()
	}
	_, held = a.held[instructions]
	return held
}

// compareLocked compares a definition with the approved one and reports whether it is new.
func (a *approvals) compareLocked(key string, definition json.RawMessage, twice bool) (fresh bool) {
	was, known := a.all[key]
	switch {
	case twice:
		a.holdLocked(key, "different definitions with the same name")
		return false
	case known && (bytes.Equal(was, definition) || bytes.Equal(was, hashOf(definition))):
		delete(a.held, key)
		return false
	case known && !a.approve:
		a.holdLocked(key, strings.Join(differences(was, definition), "; "))
		return false
	case known:
		a.log.Warn("tool definition changed, approved automatically", "of", keyText(key), "changes", differences(was, definition))
	case len(a.all) >= maxApprovals:
		a.holdLocked(key, "too many definitions of this server")
		return false
	}
	delete(a.held, key)
	if a.size += len(definition) - len(was); a.size > maxApprovalsBytes {
		a.size -= len(definition)
		definition = hashOf(definition)
		a.size += len(definition)
	}
	a.all[key] = definition
	return true
}

// maxHeld bounds the entries of held.
const maxHeld = 2 * maxApprovals

func (a *approvals) holdLocked(key, what string) {
	before, held := a.held[key]
	if held && before == what || len(a.held) >= maxHeld {
		return
	}
	a.held[key] = what
	a.log.Warn("tool definition changed, approval required", "of", keyText(key), "changes", what)
}

// saveLocked writes the file, one definition per line. After a failure the next change tries again.
func (a *approvals) saveLocked() {
	if a.path == "" {
		return
	}
	var text bytes.Buffer
	separator := "{\n"
	for _, key := range slices.Sorted(maps.Keys(a.all)) {
		text.WriteString(separator)
		text.Write(protocol.Encode(key))
		text.WriteString(": ")
		text.Write(a.all[key])
		separator = ",\n"
	}
	text.WriteString("\n}\n")
	if err := replace(a.path, text.Bytes()); err != nil {
		a.log.Error("approvals not saved", "file", a.path, "err", err)
	}
}

// replace writes a file atomically.
func replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// maxWarned bounds the warnings about held definitions.
const maxWarned = 50

// warnings describes the held definitions.
func (a *approvals) warnings() (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(a.held)) {
		if len(all) == maxWarned {
			return append(all, fmt.Sprintf("%d more are held back", len(a.held)-maxWarned))
		}
		all = append(all, interact.Readable(fmt.Sprintf("%s was changed by the server and is held back until it is approved (--approve): %s",
			keyText(key), a.held[key])))
	}
	return all
}

// authorize rejects calls of held tools and prompts.
func (a *approvals) authorize(_ context.Context, m *protocol.Message) error {
	key := ""
	switch m.Method() {
	case protocol.CallTool:
		key = toolKeys + m.Text("name")
	case protocol.GetPrompt:
		key = promptKeys + m.Text("name")
	default:
		return nil
	}
	if m.Text("name") == "" { // some servers accept ["x"] for "x"
		return protocol.Errorf(protocol.InvalidParams, "missing name in %s", m.Method())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, held := a.held[key]; held {
		return interact.Errorf(interact.Forbidden, "the operator of its host can approve it",
			"%s was changed by its server and is held back", interact.Readable(keyText(key))).Then(interact.StepExpose, "TARGET", "approve")
	}
	return nil
}

// A filteredServer removes held definitions from the responses to MCP clients.
type filteredServer struct {
	*backend.Backend
	approvals *approvals
}

// Call implements [protocol.Server].
func (s *filteredServer) Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	if err := s.approvals.authorize(ctx, m); err != nil {
		return nil, err
	}
	r, err := s.Backend.Call(ctx, m, notify)
	if err == nil {
		r = s.approvals.filter(m.Method(), r)
	}
	return r, err
}

// isFiltered reports whether the results of a method are filtered.
func isFiltered(method string) bool {
	return method == protocol.ListTools || method == protocol.ListPrompts || method == protocol.Discover || method == protocol.Initialize
}

// filter removes held definitions from a result. Other results stay unchanged.
func (a *approvals) filter(method string, r *protocol.Message) *protocol.Message {
	switch method {
	case protocol.ListTools:
		return a.filterList(toolKeys, "tools", r)
	case protocol.ListPrompts:
		return a.filterList(promptKeys, "prompts", r)
	case protocol.Discover, protocol.Initialize:
		var text string
		if raw, _ := r.InResult(instructions); raw != nil {
			_ = json.Unmarshal(raw, &text) // other types count as missing
		}
		if r.Error() == nil && a.checkInstructions(text) {
			return r.WithResult(nil, instructions)
		}
	}
	return r
}

func (a *approvals) filterList(kind, member string, r *protocol.Message) *protocol.Message {
	var result map[string]json.RawMessage
	var all []json.RawMessage
	if json.Unmarshal(r.Result(), &result) != nil {
		return r
	}
	for other := caseVariant(result, member); other != ""; other = caseVariant(result, member) {
		r = r.WithResult(nil, other)
		delete(result, other)
	}
	switch {
	case result[member] == nil:
		return r
	case json.Unmarshal(result[member], &all) != nil:
		return r.WithResult(json.RawMessage("[]"), member)
	}
	held := a.check(kind, all)
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
func (s *filteredServer) Session(ctx context.Context) (protocol.Conn, error) {
	conn, err := s.Backend.Session(ctx)
	if err != nil {
		return nil, err
	}
	return &filteredConn{Conn: conn, approvals: s.approvals, pending: map[protocol.ID]string{}}, nil
}

// A filteredConn is a session with filtered responses. [backend.Serve] authorizes the calls before.
type filteredConn struct {
	protocol.Conn
	approvals *approvals

	mu      sync.Mutex
	pending map[protocol.ID]string // methods of pending requests whose results are filtered
}

// maxLists bounds the pending lists of one session.
const maxLists = 256

func (c *filteredConn) Write(ctx context.Context, m *protocol.Message) error {
	if m.IsRequest() {
		if err := c.note(m); err != nil {
			return err
		}
	}
	return c.Conn.Write(ctx, m)
}

// note records a request. Duplicate ids are rejected: a filtered response could be mistaken for another.
func (c *filteredConn) note(m *protocol.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, twice := c.pending[m.ID()]
	switch {
	case twice:
		return interact.Errorf(interact.Invalid, "give each request an id of its own", "request id %s is already in use", m.ID())
	case !isFiltered(m.Method()):
		return nil
	case len(c.pending) >= maxLists:
		return interact.Errorf(interact.Overloaded, "wait for the answers", "%d lists are pending", maxLists)
	}
	c.pending[m.ID()] = m.Method()
	return nil
}

func (c *filteredConn) Read(ctx context.Context) (*protocol.Message, error) {
	m, err := c.Conn.Read(ctx)
	if err != nil || !m.IsResponse() {
		return m, err
	}
	c.mu.Lock()
	method := c.pending[m.ID()]
	delete(c.pending, m.ID())
	c.mu.Unlock()
	if m.Error() == nil {
		m = c.approvals.filter(method, m)
	}
	return m, nil
}

// differences returns the JSON pointers at which two values differ, with both values.
func differences(was, is json.RawMessage) []string {
	a, b := map[string]string{}, map[string]string{}
	flatten(a, "", was, 0)
	flatten(b, "", is, 0)
	changed := map[string]bool{}
	for at := range a {
		changed[at] = changed[at] || a[at] != b[at]
	}
	for at := range b {
		changed[at] = changed[at] || a[at] != b[at]
	}
	var out []string
	for _, at := range slices.Sorted(maps.Keys(changed)) {
		if !changed[at] {
			continue
		}
		if len(out) == maxShown {
			return append(out, "…")
		}
		old, now := a[at], b[at]
		old = cmp.Or(old, "nothing")
		now = cmp.Or(now, "nothing")
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
