package configs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/goccy/go-yaml"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/yamltext"
)

// Contexts are the named nodes of a user, and the default one of commands.
type Contexts struct {
	APIVersion string             `yaml:"apiVersion"`
	Current    string             `yaml:"current,omitempty"`
	Contexts   map[string]Context `yaml:"contexts"`

	source []byte // what was read
}

// A Context is one node.
type Context struct {
	// Node is the URL of its API, or the path of its socket.
	Node string `yaml:"node"`
	// DataDir is the folder of its token and lock; empty if it is on another host.
	DataDir string `yaml:"data_dir,omitempty"`
	// TokenFile is the absolute path of a file with the access token for this node, which is on any host.
	TokenFile string `yaml:"token_file,omitempty"`
}

// Token returns the token of the token file of the context with the name, "" without a file. The error is of code
// [interact.KeyPermissions] or [interact.ConfigInvalid].
func (c Context) Token(name string) (string, error) {
	if c.TokenFile == "" {
		return "", nil
	}
	return readSecret(c.TokenFile, "the token file of the context "+name)
}

// ContextsFile returns the file of the contexts: $XDG_CONFIG_HOME/lmosd/contexts.yaml. Without a home folder it is "": a file of the current
// folder may be that of another user, who could choose the node that receives a token.
func ContextsFile(env []string) string {
	if dir := configHome(env); filepath.IsAbs(dir) {
		return filepath.Join(dir, "contexts.yaml")
	}
	return ""
}

// ReadContexts reads the contexts of a file; a missing file has none. The error is an [*Error].
func ReadContexts(path string) (*Contexts, error) {
	c := &Contexts{APIVersion: APIVersion, Contexts: map[string]Context{}}
	source, err := os.ReadFile(path)
	c.source = source
	switch {
	case err == nil && len(source) == 0: // another command is about to write it
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // a home folder may be /dev/null
		return c, nil
	case err == nil:
		err = c.decode(source)
	}
	if err != nil {
		var ps problems
		ps.add(interact.ConfigFile, place{text: path}, "", "correct the file, or remove it", "%v", cause(err))
		return nil, ps.err()
	}
	return c, nil
}

func (c *Contexts) decode(source []byte) error {
	if err := yamltext.Unmarshal(source, c); err != nil {
		return err
	}
	if c.APIVersion != APIVersion {
		return fmt.Errorf("apiVersion is %q, expected %s", c.APIVersion, APIVersion)
	}
	for name, one := range c.Contexts {
		if one.TokenFile != "" && !filepath.IsAbs(one.TokenFile) {
			return fmt.Errorf("token_file of %q is not an absolute path", name)
		}
	}
	if c.Contexts == nil { // the key without a value
		c.Contexts = map[string]Context{}
	}
	return nil
}

// Write replaces the file atomically, and creates its folder. A link stays. The error is [atomicfile.ErrChanged] if the file has another content
// than that which ReadContexts has read.
func (c *Contexts) Write(path string) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Swap(path, c.source, b, 0o600); err != nil {
		return err
	}
	c.source = b
	return nil
}
