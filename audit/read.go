package audit

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
)

// A Reader reads the lines of a log, also while a node writes it. It does not check the chain: see [Verify]. It is not safe for concurrent
// use.
type Reader struct {
	// Unreadable is the number of lines that were skipped because they are not lines of a log.
	Unreadable int

	dir     string
	cursors [2]cursor
}

// A cursor is a position in a chain: the first offset bytes of the file number, and the files before it, were read.
type cursor struct {
	chain  string
	number int
	offset int64
}

// NewReader returns a reader of the log in dir.
func NewReader(dir string) *Reader {
	return &Reader{dir: dir, cursors: [2]cursor{{chain: mainChain}, {chain: deniedChain}}}
}

// New yields the complete lines that were not yielded before, of both chains in the order of their times. A missing folder has none. The loop
// must not end early: the lines after its end may be skipped later.
func (r *Reader) New() iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		var next [2]func() (Line, error, bool)
		var head [2]Line
		var have [2]bool
		advance := func(i int) error {
			var err error
			head[i], err, have[i] = next[i]()
			return err
		}
		for i := range r.cursors {
			pull, stop := iter.Pull2(r.lines(&r.cursors[i]))
			defer stop()
			next[i] = pull
			if err := advance(i); err != nil {
				yield(Line{}, err)
				return
			}
		}
		for have[0] || have[1] {
			i := 0
			if !have[0] || have[1] && head[1].Time.Before(head[0].Time) {
				i = 1
			}
			if !yield(head[i], nil) {
				return
			}
			if err := advance(i); err != nil {
				yield(Line{}, err)
				return
			}
		}
	}
}

// lines yields the lines of a chain after c.
func (r *Reader) lines(c *cursor) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		numbers, err := numbersOf(r.dir, c.chain)
		if err != nil {
			yield(Line{}, err)
			return
		}
		for _, n := range numbers {
			if n < c.number {
				continue
			}
			if n > c.number {
				c.number, c.offset = n, 0
			}
			if !r.file(c, yield) {
				return
			}
		}
	}
}

// file yields the lines of a file. It reports false if the loop ended.
func (r *Reader) file(c *cursor, yield func(Line, error) bool) bool {
	f, err := os.Open(filepath.Join(r.dir, fileName(c.chain, c.number)))
	if errors.Is(err, fs.ErrNotExist) {
		return true // rotated away
	}
	if err != nil {
		return yield(Line{}, err)
	}
	defer f.Close() // only read
	rest := false
	for raw, err := range linesOf(io.NewSectionReader(f, c.offset, 1<<62)) {
		if err != nil {
			return yield(Line{}, err)
		}
		if rest || raw[len(raw)-1] != '\n' {
			rest = true // incomplete, or too long
			continue
		}
		c.offset += int64(len(raw))
		l, err := ParseLine(raw[:len(raw)-1])
		if err != nil {
			r.Unreadable++
			continue
		}
		l.chain, l.hash = c.chain, hashOf(raw[:len(raw)-1])
		if !yield(l, nil) {
			return false
		}
	}
	return true
}
