package configs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
}

// A Context is one node.
type Context struct {
	// Node is the URL of its API, or the path of its socket.
	Node string `yaml:"node"`
	// DataDir is the folder of its token and lock; empty if it is on another host.
	DataDir string `yaml:"data_dir,omitempty"`
}

// ContextsFile returns the file of the contexts: $XDG_CONFIG_HOME/lmosd/contexts.yaml.
func ContextsFile(env []string) string { return filepath.Join(configHome(env), "contexts.yaml") }

// ReadContexts reads the contexts of a file; a missing file has none. The error is an [*Error].
func ReadContexts(path string) (*Contexts, error) {
	c := &Contexts{APIVersion: APIVersion, Contexts: map[string]Context{}}
	source, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
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
	return nil
}

// Write replaces the file atomically, and creates its folder.
func (c *Contexts) Write(path string) error {
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}
