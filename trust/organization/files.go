package organization

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// The files of the folder, mode 0600.
const (
	logFile        = "log.jsonl"
	credentialFile = "credential.json"
	rootFile       = "root.pem"
	newRootFile    = "root.new.pem" // until the log has it
	nextFile       = "next.pem"     // the next root; only of an organization that the node made by itself
	issuerFile     = "issuer.pem"
	bookFile       = "issued.json"
	listFile       = "status.json" // the own status list
	recoveredFile  = "recovery.pem"
)

// The folder of an organization is replaced as a whole: the new one is made next to it, the old one is moved away, and the new one takes its
// name. The old folder exists only after the new one is complete.
const (
	freshSuffix = ".new"
	oldSuffix   = ".old"
)

func (o *Organization) path(name string) string { return filepath.Join(o.dir, name) }

// write replaces a file of the folder.
func (o *Organization) write(name string, data []byte) error {
	if err := atomicfile.Write(o.path(name), data, 0o600); err != nil {
		return fmt.Errorf("organization: %w", err)
	}
	return nil
}

// makeFresh makes an empty folder.
func makeFresh(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o700)
}

// commit gives the folder of o its name.
func (o *Organization) commit(dir string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := atomicfile.SyncDir(o.dir); err != nil {
		return err
	}
	if err := os.Rename(dir, dir+oldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if err == nil {
		if err := atomicfile.SyncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	if err := os.Rename(o.dir, dir); err != nil {
		return err
	}
	o.dir = dir // from here on, the organization exists
	return errors.Join(atomicfile.SyncDir(filepath.Dir(dir)), os.RemoveAll(dir+oldSuffix))
}

// settle completes a replacement of the folder that a crash interrupted, or undoes one that was not complete.
func settle(dir string) error {
	has := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	if !has(dir) && has(dir+oldSuffix) && has(dir+freshSuffix) {
		if err := errors.Join(os.Rename(dir+freshSuffix, dir), atomicfile.SyncDir(filepath.Dir(dir))); err != nil {
			return err
		}
	}
	if !has(dir) && has(dir+oldSuffix) { // not from this package: keep the only copy
		return errors.Join(os.Rename(dir+oldSuffix, dir), atomicfile.SyncDir(filepath.Dir(dir)))
	}
	return errors.Join(os.RemoveAll(dir+freshSuffix), os.RemoveAll(dir+oldSuffix))
}

// removeFolder deletes a folder. After a crash it is there completely, or not at all.
func removeFolder(dir string) error {
	if err := errors.Join(os.RemoveAll(dir+freshSuffix), os.Rename(dir, dir+freshSuffix), atomicfile.SyncDir(filepath.Dir(dir))); err != nil {
		return err
	}
	return os.RemoveAll(dir + freshSuffix)
}

// load reads the folder. The log was verified before it was stored; its times are not compared with the clock of this machine, which may be
// wrong at the start.
func (o *Organization) load() error {
	raw, err := os.ReadFile(o.path(logFile))
	if err != nil {
		return fmt.Errorf("organization: %w", err)
	}
	l, err := webvh.Verify(raw, webvh.Check{Now: farFuture})
	if err != nil {
		return o.damaged(logFile, err)
	}
	if o.issuing, err = loadKey(o.path(issuerFile)); err != nil {
		return err
	}
	if err := o.loadRoots(l); err != nil {
		return err
	}
	o.setLog(l)
	if err := o.loadBook(); err != nil {
		return err
	}
	return o.loadCredential()
}

// farFuture is the time at which stored documents are verified regardless of their times.
var farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func (o *Organization) damaged(name string, err error) error {
	return &interact.Error{Code: interact.StoreCorrupt, Title: "the organization of this node cannot be read", Hint: "restore the folder from a backup, or delete it and join again",
		Err: fmt.Errorf("%s: %w", o.path(name), err)}
}

// loadKey returns the key in a file, or nil if there is no file.
func loadKey(path string) (*keystore.Key, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return keystore.Open(path) // it exists: Open creates none
}

// loadRoots reads the root key and the next root key that the log names. Of a change that a crash interrupted, it keeps the keys that are in
// the log and deletes the others.
func (o *Organization) loadRoots(l *webvh.Log) (err error) {
	if err := os.Remove(o.path(recoveredFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, committed := l.UpdateKeys()
	if err := o.settleRoot(at(committed, 0)); err != nil {
		return err
	}
	if o.root, err = o.loadNamed(rootFile, at(committed, 0)); err != nil {
		return err
	}
	o.next, err = o.loadNamed(nextFile, at(committed, 1))
	return err
}

// loadNamed returns the key in a file if it has the hash.
func (o *Organization) loadNamed(name, hash string) (*keystore.Key, error) {
	k, err := loadKey(o.path(name))
	if err != nil || k == nil || hashOf(k) != hash {
		return nil, err
	}
	return k, nil
}

// settleRoot makes a new root key the root key if the log has its hash, or deletes it.
func (o *Organization) settleRoot(hash string) error {
	k, err := loadKey(o.path(newRootFile))
	switch {
	case err != nil || k == nil:
		return err
	case hashOf(k) != hash:
		return os.Remove(o.path(newRootFile))
	}
	return errors.Join(os.Rename(o.path(newRootFile), o.path(rootFile)), atomicfile.SyncDir(o.dir))
}

// at returns one of all, or "".
func at(all []string, i int) string {
	if i < len(all) {
		return all[i]
	}
	return ""
}

// loadCredential reads the credential of this node, which may have expired. One that the newest document does not verify is ignored: its
// issuing key was removed.
func (o *Organization) loadCredential() error {
	raw, err := os.ReadFile(o.path(credentialFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("organization: %w", err)
	}
	o.credential = o.verifiedThen(raw)
	o.show()
	return nil
}

// verifiedThen verifies a credential at the start of its validity. It returns nil for others than those of this node. o.mu is not needed:
// o.doc is read through [Organization.Resolve].
func (o *Organization) verifiedThen(raw []byte) *vc.Credential {
	var from struct {
		ValidFrom time.Time `json:"validFrom"`
	}
	if err := json.Unmarshal(raw, &from); err != nil {
		return nil
	}
	c, err := vc.Verify(context.Background(), raw, vc.Check{Resolver: o, Now: from.ValidFrom})
	if err != nil || c.Subject != o.node {
		return nil
	}
	return c
}

// recoveryError returns the error of a recovery file that cannot be written.
func recoveryError(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return &interact.Error{Code: interact.Usage, Title: "the recovery file exists and is never overwritten", Hint: "name another file", Err: err}
	}
	// A service or a container may write in few folders.
	var why syscall.Errno
	if errors.As(err, &why) && (why.Is(fs.ErrPermission) || why == syscall.EROFS) {
		return &interact.Error{Code: interact.Usage, Title: "the node cannot write the recovery file: " + why.Error(),
			Hint: "name a file in a folder that the node can write to, such as its data folder", Err: err}
	}
	return fmt.Errorf("recovery file: %w", err)
}
