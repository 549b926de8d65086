// Package keys implements lmosd keys, and opens the key of the node for other commands: key files, systemd credentials and passphrases.
package keys

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
)

// NewCommand returns lmosd keys.
func NewCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "set the passphrase of the key, export or rotate the key",
		Long: "The key of the node is its identity: DID and PeerID are two forms of it. It is in identity.pem of the data\n" +
			"directory, in the systemd credential lmosd-identity, or in the file of node.key. lmosd id shows its DID.",
		Example: `  lmosd keys passphrase
  lmosd keys export node.key.age`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd id"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPassphraseCommand(c), newExportCommand(c), newRotateCommand(c))
	return cmd
}

// A keyFile is the document of lmosd keys passphrase and lmosd keys export.
type keyFile struct {
	cli.Head
	DID       did.DID `json:"did"`
	File      string  `json:"file"`
	Encrypted bool    `json:"encrypted"`
}

func show(c *cli.Console, k *keystore.Key, path string, encrypted bool, done string) error {
	doc := keyFile{cli.NewHead("KeyFile"), k.DID(), path, encrypted}
	return c.Show(cli.View{Doc: doc, Names: []string{path}, People: func(s *terminal.Screen, _ bool) {
		s.Line(terminal.OneLine(done + " " + path))
	}})
}

func newPassphraseCommand(c *cli.Console) *cobra.Command {
	var source string
	var remove bool
	cmd := &cobra.Command{
		Use:   "passphrase",
		Short: "set, change or remove the passphrase of the node's key",
		Long: "Encrypts the key file of the stopped node with a passphrase (age, scrypt), changes the passphrase, or removes " +
			"it. The file is replaced as a whole: after an interruption it is the old one or the new one. Without the " +
			"passphrase the key is lost. The old passphrase is read from node.passphrase, by default from the terminal; the " +
			"new one from --new.",
		Example: `  lmosd keys passphrase
  lmosd keys passphrase --remove
  lmosd keys passphrase --new fd:3 3< new-passphrase`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd keys export, lmosd run"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if remove && cmd.Flags().Changed("new") {
				return cli.Usage("", "--new and --remove exclude each other").Then(cli.StepCommand, "lmosd keys passphrase --help")
			}
			return setPassphrase(cmd.Context(), c, source, remove)
		},
	}
	cmd.Flags().StringVar(&source, "new", promptSource, "`SOURCE` of the new passphrase: prompt, fd:N or credential:NAME")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the passphrase: the file then has the key unencrypted")
	return cmd
}

// setPassphrase sets or removes the passphrase of the key file of a node that does not run.
func setPassphrase(ctx context.Context, c *cli.Console, source string, remove bool) (err error) {
	if err := checkSource("--new", source); err != nil {
		return err
	}
	conf, path, err := stored(c)
	if err != nil {
		return err
	}
	release, err := lock(conf.Node.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	r, encrypted := newReader(c, conf), false
	k, err := keystore.Unlock(path, func(wrong int) (keystore.Passphrase, error) {
		encrypted = true
		return r.ask(ctx, path)(wrong)
	})
	if err != nil {
		return explain(path, err)
	}
	var p keystore.Passphrase
	done := "removed the passphrase of"
	switch {
	case remove && !encrypted:
		return show(c, k, path, false, "no passphrase to remove:")
	case !remove:
		if p, err = r.choose(ctx, source, path); err != nil {
			return err
		}
		if done = "set the passphrase of"; encrypted {
			done = "changed the passphrase of"
		}
	}
	if err := k.Replace(path, p); err != nil {
		return explain(path, err)
	}
	if err := show(c, k, path, !remove, done); err != nil {
		return err
	}
	if !remove && !encrypted && c.ForPeople() {
		c.Talk.Line("Backups of the file, and the blocks of the disk that it was on, still have the unencrypted key.")
	}
	c.Next("lmosd run")
	return nil
}

// stored returns the configuration and the path of an existing key file that can be replaced.
func stored(c *cli.Console) (*configs.Config, string, error) {
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		return nil, "", err
	}
	path, credential := conf.KeyFile()
	if credential {
		return nil, "", cli.Usage("encrypt it where you created it: age -p --armor", "the key is the systemd credential %s, which lmosd does not change", path)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, "", noKey(path, err)
	}
	return conf, path, nil
}

// noKey returns the error for a missing key file, and explains others.
func noKey(path string, err error) error {
	if !isMissing(err) {
		return explain(path, err)
	}
	return cli.Usage("", "there is no key at %s", path).Then(cli.StepCommand, "lmosd run   # creates it")
}

// lock locks the data directory of a node that must not run.
func lock(dir string) (release func() error, err error) {
	release, err = storage.Lock(dir)
	if e, ok := errors.AsType[*storage.LockedError](err); ok {
		return nil, interact.Errorf(interact.DataDirLocked, "stop the node first, and run the command again", "%s", e)
	}
	return release, err
}

// checkSource checks the value of a flag, which may be a passphrase by mistake: the error does not quote it.
func checkSource(flag, source string) error {
	if !configs.IsPassphraseSource(source) {
		return cli.Usage("a passphrase on the command line is visible to other users", "expected %s prompt, fd:N or credential:NAME", flag)
	}
	return nil
}

func newExportCommand(c *cli.Console) *cobra.Command {
	var source string
	var plain bool
	cmd := &cobra.Command{
		Use:   "export <file>",
		Short: "write a copy of the node's key to a new file, encrypted",
		Long: "Writes the key of the node to a new file of mode 0600, encrypted with a passphrase of its own (age, scrypt). An\n" +
			"existing file is not changed. The node may run. The file is a backup: copied back to identity.pem, it gives the\n" +
			"node its identity again. `age -d FILE` decrypts it.",
		Example: `  lmosd keys export node.key.age
  lmosd keys export /media/usb/node.key.age --passphrase fd:3 3< passphrase
  lmosd keys export node.pem --plain`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd keys passphrase, lmosd id"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if plain && cmd.Flags().Changed("passphrase") {
				return cli.Usage("", "--passphrase and --plain exclude each other").Then(cli.StepCommand, "lmosd keys export --help")
			}
			return export(cmd.Context(), c, args[0], source, plain)
		},
	}
	cmd.Flags().StringVar(&source, "passphrase", promptSource, "`SOURCE` of the passphrase of FILE: prompt, fd:N or credential:NAME")
	cmd.Flags().BoolVar(&plain, "plain", false, "write the key unencrypted, as PKCS#8 in PEM")
	return cmd
}

// export writes the key to a new file.
func export(ctx context.Context, c *cli.Console, file, source string, plain bool) error {
	if err := checkSource("--passphrase", source); err != nil {
		return err
	}
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(file); err == nil {
		return cli.FileExists(file)
	}
	path, credential := conf.KeyFile()
	r := newReader(c, conf)
	k, err := unlock(path, credential, r.ask(ctx, path))
	if err != nil {
		return noKey(path, err)
	}
	var p keystore.Passphrase
	if !plain {
		if p, err = r.choose(ctx, source, file); err != nil {
			return err
		}
	}
	switch err := k.Export(file, p); {
	case errors.Is(err, fs.ErrExist):
		return cli.FileExists(file)
	case errors.Is(err, keystore.ErrPermissions):
		return &interact.Error{Code: interact.KeyPermissions, Title: "the file system of " + file + " gives other users access", Err: err,
			Hint: "export the key encrypted, without --plain"}
	case err != nil:
		return &interact.Error{Code: interact.Usage, Title: file + " cannot be written", Err: cli.Reason(err), Hint: "choose another file"}
	}
	if err := show(c, k, file, !plain, fmt.Sprintf("exported the key of %s to", k.DID())); err != nil {
		return err
	}
	if plain {
		c.Warn(file + " has the key unencrypted: a program that reads it can act as this node; keep it offline, or delete it after use")
	}
	return nil
}
