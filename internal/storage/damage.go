package storage

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// errUnreadable means that an existing database did not open because of the content of its files.
var errUnreadable = errors.New("the database does not open")

// Damaged reports whether err means damaged files, and not an error of the disk, of permissions, or of a version.
func Damaged(err error) bool {
	return errors.Is(err, errUnreadable) || pebble.IsCorruptionError(err)
}

// TooNew reports whether err means that a newer version wrote the database in a format that this one cannot read.
func TooNew(err error) bool {
	return err != nil && strings.Contains(err.Error(), "unknown format major version")
}

// hurtName is the file in a database that marks damage found while it was in use.
const hurtName = "DAMAGED"

// hurt marks the database as damaged if err means damage: the next Open fails, so that its caller moves the database aside. An engine opens
// damaged tables without an error and fails when it reads them.
func (s *Store) hurt(err error) {
	if s.disk == nil || !Damaged(err) {
		return
	}
	s.disk.log.write(slog.LevelError, "the store is damaged", "path", s.path, "err", err.Error(), "hint", HurtHint)
	if err := os.WriteFile(filepath.Join(s.path, hurtName), nil, 0o600); err != nil {
		s.disk.log.write(slog.LevelWarn, "damage mark not written", "path", s.path, "err", err)
	}
}

// HurtHint is the remedy if Hurt.
const HurtHint = "start lmosd again: the store is moved aside then, and what has copies is put back"

// Hurt reports whether damage was found since the store was opened.
func (s *Store) Hurt() bool {
	if s.path == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(s.path, hurtName))
	return err == nil
}

// unreadable wraps err, the error of opening the database at path, as damage if the files caused it. An error of the system, such as
// missing permission, no room or too many open files, does not mean damage, except a missing file.
func unreadable(path string, err error) error {
	info, statErr := os.Stat(path)
	errno, system := errors.AsType[syscall.Errno](err)
	switch {
	case statErr != nil, !info.IsDir(), system && errno != syscall.ENOENT, strings.Contains(err.Error(), "format major version"),
		strings.Contains(err.Error(), "lock held by current process"):
		return err
	}
	return errors.Join(err, errUnreadable)
}

const (
	asideName = "store.damaged-"
	asideTime = "20060102T150405.000"
	maxAside  = 3 // kept folders of damaged stores
)

// Aside moves the database of dir to a folder beside it, and returns the path. The newest three folders are kept.
func Aside(dir string) (string, error) {
	to := newAside(dir)
	return to, os.Rename(filepath.Join(dir, "store"), to)
}

// noteName is the file in the folder of a damaged store that lists the loss.
const noteName = "lost.txt"

// Note stores a list of the loss in the folder at, or in a new one if that is empty, until the folder is deleted.
func Note(dir, at, text string) error {
	if at == "" {
		at = newAside(dir)
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(at, noteName), []byte(text), 0o600)
}

// newAside returns the path of a new folder, and deletes the oldest of more than maxAside. Folders that cannot be deleted stay.
func newAside(dir string) string {
	var old []string
	folders, _ := filepath.Glob(filepath.Join(dir, asideName+"*"))
	for _, f := range folders {
		if _, err := time.Parse(asideName+asideTime, filepath.Base(f)); err == nil { // otherwise the user named it
			old = append(old, f)
		}
	}
	slices.Sort(old)
	for _, f := range old[:max(len(old)-maxAside+1, 0)] {
		_ = os.RemoveAll(f)
	}
	for at := time.Now().UTC(); ; at = at.Add(time.Millisecond) {
		path := filepath.Join(dir, asideName+at.Format(asideTime))
		if _, err := os.Lstat(path); err != nil { // the name is used by one of the same millisecond
			return path
		}
	}
}

// Salvage returns the value of a text member of a stored JSON object that may be damaged: at most 200 bytes of it, or "(unreadable)".
func Salvage(entry []byte, member string) string {
	if m := regexp.MustCompile(`"` + member + `":"((?:[^"\\]|\\.)*)"`).FindSubmatch(entry); m != nil {
		return fmt.Sprintf("%.200s", m[1])
	}
	return "(unreadable)"
}

// Notes yields the folders of damaged stores in the order of time, each with its loss.
func Notes(dir string) iter.Seq2[string, string] {
	return func(yield func(folder, text string) bool) {
		if dir == "" {
			return
		}
		folders, _ := filepath.Glob(filepath.Join(dir, asideName+"*"))
		slices.Sort(folders)
		for _, f := range folders {
			text, err := os.ReadFile(filepath.Join(f, noteName))
			if err != nil || len(text) == 0 { // The process ended after it had moved the store.
				text = []byte("a damaged store was moved to " + f)
			}
			if !yield(f, string(text)) {
				return
			}
		}
	}
}

// maxNamed is the maximum number of named entries per kind: a ledger may have thousands of tasks.
const maxNamed = 100

// A Part is the loss of one store. Kind is the plural of its entries, or empty; Name names an entry, which may be damaged.
type Part struct {
	Loss
	Kind string
	Name func(entry []byte) string
}

// Describe returns what a damaged store has lost, or "". Aside is the folder that the store was moved to, or empty.
func Describe(aside string, parts ...Part) string {
	var found []string
	for _, p := range parts {
		if len(p.Restored) > 0 {
			found = append(found, strings.TrimSpace(p.Kind+" put back from copies: ")+" "+p.names(p.Restored))
		}
		if len(p.Gone) > 0 {
			found = append(found, strings.TrimSpace("LOST "+p.Kind)+": "+p.names(p.Gone))
		}
	}
	text := "the store was damaged"
	switch {
	case aside != "":
		text += " and is now " + aside
	case len(found) == 0:
		return ""
	}
	found = append(append([]string{text}, found...), "peers and descriptions of others may be missing: they are found again")
	return strings.Join(found, "; ")
}

func (p *Part) names(entries [][]byte) string {
	var all []string
	for _, e := range entries[:min(len(entries), maxNamed)] {
		all = append(all, p.Name(e))
	}
	if more := len(entries) - maxNamed; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}
