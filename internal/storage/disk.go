package storage

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lmosd/lmosd/internal/backoff"
)

// A disk is a file system whose writes wait while it is full, instead of failing: an engine that cannot write its log
// ends the process, and one that cannot compact retries without end. Reads continue. It is safe for concurrent use.
type disk struct {
	base  vfs.FS
	log   *limited
	after func(time.Duration) <-chan time.Time // the time between two attempts

	mu      sync.Mutex
	waiting int           // writes that wait; owned by mu
	stuck   chan struct{} // closed while some wait; owned by mu
	hasty   bool          // writes to a full disk fail at once; owned by mu
}

func newDisk(log *slog.Logger) *disk {
	return &disk{log: newLimited(log), after: time.After, stuck: make(chan struct{})}
}

// stuckNow returns a channel that is closed while a write waits for room.
func (d *disk) stuckNow() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stuck
}

func (d *disk) isStuck() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting > 0
}

// fail sets whether writes to a full disk fail at once, as they must while a database is opened.
func (d *disk) fail(hasty bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hasty = hasty
}

// wait counts a waiting write, and reports whether it may wait.
func (d *disk) wait(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hasty {
		return false
	}
	if d.waiting++; d.waiting == 1 {
		close(d.stuck)
		d.log.write(slog.LevelError, "disk full, write waits for room; acknowledged writes are durable", "path", path)
	}
	return true
}

func (d *disk) goOn() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting--; d.waiting == 0 {
		d.stuck = make(chan struct{})
		d.log.write(slog.LevelInfo, "disk has room again, waiting writes completed")
	}
}

// try repeats a write while the disk is full.
func (d *disk) try(path string, do func() error) error {
	err := do()
	if !Full(err) || !d.wait(path) {
		return err
	}
	defer d.goOn()
	for pauses := (backoff.Backoff{First: 50 * time.Millisecond, Max: 5 * time.Second}); Full(err); {
		<-d.after(pauses.Next())
		err = do()
	}
	return err
}

// over returns fs with writes that wait.
func (d *disk) over(fs vfs.FS) vfs.FS { return &patientFS{FS: fs, disk: d} }

type patientFS struct {
	vfs.FS
	disk *disk
}

// Create implements [vfs.FS], as do those below.
func (p *patientFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return p.file(name, func() (vfs.File, error) { return p.FS.Create(name, c) })
}

func (p *patientFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.file(name, func() (vfs.File, error) { return p.FS.OpenReadWrite(name, c, opts...) })
}

func (p *patientFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return p.file(to, func() (vfs.File, error) { return p.FS.ReuseForWrite(from, to, c) })
}

func (p *patientFS) file(name string, open func() (vfs.File, error)) (f vfs.File, err error) {
	err = p.disk.try(name, func() (err error) { f, err = open(); return err })
	if err != nil {
		return nil, err
	}
	return &waitingFile{f, p.disk, name}, nil
}

func (p *patientFS) Link(from, to string) error {
	return p.disk.try(to, func() error { return p.FS.Link(from, to) })
}

func (p *patientFS) Rename(from, to string) error {
	return p.disk.try(to, func() error { return p.FS.Rename(from, to) })
}

func (p *patientFS) MkdirAll(dir string, perm os.FileMode) error {
	return p.disk.try(dir, func() error { return p.FS.MkdirAll(dir, perm) })
}

// Unwrap returns the file system below.
func (p *patientFS) Unwrap() vfs.FS { return p.FS }

// A waitingFile waits in writes. A failed sync is returned at once, because the content of the disk is then unknown.
type waitingFile struct {
	vfs.File
	disk *disk
	name string
}

// Write writes all of b, and waits while the disk is full.
func (f *waitingFile) Write(b []byte) (n int, err error) {
	err = f.disk.try(f.name, func() error {
		m, err := f.File.Write(b[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt is like Write.
func (f *waitingFile) WriteAt(b []byte, off int64) (n int, err error) {
	err = f.disk.try(f.name, func() error {
		m, err := f.File.WriteAt(b[n:], off+int64(n))
		n += m
		return err
	})
	return n, err
}

// Preallocate ignores a full disk: the room is then allocated by the writes.
func (f *waitingFile) Preallocate(offset, length int64) error {
	if err := f.File.Preallocate(offset, length); err != nil && !Full(err) {
		return err
	}
	return nil
}
