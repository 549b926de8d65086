package keys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
)

// agentsDir has the keys of agents in the data directory.
const agentsDir = "agents"

// AgentPath returns the path of the key of an agent in the data directory dir; name is a slug.
func AgentPath(dir, name string) string { return filepath.Join(dir, agentsDir, name+".pem") }

// Agent opens the key of an agent; with create it makes a missing one. The error is an [*interact.Error].
func Agent(path string, create bool) (k *keystore.Key, made bool, err error) {
	_, err = os.Stat(path)
	made = create && errors.Is(err, fs.ErrNotExist)
	if made {
		k, err = keystore.Open(path)
	} else {
		k, err = keystore.Unlock(path, nil)
	}
	switch e, ok := errors.AsType[*interact.Error](explain(path, err)); {
	case err == nil:
		return k, made, nil
	case isMissing(err):
		return nil, false, interact.Errorf(interact.Usage, "name the file of the agent's key, or use --own-key", "there is no key at %s", path)
	case errors.Is(err, keystore.ErrLocked):
		return nil, false, interact.Errorf(interact.KeyPermissions, "write a copy without a passphrase, with mode 0600", "the key at %s is encrypted", path)
	case ok && e.Title == unusable:
		return nil, false, &interact.Error{Code: e.Code, Title: "the key of the agent cannot be used", Err: err, Hint: "restore " + path + "; another key is another agent"}
	}
	return nil, false, explain(path, err)
}
