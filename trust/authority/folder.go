package authority

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// A Folder has the stored documents of one organization. Every write is durable before the method returns. An empty Folder stores nothing.
type Folder string

// Files of a Folder.
const (
	logFile    = "log.jsonl"
	otherFile  = "fork.jsonl" // the newest log that contradicts the other: evidence
	recordFile = "revoked.json"
)

// farFuture is the time at which stored logs and lists are verified: a clock that is behind does not make them wrong.
var farFuture = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)

// Write stores a document.
func (f Folder) Write(name string, data []byte) error {
	if f == "" {
		return nil
	}
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(string(f), name), data, 0o600)
}

// Read returns a stored document. The error wraps fs.ErrNotExist if there is none.
func (f Folder) Read(name string) ([]byte, error) {
	if f == "" {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(filepath.Join(string(f), name))
}

// Log returns the stored log, or nil if there is none.
func (f Folder) Log() (*webvh.Log, error) { return f.readLog(logFile) }

// Other returns the newest log that contradicts the stored one, or nil.
func (f Folder) Other() (*webvh.Log, error) { return f.readLog(otherFile) }

func (f Folder) readLog(name string) (*webvh.Log, error) {
	raw, err := f.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return webvh.Verify(raw, webvh.Check{Now: farFuture})
}

// WriteLog stores the log.
func (f Folder) WriteLog(l *webvh.Log) error { return f.Write(logFile, l.Bytes()) }

// WriteOther stores a log that contradicts the stored one.
func (f Folder) WriteOther(l *webvh.Log) error { return f.Write(otherFile, l.Bytes()) }

// WriteList stores a status list.
func (f Folder) WriteList(l *vc.List) error { return f.Write(listName(l.Method), l.Raw) }

// WriteRecord stores a record if it is another than the one that the organization has.
func (f Folder) WriteRecord(a *Authority, r *Record) error {
	if r == a.kept {
		return nil
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return f.Write(recordFile, raw)
}

// Load adds the stored record and the stored status lists to an organization whose log is known. A damaged record is an error, because
// revocations would be lost. A status list that the log does not verify is left out.
func (f Folder) Load(a *Authority, now time.Time) error {
	switch raw, err := f.Read(recordFile); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		r := &Record{}
		if err := json.Unmarshal(raw, r); err != nil {
			return err
		}
		a.kept = r
	}
	for _, method := range a.methods {
		raw, err := f.Read(listName(method))
		if err != nil {
			continue // none was received yet
		}
		l, err := vc.VerifyList(context.Background(), raw, vc.Check{Resolver: a, Now: farFuture}) // it was verified when it was stored
		if l != nil && (err == nil || errors.Is(err, vc.ErrExpired)) && l.Method == method {
			a.SetList(l, a.kept, now)
		}
	}
	a.Touch()
	return nil
}

// listName is the file of the list of an issuing key.
func listName(method string) string {
	_, fragment, _ := strings.Cut(method, "#")
	return "status-" + strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' {
			return c
		}
		return '_'
	}, fragment) + ".json"
}
