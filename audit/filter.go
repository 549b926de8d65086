package audit

import (
	"strings"
	"time"
)

// A Filter selects lines. The zero value selects all except those of the log itself.
type Filter struct {
	// Who is a part of the id of the caller or of its organization, Thing of the reference of the Thing.
	Who, Thing string
	Code       string // of the error, "LMOS-1403"
	Verdict    string // allow or deny; empty also selects changes
	// Since is the time of the oldest line; zero means no limit.
	Since time.Time
	// All also selects the first lines of files, and checkpoints.
	All bool
}

// Matches reports whether f selects l.
func (f *Filter) Matches(l *Line) bool {
	switch {
	case !f.All && (l.Event == EventFile && l.Broken == "" || l.Event == EventCheckpoint),
		f.Verdict != "" && l.Verdict != f.Verdict,
		f.Code != "" && l.Code != f.Code,
		l.Time.Before(f.Since):
		return false
	}
	return (strings.Contains(l.Who, f.Who) || strings.Contains(string(l.Org), f.Who)) && strings.Contains(l.Thing, f.Thing)
}

// Select returns the lines that f selects, of those that [Reader.New] did not yield before, the newest last: the newest limit of them; 0
// means all. They are never nil.
func (r *Reader) Select(f Filter, limit int) ([]Line, error) {
	lines := []Line{}
	for l, err := range r.New() {
		if err != nil {
			return nil, err
		}
		if !f.Matches(&l) {
			continue
		}
		if lines = append(lines, l); limit > 0 && len(lines) >= 2*limit {
			lines = append(lines[:0], lines[len(lines)-limit:]...)
		}
	}
	if limit > 0 && len(lines) > limit {
		lines = lines[len(lines)-limit:]
	}
	return lines, nil
}
