package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// The names of the chains, and the prefixes of their files.
const (
	mainChain   = "audit"
	deniedChain = "denied"
)

var prefixes = map[string]string{mainChain: "", deniedChain: "denied-"}

const suffix = ".jsonl"

// fileName returns the name of a file of a chain: 000012.jsonl or denied-000012.jsonl.
func fileName(chain string, number int) string {
	return fmt.Sprintf("%s%06d%s", prefixes[chain], number, suffix)
}

// numberOf returns the number of a file of a chain; 0 for other files.
func numberOf(chain, name string) int {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return 0
	}
	digits, ok = strings.CutPrefix(digits, prefixes[chain])
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || fileName(chain, n) != name {
		return 0
	}
	return n
}

// numbersOf returns the numbers of the files of a chain, ascending. A missing folder has none.
func numbersOf(dir, chain string) (numbers []int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if n := numberOf(chain, e.Name()); n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// A chain appends lines to the newest file of one chain. It is not safe for concurrent use.
type chain struct {
	dir, name string
	keep      int
	maxFile   int64
	signer    did.Signer
	log       *slog.Logger
	forward   *forwarder // nil without a target

	file   *os.File
	number int   // of file
	first  int   // of the oldest file that must exist
	size   int64 // bytes of the complete lines in file
	last   Head  // of the last line
	synced Head  // of the last line on the disk
	dirty  bool  // last is not on the disk
	torn   bool  // a failed write may have left bytes after size

	unsigned      int         // lines since the last checkpoint
	unsignedSince time.Time   // of the first of them
	others        Head        // of the other chain, in the last checkpoint; or given to sign
	signed        *Checkpoint // the last one; nil: none in this file, or before
	buf           []byte
}

// append writes a line, after a checkpoint or a new file where one is due. It sets N, Prev and the precision of the times. After an error the
// line is not in the chain.
func (c *chain) append(l *Line) error {
	if c.unsigned >= signLines {
		if err := c.sign(c.others, l.Time); err != nil {
			c.log.Error("checkpoint of the audit log failed", "err", err)
		}
	}
	if c.size >= c.maxFile {
		if err := c.rotate(l.Time); err != nil {
			return err
		}
	}
	return c.put(l)
}

// put writes a line to the file.
func (c *chain) put(l *Line) error {
	l.N, l.Prev, l.Time, l.Until = c.last.N+1, c.last.Hash, milliseconds(l.Time), milliseconds(l.Until)
	if l.Event == EventCheckpoint {
		if err := l.sign(c.signer); err != nil {
			return err
		}
	}
	line, err := l.appendTo(c.buf[:0])
	if err != nil {
		return err
	}
	c.buf = append(line, '\n')
	if c.torn {
		if err := c.file.Truncate(c.size); err != nil {
			return err
		}
		c.torn = false
	}
	if _, err := c.file.WriteAt(c.buf, c.size); err != nil {
		c.torn = true
		return err
	}
	c.size += int64(len(c.buf))
	c.last, c.dirty = Head{l.N, hashOf(line)}, true
	switch {
	case l.Event == EventCheckpoint:
		c.unsigned = 0
		c.signed = &Checkpoint{Head: c.last, Time: l.Time, By: l.By, Line: bytes.Clone(line)}
	case c.unsigned == 0:
		c.unsignedSince = l.Time
		fallthrough
	default:
		c.unsigned++
	}
	c.forward.send(l, line)
	return nil
}

func milliseconds(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}

// sign writes a checkpoint; denied is the head of the other chain that it contains, if any.
func (c *chain) sign(denied Head, now time.Time) error {
	l := &Line{Time: now, Event: EventCheckpoint, Chain: c.name}
	if denied.N > 0 {
		l.Denied, c.others = &denied, denied
	}
	return c.put(l)
}

// sync puts the lines on the disk.
func (c *chain) sync() error {
	if !c.dirty {
		return nil
	}
	if err := c.file.Sync(); err != nil {
		return err
	}
	c.dirty, c.synced = false, c.last
	return nil
}

// rotate starts the next file after a checkpoint, and deletes the oldest ones.
func (c *chain) rotate(now time.Time) error {
	if c.unsigned > 0 {
		if err := c.sign(c.others, now); err != nil {
			return err
		}
	}
	if err := c.sync(); err != nil {
		return err
	}
	return c.start(c.number+1, now, "")
}

// start creates the file of a number with its first line. broken is the place of a damage in the file before, or empty. On failure the chain
// continues in the file before.
func (c *chain) start(number int, now time.Time, broken string) error {
	path := filepath.Join(c.dir, fileName(c.name, number))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	before := *c
	c.file, c.number, c.size, c.torn, c.first = f, number, 0, false, max(c.first, number-c.keep+1)
	err = c.put(&Line{Time: now, Event: EventFile, Chain: c.name, File: number, First: c.first, Broken: shorten(broken, maxDetail)})
	if err == nil {
		err = c.sync()
	}
	if err != nil {
		*c = before
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	if before.file != nil {
		err = before.file.Close()
	}
	return errors.Join(err, atomicfile.SyncDir(c.dir), c.prune())
}

// prune deletes the files before first.
func (c *chain) prune() error {
	numbers, err := numbersOf(c.dir, c.name)
	for _, n := range numbers {
		if n < c.first {
			err = cmp.Or(err, os.Remove(filepath.Join(c.dir, fileName(c.name, n))))
		}
	}
	return err
}

func (c *chain) close() error {
	if c.file == nil {
		return nil
	}
	err := errors.Join(c.sync(), c.file.Close())
	c.file = nil
	return err
}
