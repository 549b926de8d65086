package configs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// lookup returns the last value of a variable in env, "" without one.
func lookup(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// DataDir returns the default data folder: $LMOSD_DATA_DIR, $XDG_DATA_HOME/lmosd, else
// ~/.local/share/lmosd. Without a home folder it is empty: a key must not get into whatever folder is the current one.
func DataDir(env []string) string {
	if dir := lookup(env, "LMOSD_DATA_DIR"); dir != "" {
		return dir
	}
	if dir := filepath.Join(base(env, "XDG_DATA_HOME", ".local", "share"), "lmosd"); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}

// File returns the default configuration file, or "" without one: $LMOSD_CONFIG, which must exist then, $XDG_CONFIG_HOME/lmosd/lmosd.yaml,
// /etc/lmosd/lmosd.yaml.
func File(env []string) string {
	if name := lookup(env, "LMOSD_CONFIG"); name != "" {
		return name
	}
	for _, name := range []string{filepath.Join(configHome(env), "lmosd.yaml"), "/etc/lmosd/lmosd.yaml"} {
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	return ""
}

// UserFile returns the configuration file of the user: lmosd.yaml in the folder of the contexts. Without a home folder it is not absolute.
func UserFile(env []string) string { return filepath.Join(configHome(env), "lmosd.yaml") }

// configHome returns the folder of the user's configuration.
func configHome(env []string) string {
	return filepath.Join(base(env, "XDG_CONFIG_HOME", ".config"), "lmosd")
}

// base returns the folder of an XDG variable, else the one below the home folder. Without a home it is the current folder.
func base(env []string, variable string, below ...string) string {
	// A relative path is to be ignored (XDG Base Directory Specification, "Basics").
	if dir := lookup(env, variable); filepath.IsAbs(dir) {
		return dir
	}
	home := lookup(env, "HOME")
	if home == "" {
		home = lookup(env, "USERPROFILE")
	}
	return filepath.Join(append([]string{home}, below...)...)
}

// identityCredential is the name of the systemd credential with the key of the node.
const identityCredential = "lmosd-identity"

// KeyFile returns the file of the node's key, and whether it is a systemd credential, which is never created or changed.
func (c *Config) KeyFile() (path string, credential bool) {
	if path, ok := strings.CutPrefix(c.Node.Key, "file:"); ok {
		return path, false
	}
	if path, ok := c.Credential(identityCredential); ok {
		// With another error, the node must not start as identity.pem.
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, true
		}
	}
	return filepath.Join(c.Node.DataDir, "identity.pem"), false
}

// Credential returns the path of a systemd credential. ok is false if the environment has no credentials.
func (c *Config) Credential(name string) (path string, ok bool) {
	return filepath.Join(c.credentials, name), c.credentials != ""
}

// AuditDir returns the folder of the audit log; empty without a data directory.
func (c *Config) AuditDir() string {
	if c.Node.DataDir == "" {
		return ""
	}
	return filepath.Join(c.Node.DataDir, "audit")
}

// Socket returns the path of the unix socket, "" if there is none.
func (c *Config) Socket() string { return c.inDataDir(c.HTTP.Socket, "lmosd.sock") }

// CredentialsFile returns the file of the credentials for agents.
func (c *Config) CredentialsFile() string {
	return c.inDataDir(c.Interact.Credentials, "credentials.json")
}

// PolicyFile returns the file of the access rules.
func (c *Config) PolicyFile() string { return c.inDataDir(c.Trust.PolicyFile, "policy.yaml") }

func (c *Config) inDataDir(value, name string) string {
	switch value {
	case "auto":
		return filepath.Join(c.Node.DataDir, name)
	case "none":
		return ""
	}
	return value
}

// engine returns the database to use: pebble or memory.
func (c *Config) engine() string {
	if c.Storage.Engine == "auto" {
		return "pebble"
	}
	return c.Storage.Engine
}
