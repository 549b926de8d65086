package policy

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// files are the files of the access rules as they were read last.
type files struct {
	mu   sync.Mutex // owns what follows
	seen [2]stamp
	err  error // of the files as they are now
}

// A stamp distinguishes the contents of a file.
type stamp struct {
	size int64
	at   time.Time
	mode fs.FileMode
}

// watchEvery is the interval of the checks for changed files.
const watchEvery = 2 * time.Second

// options returns the options of sets of rules.
func (p *Policy) options() access.Options {
	o := access.Options{Untrusted: p.rules.Untrusted, Connect: p.rules.Connect, Organization: p.rules.Organization}
	if o.Organization != nil {
		o.Self, _ = o.Organization("own")
	}
	return o
}

// paths returns the paths of the rules in YAML and of the policies in Cedar.
func (p *Policy) paths() [2]string {
	return [2]string{p.rules.File, strings.TrimSuffix(p.rules.File, filepath.Ext(p.rules.File)) + ".cedar"}
}

// Load reads the files of the access rules and puts them in force. The error is an [*interact.Error] of code PolicyInvalid with the line; the
// rules in force do not change then. It is called at the start, and when a name of an organization has changed.
func (p *Policy) Load() error {
	p.files.mu.Lock()
	defer p.files.mu.Unlock()
	return p.loadLocked()
}

func (p *Policy) loadLocked() error {
	b := access.NewBuilder(p.options())
	if p.rules.File != "" {
		for i, path := range p.paths() {
			text, seen, err := readRules(path)
			if err != nil {
				return p.failLocked(path, err)
			}
			if p.files.seen[i] = seen; len(text) == 0 {
				continue
			}
			add := b.AddYAML
			if i == 1 {
				add = b.AddCedar
			}
			if err := add(filepath.Base(path), text); err != nil {
				return p.failLocked(path, err)
			}
		}
	}
	for _, add := range p.rules.More {
		if err := add(b); err != nil {
			return p.failLocked(p.rules.File, err)
		}
	}
	p.access.Store(b.Build())
	p.files.err = nil
	p.running.recheck("")
	return nil
}

func (p *Policy) failLocked(path string, err error) error {
	p.files.err = interact.Errorf(interact.PolicyInvalid, "correct it; check it with: lmosd policy check", "access rules: %v", err)
	if bad := (*access.Error)(nil); !errors.As(err, &bad) {
		p.files.err = interact.Errorf(interact.PolicyInvalid, "see the permissions of the file", "read the access rules in %s: %v", path, err)
	}
	return p.files.err
}

// readRules reads a file of at most [access.MaxFile] bytes; a missing one is empty.
func readRules(path string) ([]byte, stamp, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, stamp{}, nil
	}
	if err != nil {
		return nil, stamp{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, access.MaxFile+1)) // the parser rejects longer ones
	return text, stamp{info.Size(), info.ModTime(), info.Mode()}, err
}

// Run reads the files again when they change, until ctx ends. An error of them is logged, and stays in [Policy.FileError].
func (p *Policy) Run(ctx context.Context, log *slog.Logger) error {
	if p.rules.File == "" {
		return nil
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch changed, err := p.reload(); {
		case err != nil:
			log.Error("access rules rejected, the old ones stay in force", "err", err)
		case changed:
			log.Info("access rules read", "file", p.rules.File)
		}
	}
}

// reload loads the files if one has changed since.
func (p *Policy) reload() (changed bool, err error) {
	p.files.mu.Lock()
	defer p.files.mu.Unlock()
	for i, path := range p.paths() {
		var now stamp
		if info, err := os.Stat(path); err == nil {
			now = stamp{info.Size(), info.ModTime(), info.Mode()}
		}
		if now != p.files.seen[i] {
			p.files.seen[i] = now // a file with an error is reported once
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	return true, p.loadLocked()
}

// FileError returns the error of the access rules in the files, or nil if they are in force.
func (p *Policy) FileError() error {
	p.files.mu.Lock()
	defer p.files.mu.Unlock()
	return p.files.err
}
