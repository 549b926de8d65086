package storage

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

// A copyLog is a file of entries with checksums. An entry of a key replaces the earlier ones. It is written by one goroutine.
//
// An entry is a head of 20 bytes, the key, and the value. The head has the marker, the lengths of key and value, the checksum of the value, and that of
// the head and the key: CRC-32C, all in big-endian order. The length deletedValue is that of a deletion, which has no value.
//
// An entry whose value is damaged still has its key. Behind a damaged head, the next valid head is searched: what is between them is a gap.
type copyLog struct {
	name string // path of the file
	file *os.File
	size int64 // of the valid part: what a failed write left behind it is overwritten
	live int64 // bytes of entries that are not replaced
	at   map[ds.Key]place
	gaps []place // whole gaps
}

// A place is the place of a value, or of a gap.
type place struct {
	from, length int64
	sum          uint32
	whole        bool // the value had this checksum when it was read or written
}

const (
	copyMarker   = "LCPY"
	copyHead     = 20
	maxCopyKey   = 1 << 10
	deletedValue = 1<<32 - 1
	slack        = 4 << 20 // of replaced entries, before the file is written again
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openCopyLog opens the log with a path, or creates it, and reads its keys and checksums.
func openCopyLog(name string) (*copyLog, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &copyLog{name: name, file: f, at: map[ds.Key]place{}}
	if err := l.read(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// read reads the keys of all entries, and compares their values with the checksums.
func (l *copyLog) read() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	end, r := info.Size(), bufio.NewReaderSize(io.NewSectionReader(l.file, 0, info.Size()), 64<<10)
	var value []byte
	for l.size < end {
		key, p, err := readHead(r)
		if err == nil && p.from+l.size+p.length <= end {
			value = slices.Grow(value[:0], int(p.length))[:p.length]
			if _, err := io.ReadFull(r, value); err != nil {
				return err
			}
			p.from, p.whole = p.from+l.size, crc32.Checksum(value, castagnoli) == p.sum
			l.set(key, p)
			l.size = p.from + p.length
			continue
		}
		next, err := l.nextHead(l.size+1, end)
		if err != nil {
			return err
		}
		l.gaps = append(l.gaps, place{from: l.size, length: next - l.size})
		if next == end { // such as after a crash during a write
			return nil
		}
		l.size = next
		r.Reset(io.NewSectionReader(l.file, next, end-next))
	}
	return nil
}

// readHead reads a head and its key. The place is relative to the head.
func readHead(r io.Reader) (ds.Key, place, error) {
	var head [copyHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return ds.Key{}, place{}, err
	}
	n := binary.BigEndian.Uint32(head[4:])
	if string(head[:4]) != copyMarker || n > maxCopyKey {
		return ds.Key{}, place{}, errUnreadable
	}
	key := make([]byte, n)
	if _, err := io.ReadFull(r, key); err != nil {
		return ds.Key{}, place{}, err
	}
	if crc32.Update(crc32.Checksum(head[:16], castagnoli), castagnoli, key) != binary.BigEndian.Uint32(head[16:]) {
		return ds.Key{}, place{}, errUnreadable
	}
	p := place{from: copyHead + int64(n), length: int64(binary.BigEndian.Uint32(head[8:])), sum: binary.BigEndian.Uint32(head[12:])}
	if p.length == deletedValue {
		p.length, p.sum = 0, deletedValue
	}
	return ds.RawKey(string(key)), p, nil
}

// nextHead returns the position of the first valid head from a position on, or end.
func (l *copyLog) nextHead(from, end int64) (int64, error) {
	const window = 64 << 10
	buf := make([]byte, window)
	for from < end {
		n, err := l.file.ReadAt(buf[:min(window, end-from)], from)
		if err != nil && !errors.Is(err, io.EOF) || n == 0 {
			return 0, err
		}
		i := bytes.Index(buf[:n], []byte(copyMarker))
		if i < 0 {
			from += max(int64(n-len(copyMarker)+1), 1) // a marker may begin in this window
			continue
		}
		from += int64(i)
		if _, p, err := readHead(io.NewSectionReader(l.file, from, end-from)); err == nil && from+p.from+p.length <= end {
			return from, nil
		}
		from++
	}
	return end, nil
}

// set sets the place of a value; that of a deletion removes the key.
func (l *copyLog) set(key ds.Key, p place) {
	if old, ok := l.at[key]; ok {
		l.live -= entrySize(key, old)
		delete(l.at, key)
	}
	if p.sum != deletedValue || p.length != 0 {
		l.at[key] = p
		l.live += entrySize(key, p)
	}
}

func entrySize(key ds.Key, p place) int64 { return copyHead + int64(len(key.String())) + p.length }

// has reports whether the undamaged value of a key is one with the checksum of value.
func (l *copyLog) has(key ds.Key, value []byte) bool {
	p, ok := l.at[key]
	return ok && p.whole && p.length == int64(len(value)) && p.sum == crc32.Checksum(value, castagnoli)
}

// value returns the value of a key, which has one. It reports whether the value is undamaged.
func (l *copyLog) value(key ds.Key) (value []byte, whole bool, err error) {
	p := l.at[key]
	value = make([]byte, p.length)
	if _, err := l.file.ReadAt(value, p.from); err != nil {
		return nil, false, err
	}
	return value, crc32.Checksum(value, castagnoli) == p.sum, nil
}

// gap returns the first 64 KiB of a gap, and the key that they name, which may be damaged, or the empty key.
func (l *copyLog) gap(g place) (key ds.Key, content []byte, err error) {
	content = make([]byte, min(g.length, 64<<10))
	if _, err := l.file.ReadAt(content, g.from); err != nil {
		return ds.Key{}, nil, err
	}
	if len(content) > copyHead {
		name, n := content[copyHead:], int(binary.BigEndian.Uint32(content[4:])&(maxCopyKey-1))
		if n <= len(name) && bytes.HasPrefix(name, []byte("/")) {
			return ds.RawKey(path.Clean(string(name[:n]))), content, nil
		}
	}
	return ds.Key{}, content, nil
}

// appendEntry appends an entry to buf; a nil value is a deletion.
func appendEntry(buf []byte, key ds.Key, value []byte) []byte {
	start, name, length, sum := len(buf), key.String(), uint32(len(value)), crc32.Checksum(value, castagnoli)
	if value == nil {
		length = deletedValue
	}
	buf = binary.BigEndian.AppendUint32(append(buf, copyMarker...), uint32(len(name)))
	buf = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(buf, length), sum)
	head := crc32.Update(crc32.Checksum(buf[start:], castagnoli), castagnoli, []byte(name))
	return append(append(binary.BigEndian.AppendUint32(buf, head), name...), value...)
}

// write appends entries, and returns when they are durable; nil values are deletions. After an error the file is as before.
func (l *copyLog) write(entries map[ds.Key][]byte) error {
	var buf []byte
	for key, value := range entries {
		buf = appendEntry(buf, key, value)
	}
	if _, err := l.file.WriteAt(buf, l.size); err != nil {
		return errors.Join(err, l.file.Truncate(l.size))
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	for r := bytes.NewReader(buf); r.Len() > 0; {
		from := l.size + int64(len(buf)-r.Len())
		key, p, err := readHead(r)
		if err != nil {
			return err // not reached: it was just encoded
		}
		p.from, p.whole = p.from+from, true
		l.set(key, p)
		_, _ = r.Seek(p.length, io.SeekCurrent)
	}
	l.size += int64(len(buf))
	return nil
}

// isWasteful reports whether most of the file is entries that were replaced.
func (l *copyLog) isWasteful() bool { return l.size > 2*l.live+slack }

// rewrite writes the file again, without entries that were replaced and without gaps.
func (l *copyLog) rewrite() error {
	keys := slices.SortedFunc(maps.Keys(l.at), func(a, b ds.Key) int { return int(l.at[a].from - l.at[b].from) })
	next := &copyLog{name: l.name, at: make(map[ds.Key]place, len(keys))}
	err := atomicfile.WriteBy(l.name, 0o600, func(w io.Writer) error {
		for _, key := range keys {
			p := l.at[key]
			head := copyHead + int64(len(key.String()))
			if _, err := io.Copy(w, io.NewSectionReader(l.file, p.from-head, head+p.length)); err != nil {
				return err
			}
			p.from = next.size + head
			next.set(key, p)
			next.size += head + p.length
		}
		return nil
	})
	if err != nil {
		return err
	}
	if next.file, err = os.OpenFile(l.name, os.O_RDWR, 0o600); err != nil {
		return err
	}
	old := l.file
	*l = *next
	return errors.Join(old.Close(), atomicfile.SyncDir(filepath.Dir(l.name)))
}
