package rules

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/policy/access"
)

// files are the files of the access rules as they were read last.
type files struct {
	mu sync.Mutex // owns what follows, and is held to replace Store.o
	fileState
}

type fileState struct {
	seen  [2]stamp
	texts [2][]byte // of the rules in force
	err   error     // of the files as they are now
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
func (s *Store) options() access.Options { return s.o.Load().access() }

func (o *Options) access() access.Options {
	a := access.Options{Untrusted: o.Untrusted, Relay: o.Relay, Connect: o.Connect, Stale: o.Stale, Organization: o.Organization, Names: o.Names, Group: o.Group}
	if a.Organization != nil {
		a.Self, _ = a.Organization("own")
	}
	return a
}

// paths returns the paths of the rules in YAML and of the policies in Cedar.
func (o *Options) paths() [2]string {
	return [2]string{o.File, strings.TrimSuffix(o.File, filepath.Ext(o.File)) + ".cedar"}
}

// Load reads the files of the access rules and puts them in force. The error is an [*interact.Error] of code PolicyInvalid with the line; the
// rules in force do not change then. It is called at the start, and when a name of an organization has changed.
func (s *Store) Load() error {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	return s.loadLocked()
}

func (s *Store) loadLocked() error {
	set, texts, err := s.prepareLocked(s.o.Load())
	if s.files.err = err; err == nil {
		s.putLocked(set, texts)
	}
	return err
}

// prepareLocked reads the files of o, and compiles their rules.
func (s *Store) prepareLocked(o *Options) (*access.Set, [2][]byte, error) {
	texts, path, err := s.readLocked(o)
	if err != nil {
		return nil, texts, unreadable(path, err)
	}
	set, err := compile(o, texts)
	if err != nil {
		return nil, texts, invalid(err)
	}
	return set, texts, nil
}

// readLocked reads both files, and notes which contents were read. The path is that of an error.
func (s *Store) readLocked(o *Options) (texts [2][]byte, path string, err error) {
	if o.File == "" {
		return texts, "", nil
	}
	for i, path := range o.paths() {
		if texts[i], s.files.seen[i], err = readRules(path); err != nil {
			return texts, path, err
		}
	}
	return texts, "", nil
}

// compile compiles the rules in two texts, and those of Options.More.
func compile(o *Options, texts [2][]byte) (*access.Set, error) {
	b := access.NewBuilder(o.access())
	for i, path := range o.paths() {
		if len(texts[i]) == 0 {
			continue
		}
		add := b.AddYAML
		if i == 1 {
			add = b.AddCedar
		}
		if err := add(filepath.Base(path), texts[i]); err != nil {
			return nil, err
		}
	}
	for _, add := range o.More {
		if err := add(b); err != nil {
			return nil, err
		}
	}
	return b.Build(), nil
}

// putLocked puts rules in force.
func (s *Store) putLocked(set *access.Set, texts [2][]byte) {
	s.files.texts = texts
	before := s.access.Swap(set)
	if s.o.Load().OnLoad != nil && !set.Same(before) {
		s.o.Load().OnLoad(changes(before, set))
	}
}

// changes returns the difference between two sets of rules, for a person.
func changes(before, after *access.Set) string {
	var all []string
	for _, d := range []struct {
		word         string
		of, compared *access.Set
	}{{"added", after, before}, {"removed", before, after}} {
		known := map[string]bool{}
		for _, e := range d.compared.Entries() {
			known[e.Text] = true
		}
		for _, e := range d.of.Entries() {
			if !known[e.Text] {
				all = append(all, d.word+" "+e.ID+" "+e.Text)
			}
		}
	}
	if len(all) == 0 {
		return "the same texts, with other lines, organizations or settings"
	}
	return strings.Join(all, "; ")
}

// AddSource adds a source to Options.More. Its rules are in force after the next [Store.Load] or [Store.Refresh].
func (s *Store) AddSource(add func(*access.Builder) error) {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	o := *s.o.Load()
	o.More = append(slices.Clip(o.More), add)
	s.o.Store(&o)
}

// Refresh puts the current rules of Options.More in force. It does not read the files. The error is that of [Store.Load].
func (s *Store) Refresh() error {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	set, err := compile(s.o.Load(), s.files.texts)
	if err != nil {
		return invalid(err)
	}
	s.putLocked(set, s.files.texts)
	return nil
}

// invalid returns the error for rules that do not compile.
func invalid(err error) error {
	return interact.Errorf(interact.PolicyInvalid, "correct them", "access rules: %v", err).Then(interact.StepPolicy, "check")
}

func unreadable(path string, err error) error {
	return interact.Errorf(interact.PolicyInvalid, "see the permissions of the file", "read the access rules in %s: %v", path, err)
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

// Run reads the files again when they change, until ctx ends. An error of them is logged, and stays in [Store.FileError].
func (s *Store) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	loop := heartbeat.Start(ctx, "access rules", watchEvery)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		loop.Beat()
		if s.o.Load().File == "" { // until another configuration names one
			continue
		}
		switch changed, err := s.reload(); {
		case err != nil:
			log.Error("access rules rejected, the old ones stay in force", "err", err)
		case changed:
			log.Info("access rules read", "file", s.o.Load().File)
		}
	}
}

// reload loads the files if one has changed since.
func (s *Store) reload() (changed bool, err error) {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	for i, path := range s.o.Load().paths() {
		var now stamp
		if info, err := os.Stat(path); err == nil {
			now = stamp{info.Size(), info.ModTime(), info.Mode()}
		}
		if now != s.files.seen[i] {
			s.files.seen[i] = now // a file with an error is reported once
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	return true, s.loadLocked()
}

// FileError returns the error of the access rules in the files, or nil if they are in force.
func (s *Store) FileError() error {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	return s.files.err
}
