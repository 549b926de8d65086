package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// A Checkpoint is a signed line of a first chain, by which a node proves to others what its log contained.
type Checkpoint struct {
	Head
	Time time.Time
	// By is the node that signed it.
	By did.DID
	// Line is the line without its end.
	Line []byte
}

// maxCheckpoint limits the line of a checkpoint, in bytes.
const maxCheckpoint = 2 << 10

// ParseCheckpoint parses a checkpoint and verifies its signature. The caller compares By.
func ParseCheckpoint(raw []byte) (*Checkpoint, error) {
	if len(raw) > maxCheckpoint {
		return nil, fmt.Errorf("the checkpoint has %d bytes, %d at most", len(raw), maxCheckpoint)
	}
	l, err := ParseLine(raw)
	if err != nil {
		return nil, err
	}
	if l.Event != EventCheckpoint || l.Chain != mainChain {
		return nil, errors.New("the line is not a checkpoint of the first chain")
	}
	if again, err := l.appendTo(nil); err != nil || !bytes.Equal(again, raw) { // one line has one hash
		return nil, errors.New("the checkpoint is not written as a log writes it")
	}
	if err := checkSignature(raw, l.By); err != nil {
		return nil, err
	}
	return &Checkpoint{Head: Head{l.N, hashOf(raw)}, Time: l.Time, By: l.By, Line: bytes.Clone(raw)}, nil
}

// Limits of the checkpoints of other nodes.
const (
	maxMembers = 1024
	maxKept    = 16 // of one node
)

// A witness stores the checkpoints of the logs of other nodes, in one file for each. They are evidence: a node that changes its log, and signs it
// again, cannot change them.
type witness struct {
	dir string

	mu      sync.Mutex
	members map[did.DID]*member // owned by mu
	dirty   map[did.DID]bool    // to be written; owned by mu
}

// A member is another node, and its file.
type member struct {
	// Kept are checkpoints by number, ascending.
	Kept []kept `json:"kept"`
	// Equivocation are two checkpoints that cannot be of one log; empty without.
	Equivocation []string `json:"equivocation,omitempty"`
}

// A kept is a checkpoint with the time at which it was received.
type kept struct {
	Received time.Time `json:"received"`
	Text     string    `json:"line"`

	*Checkpoint `json:"-"`
}

// openWitness reads the files in dir, if there are any.
func openWitness(dir string) (*witness, error) {
	w := &witness{dir: dir, members: map[did.DID]*member{}, dirty: map[did.DID]bool{}}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || len(w.members) >= maxMembers {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		id := did.DID("did:key:" + name)
		if m, err := parseMember(raw, id); err == nil { // a damaged file costs the checkpoints of one node
			w.members[id] = m
		}
	}
	return w, nil
}

// parseMember parses the file of a node.
func parseMember(raw []byte, id did.DID) (*member, error) {
	m := &member{}
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, err
	}
	if len(m.Kept) > maxKept || len(m.Equivocation) != 0 && len(m.Equivocation) != 2 {
		return nil, errors.New("the file has too many checkpoints")
	}
	for i := range m.Kept {
		k := &m.Kept[i]
		var err error
		if k.Checkpoint, err = ParseCheckpoint([]byte(k.Text)); err != nil {
			return nil, err
		}
		if k.By != id || i > 0 && k.N <= m.Kept[i-1].N {
			return nil, errors.New("the checkpoints are of another node, or not in order")
		}
	}
	return m, nil
}

func (w *witness) file(id did.DID) string {
	return filepath.Join(w.dir, strings.TrimPrefix(string(id), "did:key:")+".json")
}

// lacks reports whether a checkpoint of a node is unknown, and newer than the known ones or contradicts them.
func (w *witness) lacks(id did.DID, h Head) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.members[id]
	return m == nil || !slices.ContainsFunc(m.Kept, func(k kept) bool { return k.Head == h }) && len(m.Equivocation) == 0 || h.N > m.newest().N
}

// newest returns the checkpoint with the highest number.
func (m *member) newest() Head {
	if len(m.Kept) == 0 {
		return Head{}
	}
	return m.Kept[len(m.Kept)-1].Head
}

// take stores a checkpoint. It returns true for the first evidence that a node has two histories.
func (w *witness) take(c *Checkpoint, now time.Time) (forked bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.members[c.By]
	if m == nil {
		if len(w.members) >= maxMembers {
			if err := w.evictLocked(); err != nil {
				return false, err
			}
		}
		m = &member{}
		w.members[c.By] = m
	}
	for _, k := range m.Kept {
		if k.Head == c.Head {
			return false, nil
		}
		// A log that only grows has one line of each number, and no lower number at a later time.
		if k.N == c.N || k.N > c.N && c.Time.After(k.Time) {
			if forked = len(m.Equivocation) == 0; forked {
				m.Equivocation = []string{k.Text, string(c.Line)}
				w.dirty[c.By] = true
			}
			return forked, nil
		}
	}
	if c.N > m.newest().N {
		m.Kept = thin(append(m.Kept, kept{now.UTC(), string(c.Line), c}), now)
		w.dirty[c.By] = true
	}
	return false, nil
}

// thin removes one of too many checkpoints. The pauses between those that remain grow with their age: a node that changes old lines contradicts an
// old checkpoint, however many new ones it has sent since.
func thin(all []kept, now time.Time) []kept {
	if len(all) <= maxKept {
		return all
	}
	least, at := 0.0, 0
	for i := 1; i < len(all)-1; i++ {
		before := all[i-1].Received
		density := float64(all[i+1].Received.Sub(before)) / float64(max(now.Sub(before), 1))
		if at == 0 || density < least {
			least, at = density, i
		}
	}
	return slices.Delete(all, at, at+1)
}

// evictLocked removes the node whose last checkpoint was received first, rather one without evidence of a fork.
func (w *witness) evictLocked() error {
	var oldest did.DID
	rank := func(id did.DID) int64 {
		m := w.members[id]
		var at int64
		if len(m.Kept) > 0 {
			at = m.Kept[len(m.Kept)-1].Received.Unix()
		}
		if len(m.Equivocation) > 0 {
			at += 1 << 40
		}
		return at
	}
	for id := range w.members {
		if oldest == "" || cmp.Or(cmp.Compare(rank(id), rank(oldest)), cmp.Compare(id, oldest)) < 0 {
			oldest = id
		}
	}
	delete(w.members, oldest)
	delete(w.dirty, oldest)
	if err := os.Remove(w.file(oldest)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// write stores what has changed.
func (w *witness) write() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.dirty) == 0 {
		return nil
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	for id := range w.dirty {
		b, err := json.Marshal(w.members[id])
		if err == nil {
			err = atomicfile.Write(w.file(id), append(b, '\n'), 0o600)
		}
		if err != nil {
			return err
		}
		delete(w.dirty, id)
	}
	return nil
}

func (w *witness) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dirty) > 0
}

// Checkpoint returns the newest checkpoint of the first chain that is on the disk: its number, its hash and its line; nil without one.
func (l *Log) Checkpoint() (n uint64, hash string, line []byte) {
	if l == nil {
		return 0, "", nil
	}
	c := l.signed.Load()
	if c == nil {
		return 0, "", nil
	}
	return c.N, c.Hash, c.Line
}

// Lacks reports whether the checkpoint of another node with this number and hash is news.
func (l *Log) Lacks(node did.DID, n uint64, hash string) bool {
	return l != nil && l.members.lacks(node, Head{n, hash})
}

// Take verifies and stores a checkpoint of another node. Of each node the newest and some older ones are kept. A checkpoint that contradicts one of
// them is kept as evidence and logged. Run writes the files within a second.
func (l *Log) Take(node did.DID, line []byte) error {
	if l == nil {
		return nil
	}
	c, err := ParseCheckpoint(line)
	if err != nil {
		return err
	}
	if c.By != node {
		return fmt.Errorf("the checkpoint is signed by %s", c.By.Short())
	}
	forked, err := l.members.take(c, l.opts.Now())
	if forked {
		l.opts.Log.Warn("audit log of a member has two histories: it was changed or replaced", "node", string(node), "line", c.N, "evidence", l.members.file(node))
	}
	signal(l.wake)
	return err
}

// Kept returns the lines of the checkpoints of another node that are kept, with the evidence of a fork.
func (l *Log) Kept(node did.DID) (all [][]byte) {
	if l == nil {
		return nil
	}
	l.members.mu.Lock()
	defer l.members.mu.Unlock()
	if m := l.members.members[node]; m != nil {
		for _, k := range m.Kept {
			all = append(all, k.Checkpoint.Line)
		}
		for _, line := range m.Equivocation {
			all = append(all, []byte(line))
		}
	}
	return all
}

// Equivocations returns the nodes whose logs have two histories, sorted, and the folder with the evidence.
func (l *Log) Equivocations() (nodes []did.DID, dir string) {
	if l == nil {
		return nil, ""
	}
	l.members.mu.Lock()
	defer l.members.mu.Unlock()
	for id, m := range l.members.members {
		if len(m.Equivocation) > 0 {
			nodes = append(nodes, id)
		}
	}
	slices.Sort(nodes)
	return nodes, l.members.dir
}
