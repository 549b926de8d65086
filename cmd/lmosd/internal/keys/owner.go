package keys

import (
	"context"
	"errors"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
)

// Owner opens the key of an owner, which is on no node, and reads the passphrase of an encrypted file from source. With create it makes a missing file,
// encrypted if source is not that of the terminal, and says so. The error is an [*interact.Error].
func Owner(ctx context.Context, c *cli.Console, path, source string, create bool) (*keystore.Key, error) {
	if err := checkSource("--passphrase", source); err != nil {
		return nil, err
	}
	r := newReader(c, &configs.Config{Node: configs.Node{Passphrase: source}})
	k, err := keystore.Unlock(path, r.ask(ctx, path))
	switch {
	case err == nil:
		return k, nil
	case !isMissing(err):
		return nil, explainOwner(path, err)
	case !create:
		return nil, cli.Usage("use the key that signed the grant", "there is no key at %s", path)
	}
	var p keystore.Passphrase
	if source != promptSource {
		if p, err = r.choose(ctx, source, path); err != nil {
			return nil, err
		}
	}
	if k, err = keystore.New(); err == nil {
		err = k.SaveEncrypted(path, p)
	}
	if err != nil {
		return nil, explainOwner(path, err)
	}
	if c.ForPeople() {
		c.Talk.Line(terminal.OneLine("made the key of the owner " + k.DID().Short() + " in " + path + "; keep it off the nodes, and keep a copy"))
	}
	return k, nil
}

func explainOwner(path string, err error) error {
	e, ok := errors.AsType[*interact.Error](explain(path, err))
	if ok && e.Title == unusable {
		return &interact.Error{Code: e.Code, Title: "the key of the owner cannot be used", Err: err, Hint: "restore " + path + "; another key is another owner"}
	}
	return explain(path, err)
}
