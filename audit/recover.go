package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

// openChain opens the newest file of a chain, or creates the first one. least is a head that the chain must have reached. It handles an
// incomplete last line and damage as [Open] states.
func openChain(l *Log, name string, least Head, now time.Time) (*chain, error) {
	c := &chain{dir: l.opts.Dir, name: name, keep: l.opts.Keep, maxFile: l.opts.maxFile, signer: l.opts.Signer, log: l.opts.Log, forward: l.forward,
		first: 1}
	numbers, err := numbersOf(c.dir, name)
	if err != nil {
		return nil, err
	}
	var t tail
	if len(numbers) > 0 {
		c.number = numbers[len(numbers)-1]
		if t, err = c.resume(numbers[:len(numbers)-1]); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	if c.last.N < least.N && t.broken == "" {
		t.broken = fmt.Sprintf("%s: the chain ends at line %d, and a checkpoint names line %d", fileName(name, max(c.number, 1)), c.last.N, least.N)
	}
	if t.broken != "" {
		c.log.Error("audit log damaged; a new file is started", "dir", c.dir, "place", t.broken, "code", "LMOS-3023")
		c.last.N = max(c.last.N, least.N)
	}
	if t.broken != "" || c.file == nil {
		err = c.start(c.number+1, now, t.broken)
	}
	if err == nil && t.aside != "" {
		c.log.Warn("incomplete line of the audit log moved aside", "dir", c.dir, "to", t.aside, "bytes", t.rest)
		err = c.put(&Line{Time: now, Event: EventRecovered, Detail: fmt.Sprintf("an incomplete line of %d bytes was moved to %s", t.rest, t.aside)})
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// resume opens the newest file; earlier are the numbers of the others. After damage the chain has the hash of the last line nevertheless, so
// that the next file extends the evidence, and the file is left as it is.
func (c *chain) resume(earlier []int) (t tail, err error) {
	path := filepath.Join(c.dir, fileName(c.name, c.number))
	if c.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return t, err
	}
	before := Head{}
	if len(earlier) > 0 {
		c.first = earlier[0]
		if before, err = lastHead(filepath.Join(c.dir, fileName(c.name, earlier[len(earlier)-1]))); err != nil {
			return t, err
		}
	}
	if t, err = c.scan(before); err != nil {
		return t, err
	}
	if t.broken == "" && len(earlier) > 0 && earlier[len(earlier)-1] != c.number-1 {
		t.broken = fileName(c.name, c.number-1) + " is missing"
	}
	if t.broken != "" {
		return t, nil
	}
	if t.rest > 0 {
		if t.aside, err = c.moveAside(t.rest); err != nil {
			return t, err
		}
	}
	if c.size == 0 { // a crash before the first line: the file is started again
		err = errors.Join(c.close(), os.Remove(path))
		c.number--
	}
	return t, err
}

// A tail is what scan finds in the newest file.
type tail struct {
	rest   int64  // bytes after the last complete line
	aside  string // the file to which they were moved, or empty
	broken string // the place of the first damage, or empty
}

// scan reads the newest file, after the head of the file before. It sets the position of the chain. It checks numbers, hashes and the last
// checkpoint.
func (c *chain) scan(before Head) (t tail, err error) {
	var checkpoint []byte
	c.last = before
	lines := 0
	for line, err := range linesOf(c.file) {
		if err != nil {
			return t, err
		}
		if t.rest > 0 && t.broken == "" {
			t.broken = fmt.Sprintf("%s:%d: the line has more than %d bytes", fileName(c.name, c.number), lines+1, maxLine)
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			t.rest += int64(len(line))
			continue
		}
		c.size += int64(len(line))
		line = line[:len(line)-1]
		lines++
		n, prev, ok := positionOf(line)
		switch {
		case t.broken != "":
		case !ok:
			t.broken = fmt.Sprintf("%s:%d: not a line of the log", fileName(c.name, c.number), lines)
		case (before.N > 0 || lines > 1) && (n != c.last.N+1 || prev != c.last.Hash):
			t.broken = fmt.Sprintf("%s:%d: the line does not follow the line before", fileName(c.name, c.number), lines)
		}
		c.last = Head{max(n, c.last.N), hashOf(line)}
		if lines == 1 {
			if l, err := ParseLine(line); err == nil && l.Event == EventFile {
				c.first = l.First
			}
		}
		if bytes.Contains(line, []byte(`"event":"checkpoint"`)) {
			checkpoint, c.unsigned = bytes.Clone(line), 0
		} else if c.unsigned++; c.unsigned == 1 {
			c.unsignedSince = time.Time{} // due at once
		}
	}
	c.synced = c.last
	if checkpoint == nil {
		return t, nil
	}
	l, err := ParseLine(checkpoint)
	if err == nil {
		err = checkSignature(checkpoint, l.By)
	}
	if err != nil && t.broken == "" {
		t.broken = fmt.Sprintf("%s: line %d: %v", fileName(c.name, c.number), l.N, err)
	}
	if err != nil {
		return t, nil
	}
	if l.Denied != nil {
		c.others = *l.Denied
	}
	if l.By == c.signer.DID() {
		c.signed = &Checkpoint{Head: Head{l.N, hashOf(checkpoint)}, Time: l.Time, By: l.By, Line: checkpoint}
	}
	return t, nil
}

// moveAside moves the last bytes of the file to a file of their own, and returns its name.
func (c *chain) moveAside(n int64) (string, error) {
	b := make([]byte, min(n, maxLine))
	if _, err := c.file.ReadAt(b, c.size); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	name := fmt.Sprintf("incomplete-%s%06d-%d", prefixes[c.name], c.number, c.size)
	if err := os.WriteFile(filepath.Join(c.dir, name), b, 0o600); err != nil {
		return "", err
	}
	return name, errors.Join(c.file.Truncate(c.size), c.file.Sync(), atomicfile.SyncDir(c.dir))
}

// lastHead returns the head of the last complete line of a file that is not the newest. A file without one has the zero Head.
func lastHead(path string) (Head, error) {
	f, err := os.Open(path)
	if err != nil {
		return Head{}, err
	}
	defer f.Close() // only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return Head{}, err
	}
	b := make([]byte, min(size, 2*maxLine))
	if _, err := f.ReadAt(b, size-int64(len(b))); err != nil {
		return Head{}, err
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	b = bytes.TrimSuffix(b, []byte("\n"))
	line := b[bytes.LastIndexByte(b, '\n')+1:]
	n, _, ok := positionOf(line)
	if !ok {
		return Head{}, nil
	}
	return Head{n, hashOf(line)}, nil
}

// positionOf returns the first members of a line without a full parse.
func positionOf(line []byte) (n uint64, prev string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"n":`))
	if !ok || !bytes.HasSuffix(line, []byte("}")) {
		return 0, "", false
	}
	i := 0
	for ; i < len(rest) && i < 19 && rest[i] >= '0' && rest[i] <= '9'; i++ {
		n = 10*n + uint64(rest[i]-'0')
	}
	_, after, found := bytes.Cut(rest[i:], []byte(`,"prev":"`))
	end := bytes.IndexByte(after, '"')
	if !found || n == 0 || end < 0 || end > 64 {
		return 0, "", false
	}
	return n, string(after[:end]), true
}

// linesOf yields the lines of r with their ends. A piece without a line end is the last line, or a part of a line of more than 64 KiB. The
// bytes are valid until the next one.
func linesOf(r io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		b := bufio.NewReaderSize(r, maxLine+1)
		for {
			line, err := b.ReadSlice('\n')
			if len(line) > 0 && !yield(line, nil) {
				return
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				if !errors.Is(err, io.EOF) {
					yield(nil, err)
				}
				return
			}
		}
	}
}
