package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/interact"
)

// A Check is what [Verify] compares a log with.
type Check struct {
	// Keys are the DIDs whose checkpoints are accepted: that of the node, which suffices after rotations of its key ([Log.Rotate]). Empty
	// accepts any: then only the chain is checked.
	Keys []did.DID
	// Heads are heads of this log ([Log.Head]) that were noted elsewhere. A head of a line that was rotated away is not checked.
	Heads []Head
	// Members are the heads of the checkpoints of this log that other nodes have stored.
	Members map[did.DID][]Head
}

// claims returns what others state about the lines of the first chain.
func (c *Check) claims() claims {
	all := claims{}
	for _, h := range c.Heads {
		all.add(h, "a noted head")
	}
	for _, id := range slices.Sorted(maps.Keys(c.Members)) {
		for _, h := range c.Members[id] {
			all.add(h, "member "+id.Short())
		}
	}
	return all
}

// A claims has the hashes of lines, by their number, that others state.
type claims map[uint64][]claim

// A claim is the hash of a line, and who states it.
type claim struct{ hash, from string }

func (c claims) add(h Head, from string) {
	if h.N > 0 {
		c[h.N] = append(c[h.N], claim{h.Hash, from})
	}
}

// A Report is the result of [Verify].
type Report struct {
	Chains []ChainReport `json:"chains"`
	// Problems are at most 100, in the order of the files.
	Problems []Problem `json:"problems"`
}

// A ChainReport describes one chain.
type ChainReport struct {
	Chain string `json:"chain"`
	Files int    `json:"files"`
	Lines uint64 `json:"lines"`
	// Head is the newest line.
	Head Head `json:"head"`
	// Checkpoints is the number of valid ones; Signed and SignedAt are the number and the time of the newest. Later lines are not signed.
	Checkpoints int       `json:"checkpoints"`
	Signed      uint64    `json:"signed"`
	SignedAt    time.Time `json:"signed_at,omitzero"`
}

// A Problem is a damage of a log.
type Problem struct {
	File string `json:"file"`
	// Line is the number of the line in the file, from 1; 0 means the whole file.
	Line int    `json:"line,omitempty"`
	Text string `json:"text"`
}

// String returns "000003.jsonl:17: text".
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
}

const maxProblems = 100

// Verify reads all files of a log, also while a node writes it. If a line was changed, lines or files are missing, a checkpoint is not signed
// by the key of that time, or a head differs, the error is an [*interact.Error] of code [interact.AuditBroken] with the first problem, and the
// report has all. Lines after the newest checkpoint are protected by the heads at other members only.
func Verify(dir string, check Check) (*Report, error) {
	v := &verifier{dir: dir, signers: signers{keys: check.Keys, next: map[did.DID]did.DID{}}, report: &Report{Problems: []Problem{}}, denied: claims{}}
	v.signers.before = sync.OnceValues(func() (map[did.DID]did.DID, error) { return rotations(dir) })
	files := 0
	for _, c := range []struct {
		name   string
		claims claims
	}{{mainChain, check.claims()}, {deniedChain, v.denied}} {
		r, err := v.chain(c.name, c.claims)
		if err != nil {
			return v.report, fmt.Errorf("read the audit log in %s: %w", dir, err)
		}
		v.report.Chains = append(v.report.Chains, *r)
		files += r.Files
	}
	if files == 0 {
		return v.report, interact.Errorf(interact.AuditBroken, "a node creates the log at its first start", "%s has no audit log", dir)
	}
	if len(v.report.Problems) > 0 {
		return v.report, &interact.Error{Code: interact.AuditBroken, Title: "the audit log is damaged: " + v.report.Problems[0].String(),
			Hint: "keep a copy of " + dir + " as evidence, and compare the files with a backup"}
	}
	return v.report, nil
}

// A verifier is one execution of Verify.
type verifier struct {
	dir     string
	signers signers
	report  *Report
	denied  claims // in checkpoints of the first chain, about the chain of denials
}

func (v *verifier) problem(file string, line int, format string, args ...any) {
	if len(v.report.Problems) < maxProblems {
		v.report.Problems = append(v.report.Problems, Problem{file, line, fmt.Sprintf(format, args...)})
	}
}

// A position is where the check of a chain is.
type position struct {
	*ChainReport
	chain  string
	file   string
	number int // of file
	first  int // of the oldest file that must exist
	line   int // in file
	before struct {
		file string
		line int
	} // of the last line
	linked  bool // Head is known: the next line must follow it
	since   int  // lines since the last checkpoint
	claims  claims
	differs bool // the first line that differs from a claim is reported
	tooMany bool // the missing checkpoint is reported
	signer  did.DID
	retired []did.DID // the signers before
}

// chain checks one chain.
func (v *verifier) chain(name string, claims claims) (*ChainReport, error) {
	numbers, err := numbersOf(v.dir, name)
	if err != nil {
		return nil, err
	}
	p := &position{ChainReport: &ChainReport{Chain: name, Files: len(numbers)}, chain: name, claims: claims}
	for i, n := range numbers {
		if i > 0 && n != numbers[i-1]+1 {
			v.problem(fileName(name, numbers[i-1]+1), 0, "the file is missing")
			p.linked = false
		}
		p.file, p.number, p.line = fileName(name, n), n, 0
		if err := v.file(p, i == len(numbers)-1); err != nil && (i > 0 || !errors.Is(err, fs.ErrNotExist)) { // the node may rotate the oldest away
			return nil, err
		}
	}
	if len(numbers) > 0 && p.first > 0 && numbers[0] > p.first {
		v.problem(fileName(name, p.first), 0, "the file is missing: %s is the oldest one that must exist", fileName(name, p.first))
	}
	if last := slices.Max(append(slices.Collect(maps.Keys(claims)), 0)); last > p.Head.N {
		v.problem(fileName(name, max(p.number, 1)), p.line, "the chain ends at line %d, and %s names line %d: lines at the end are missing", p.Head.N,
			claims[last][0].from, last)
	}
	return p.ChainReport, nil
}

// file checks one file. A running node may be writing the last line of the newest one: an incomplete line is read once more.
func (v *verifier) file(p *position, newest bool) error {
	f, err := os.Open(filepath.Join(v.dir, p.file))
	if err != nil {
		return err
	}
	defer f.Close() // only read
	offset := int64(0)
	for again := newest; ; again = false {
		rest := 0
		for line, err := range linesOf(io.NewSectionReader(f, offset, 1<<62)) {
			if err != nil {
				return err
			}
			if rest > 0 || line[len(line)-1] != '\n' {
				rest += len(line)
				continue
			}
			offset += int64(len(line))
			v.line(p, line[:len(line)-1])
		}
		if rest == 0 {
			break
		}
		if !again {
			v.problem(p.file, p.line+1, "the line is incomplete: the file was cut, or the node ended while it wrote")
			break
		}
	}
	if p.line == 0 {
		v.problem(p.file, 0, "the file is empty")
	}
	return nil
}

// line checks one line.
func (v *verifier) line(p *position, raw []byte) {
	p.line++
	p.Lines++
	l, err := ParseLine(raw)
	hash := hashOf(raw)
	switch {
	case err != nil:
		v.problem(p.file, p.line, "not a line of the log: %v", err)
		l = Line{N: p.Head.N + 1}
	case p.linked && l.N != p.Head.N+1:
		v.problem(p.file, p.line, "the line has number %d, expected %d: lines before it are missing", l.N, p.Head.N+1)
	case p.linked && l.Prev != p.Head.Hash:
		v.problem(p.before.file, p.before.line, "the line was changed: its hash differs from prev of the next line")
	case !p.linked && p.number == 1 && p.line == 1 && (l.N != 1 || l.Prev != ""):
		v.problem(p.file, p.line, "the first line has number %d, expected 1: lines before it are missing", l.N)
	}
	if err == nil {
		v.event(p, &l, raw)
	}
	for _, c := range p.claims[l.N] {
		if c.hash != hash && !p.differs { // the lines after it differ, too
			p.differs = true
			v.problem(p.file, p.line, "the hash of line %d differs from that of %s: this line or one before it was changed", l.N, c.from)
		}
	}
	p.Head, p.linked = Head{l.N, hash}, true
	p.before.file, p.before.line = p.file, p.line
}

// event checks the first line of a file, and checkpoints.
func (v *verifier) event(p *position, l *Line, raw []byte) {
	if first := p.line == 1; first != (l.Event == EventFile) || first && (l.File != p.number || l.Chain != p.chain) {
		v.problem(p.file, p.line, "the first line of %s is expected in line 1, and only there", p.file)
	}
	if l.Event == EventFile {
		p.first = l.First
	}
	if l.Rotation != nil {
		if s, err := rotation.Parse(l.Rotation); err != nil {
			v.problem(p.file, p.line, "%v", err)
		} else if p.chain == mainChain {
			v.signers.next[s.From] = s.To
		}
	}
	if l.Event != EventCheckpoint {
		if p.since++; p.since > signLines+1 && !p.tooMany { // and the first line of a file
			p.tooMany = true
			v.problem(p.file, p.line, "more than %d lines have no checkpoint", signLines)
		}
		return
	}
	err := checkSignature(raw, l.By)
	switch {
	case v.signers.check(p, l.By) != nil:
		v.problem(p.file, p.line, "%v", v.signers.check(p, l.By))
	case l.Chain != p.chain:
		v.problem(p.file, p.line, "the checkpoint belongs to the chain %q", l.Chain)
	case err != nil:
		v.problem(p.file, p.line, "%v", err)
	default:
		if p.signer != "" && p.signer != l.By {
			p.retired = append(p.retired, p.signer)
		}
		p.since, p.tooMany, p.signer = 0, false, l.By
		p.Checkpoints++
		p.Signed, p.SignedAt = l.N, l.Time
		if l.Denied != nil && p.chain == mainChain {
			v.denied.add(*l.Denied, "a checkpoint")
		}
	}
}

// signers are the keys that may sign checkpoints.
type signers struct {
	keys []did.DID // given; empty: any
	// next has the successors of keys, by the statements so far. before has them by all statements of the log.
	next   map[did.DID]did.DID
	before func() (map[did.DID]did.DID, error)
}

// check returns an error unless the next checkpoint at p may be signed by a key: by the signer of the checkpoint before, or by its successor
// after the statement of their rotation. A key that was replaced signs nothing any more.
func (s *signers) check(p *position, by did.DID) error {
	if len(s.keys) == 0 || by == p.signer {
		return nil
	}
	if !slices.Contains(s.keys, by) {
		all, err := s.before()
		if err != nil {
			return err
		}
		last := by
		for range len(all) {
			if all[last] != "" && !slices.Contains(s.keys, last) {
				last = all[last]
			}
		}
		if !slices.Contains(s.keys, last) {
			return fmt.Errorf("the checkpoint is signed by %s, expected %s", by, s.keys[0])
		}
	}
	switch given := slices.Contains(s.keys, p.signer) && slices.Contains(s.keys, by); {
	case slices.Contains(p.retired, by):
		return fmt.Errorf("the checkpoint is signed by %s, which %s has replaced", by, p.signer)
	case p.signer == "" || given || s.next[p.signer] == by || p.chain != mainChain:
		return nil
	}
	return fmt.Errorf("the checkpoint is signed by %s without a statement of %s before it", by, p.signer)
}

// rotations returns the successors of keys by the valid statements in a log.
func rotations(dir string) (map[did.DID]did.DID, error) {
	all, r := map[did.DID]did.DID{}, NewReader(dir)
	for l, err := range r.New() {
		if err != nil {
			return nil, err
		}
		if l.Rotation == nil {
			continue
		}
		if s, err := rotation.Parse(l.Rotation); err == nil {
			all[s.From] = s.To
		}
	}
	return all, nil
}
