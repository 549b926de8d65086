package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

const (
	maxKey        = 16 << 10 // bytes of a key in PEM, or encrypted
	maxPassphrase = 1024     // bytes
)

func newOrgRoot(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "root",
		Short: "export, import or rotate the root key of the organization",
		Long: "The root key changes which nodes are issuers, and nothing else: an organization works without it. Keep it off the\n" +
			"nodes, and import it for a change.",
		Example: `  lmosd org root export root.age --passphrase fd:3 --keep 3< passphrase
  lmosd org root import acme.root --passphrase fd:3 3< passphrase`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd org issuer, lmosd org recover"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newOrgRootExport(a), newOrgRootImport(a), newOrgRootRotate(a))
	return cmd
}

func newOrgRootExport(a *app) *cobra.Command {
	var keep, plain, yes bool
	var source string
	cmd := &cobra.Command{
		Use:   "export <file>",
		Short: "move the root key from the node to a new file, encrypted",
		Long: "Writes the root key to a new file of mode 0600, encrypted with a passphrase (age, scrypt), and then deletes it from\n" +
			"the node, unless --keep is set. The passphrase is read from the terminal, or from --passphrase. Without the file\n" +
			"and the passphrase, only the recovery file can change the organization.",
		Example: `  lmosd org root export new.root --passphrase fd:3 3< passphrase
  lmosd org root export copy.root --passphrase fd:3 3< passphrase --keep
  lmosd org root export plain.pem --plain --keep`,
		Annotations: cli.About(cli.ScopeLocal, cli.Danger, "lmosd org root import"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if plain && cmd.Flags().Changed("passphrase") {
				return cli.Usage("", "--passphrase and --plain exclude each other").Then(cli.StepCommand, "lmosd org root export --help")
			}
			if !keep {
				if err := a.confirm(cmd.Context(), yes, "Delete the root key from the node after the export? The file is then the only copy."); err != nil {
					return err
				}
			}
			passphrase := ""
			if !plain {
				var err error
				if passphrase, err = a.newPassphrase(cmd.Context(), source); err != nil {
					return err
				}
			}
			return a.exportRoot(cmd.Context(), args[0], passphrase, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the root key on the node, too")
	cmd.Flags().BoolVar(&plain, "plain", false, "write the key unencrypted, as PKCS#8 in PEM")
	cmd.Flags().StringVar(&source, "passphrase", promptSource, "`SOURCE` of the passphrase of the file: prompt or fd:N")
	addYes(cmd, &yes)
	return cmd
}

// exportRoot writes the root key to a new file. The node deletes it only after the file is durable.
func (a *app) exportRoot(ctx context.Context, file, passphrase string, keep bool) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(file); err == nil {
		return cli.FileExists(file)
	}
	key, err := client.ExportRoot(ctx, passphrase)
	if err != nil {
		return err
	}
	if err := writeNew(file, key); err != nil {
		return err
	}
	if !keep {
		if err := client.RemoveRoot(ctx); err != nil {
			return err
		}
	}
	text := "moved the root key to " + file
	if keep {
		text = "copied the root key to " + file
	}
	if err := a.changed(change{Change: "root-exported", File: file}, text); err != nil {
		return err
	}
	if passphrase == "" {
		a.Warn(file + " has the root key unencrypted: a program that reads it can change the organization")
	}
	a.inform("keep the file off this host; lmosd org root import FILE brings the key back")
	return nil
}

// writeNew writes a new file of mode 0600, durably. It leaves no partial file.
func writeNew(file string, content []byte) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return cli.FileExists(file)
	case err != nil:
		return unwritable(file, err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(file) // the first error counts
		return unwritable(file, err)
	}
	if dir, err := os.Open(filepath.Dir(file)); err == nil {
		_ = dir.Sync() // not all file systems support it
		dir.Close()
	}
	return nil
}

func unwritable(file string, err error) error {
	return &interact.Error{Code: interact.Usage, Title: file + " cannot be written", Err: cli.Reason(err), Hint: "choose another file"}
}

func newOrgRootImport(a *app) *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "import <file | ->",
		Short: "bring the root key back to the node",
		Long: "Stores an exported root key on the node; - reads it from standard input. The passphrase of an encrypted file is\n" +
			"read from the terminal, or from --passphrase. The file stays as it is.",
		Example: `  lmosd org root import acme.root --passphrase fd:3 3< passphrase
  lmosd org root import - < copy.pem`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd org root export, lmosd org issuer"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := input.Content(a.Console, args[0], maxKey)
			if err != nil {
				return err
			}
			r := api.RootImport{Key: string(key)}
			if isEncrypted(key) {
				if r.Passphrase, err = a.passphrase(cmd.Context(), source, "passphrase of "+input.Called(args[0])); err != nil {
					return err
				}
			}
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error { return c.ImportRoot(ctx, r) },
				done: change{Change: "root-imported", File: args[0]}, text: "the node has the root key",
				next: []string{"lmosd org issuer add NODE", "lmosd org root export FILE"}})
		},
	}
	cmd.Flags().StringVar(&source, "passphrase", promptSource, "`SOURCE` of the passphrase of the file: prompt or fd:N")
	return cmd
}

// isEncrypted reports whether a key is encrypted by age, in binary form or as text.
func isEncrypted(key []byte) bool {
	key = bytes.TrimSpace(key)
	return bytes.HasPrefix(key, []byte("age-encryption.org/")) || bytes.HasPrefix(key, []byte("-----BEGIN AGE ENCRYPTED FILE-----"))
}

func newOrgRootRotate(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "replace the root key by a new one",
		Long: "Replaces the root key by a new one on this node. The old one signs the change, and is worth nothing afterwards: export\n" +
			"the new one again. The recovery file stays valid. Against a thief of the root key, use lmosd org recover.",
		Example: `  lmosd org root rotate
  lmosd org root rotate --yes`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd org root export, lmosd org recover"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.perform(cmd.Context(), act{question: "Replace the root key? Copies of the old one are worth nothing afterwards.", yes: yes,
				do:   func(ctx context.Context, c *api.Client) error { return c.RotateRoot(ctx) },
				done: change{Change: "root-rotated"}, text: "the organization has a new root key", next: []string{"lmosd org root export FILE"}})
		},
	}
	addYes(cmd, &yes)
	return cmd
}

func newOrgRecover(a *app) *cobra.Command {
	var recovery string
	var yes bool
	cmd := &cobra.Command{
		Use:   "recover <file | ->",
		Short: "replace a lost or stolen root key, with the recovery file",
		Long: "Replaces the root key and the next root key, by the key of the recovery file; - reads it from standard input. The\n" +
			"root key is then on this node, and the node writes the next root key to a new file. Members and partners prefer the\n" +
			"log that the recovery file signed to one that a thief of the root key extended. The issuing keys stay: remove\n" +
			"those that a thief added. The old recovery file is worth nothing afterwards.",
		Example: `  lmosd org recover acme.example.recovery --recovery new.recovery
  lmosd org recover - --recovery new.recovery --yes < acme.example.recovery`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd org init, lmosd org issuer rm"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.recoverOrganization(cmd.Context(), args[0], recovery, yes)
		},
	}
	cmd.Flags().StringVar(&recovery, "recovery", "", "new `FILE` of the next root key")
	addYes(cmd, &yes)
	return cmd
}

func (a *app) recoverOrganization(ctx context.Context, from, recovery string, yes bool) error {
	if recovery == "" {
		return cli.Usage("", "--recovery is missing: it names the new file of the next root key").
			Then(cli.StepCommand, "lmosd org recover "+terminal.Shell(from)+" --recovery FILE")
	}
	key, err := input.Content(a.Console, from, maxKey)
	if err != nil {
		return err
	}
	file, err := filepath.Abs(recovery)
	if err != nil {
		return input.Unreadable(recovery, err)
	}
	return a.perform(ctx, act{question: "Replace the root key and the recovery file of the organization?", yes: yes,
		do: func(ctx context.Context, c *api.Client) error {
			return c.RecoverOrganization(ctx, api.RootRecovery{Key: string(key), RecoveryFile: file})
		},
		done: change{Change: "recovered", File: file}, text: "recovered: the root key is on the node, and the next one in " + file,
		next: []string{"lmosd org status   # are all issuers yours?", "lmosd org root export FILE"}})
}

// Sources of a passphrase. One on the command line would be visible to other users.
const (
	promptSource = "prompt"
	fdSource     = "fd:"
)

// newPassphrase returns the passphrase of a new file. A person enters it twice.
func (a *app) newPassphrase(ctx context.Context, source string) (string, error) {
	for {
		text, err := a.passphrase(ctx, source, "new passphrase")
		if err != nil || source != promptSource {
			return text, err
		}
		again, err := a.passphrase(ctx, source, "repeat it")
		if err != nil {
			return "", err
		}
		if again == text {
			return text, nil
		}
		a.Talk.Line("the passphrases differ")
	}
}

// passphrase reads a passphrase from its source. It is not empty.
func (a *app) passphrase(ctx context.Context, source, label string) (text string, err error) {
	switch number, isFD := strings.CutPrefix(source, fdSource); {
	case isFD:
		text, err = passphraseIn(number)
	case source != promptSource:
		return "", cli.Usage("a passphrase on the command line is visible to other users", "expected --passphrase prompt or fd:N")
	case !a.Interactive():
		return "", cli.Usage("", "a passphrase is needed, and there is no terminal").Then(interact.StepOption, "passphrase", "fd:3")
	default:
		text, err = terminal.ReadHidden(ctx, a.Stdin, a.Talk, terminal.OneLine(label)+": ")
	}
	switch {
	case errors.Is(err, context.Canceled):
		return "", err
	case err != nil:
		return "", &interact.Error{Code: interact.Usage, Title: "no passphrase from " + source, Err: cli.Reason(err),
			Hint: "for example --passphrase fd:3 3< FILE"}
	case text == "":
		return "", cli.Usage("choose a longer one", "the passphrase is empty")
	}
	return text, nil
}

// passphraseIn reads the line of an open file descriptor.
func passphraseIn(number string) (string, error) {
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", errors.New("expected the number of a file descriptor")
	}
	f := os.NewFile(uintptr(n), fdSource+number)
	if f == nil {
		return "", errors.New("the file descriptor is not open")
	}
	defer f.Close()
	return terminal.ReadLine(f, maxPassphrase)
}
