package keys

import (
	"context"
	"errors"
	"io/fs"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
)

// Open opens the key of the node with the configuration conf, and reads the passphrase of an encrypted key from node.passphrase. It creates
// a missing key file. The error is an [*interact.Error]: KeyPermissions, KeystoreLocked or DiskFull.
func Open(ctx context.Context, c *cli.Console, conf *configs.Config) (*keystore.Key, error) {
	path, _ := conf.KeyFile()
	k, err := Existing(ctx, c, conf)
	if errors.Is(err, ErrNoKey) {
		k, err = keystore.Open(path)
	}
	return k, explain(path, err)
}

// ErrNoKey means that the node has no key yet.
var ErrNoKey = errors.New("the node has no key")

// Existing is [Open] for a key that exists. If there is none, the error is [ErrNoKey].
func Existing(ctx context.Context, c *cli.Console, conf *configs.Config) (*keystore.Key, error) {
	path, credential := conf.KeyFile()
	k, err := unlock(path, credential, newReader(c, conf).ask(ctx, path))
	if isMissing(err) {
		return nil, ErrNoKey
	}
	return k, explain(path, err)
}

// isMissing reports whether err means that there is no key file. A missing source of a passphrase has a code.
func isMissing(err error) bool {
	_, explained := errors.AsType[*interact.Error](err)
	return !explained && errors.Is(err, fs.ErrNotExist)
}

func unlock(path string, credential bool, ask keystore.Ask) (*keystore.Key, error) {
	if credential {
		return keystore.UnlockCredential(path, ask)
	}
	return keystore.Unlock(path, ask)
}

// unusable is the title of an error that has no better explanation.
const unusable = "the key of this node cannot be used"

// explain returns an error of the key file at path with its code and a hint. Nil stays nil.
func explain(path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*interact.Error](err); ok {
		return e
	}
	if lax, ok := errors.AsType[*keystore.PermissionError](err); ok {
		return &interact.Error{Code: interact.KeyPermissions, Err: err, Hint: lax.Hint}
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if storage.Full(err) {
		return &interact.Error{Code: interact.DiskFull, Title: "the disk of " + path + " is full", Err: err, Hint: "free some space"}
	}
	return &interact.Error{Code: interact.KeyPermissions, Title: unusable, Err: err,
		Hint: "restore " + path + "; with a new key the node has another DID"}
}
