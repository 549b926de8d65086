package node

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/gateway/oidc"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node/datadir"
)

// openKey returns the key of o.
func openKey(o *Options) (*keystore.Key, error) {
	switch {
	case o.Key != nil:
		return o.Key, nil
	case o.OpenKey != nil:
		return o.OpenKey()
	case o.Dir == "":
		return keystore.New()
	}
	k, err := keystore.Open(filepath.Join(o.Dir, "identity.pem"))
	if err != nil {
		return nil, &interact.Error{Code: interact.KeyPermissions, Title: "the key of this node cannot be used", Err: err,
			Hint: "set the mode of the file to 0600, or restore it; with a new key the node has another DID"}
	}
	return k, nil
}

// openTokens opens the access tokens, if a listener asks for them.
func (n *Node) openTokens() (err error) {
	o := &n.opts
	if o.HTTP == nil && o.MQTT == "" {
		return nil
	}
	if n.stores.Tokens, err = oidc.Open(o.Dir, o.OIDC, o.Log); err != nil {
		if _, explained := errors.AsType[*interact.Error](err); !explained {
			err = datadir.Error(o.Dir, err)
		}
		return err
	}
	n.life.onClose(n.stores.Tokens.Close)
	o.Policy.More = append(slices.Clip(o.Policy.More), n.stores.Tokens.Rules)
	return nil
}

// Rotate hands what the node has to its next key, which the caller has requested ([datadir.Stores.Rotate]).
func (n *Node) Rotate(ctx context.Context, next did.Signer) (withdrawn int, err error) {
	return n.stores.Rotate(ctx, n.network.trust, n.mesh.publisher, next)
}
