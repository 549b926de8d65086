package keys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
)

// Sources of a passphrase, as in node.passphrase.
const (
	promptSource     = "prompt"
	fdSource         = "fd:"
	credentialSource = "credential:"
)

// maxAttempts limits the passphrases that a person may enter for one file.
const maxAttempts = 3

// maxText limits the text of a passphrase, which keystore limits further.
const maxText = 2048

// A reader reads passphrases from their sources for one command.
type reader struct {
	console *cli.Console
	conf    *configs.Config
	files   map[int]*os.File // open descriptors: two sources of one descriptor are two lines
}

func newReader(c *cli.Console, conf *configs.Config) *reader {
	return &reader{c, conf, map[int]*os.File{}}
}

// ask returns the passphrases of the existing file at path, from node.passphrase.
func (r *reader) ask(ctx context.Context, path string) keystore.Ask {
	return func(wrong int) (keystore.Passphrase, error) {
		source := r.conf.Node.Passphrase
		if source == "" {
			source = promptSource
		}
		if wrong > 0 {
			if source != promptSource || wrong == maxAttempts {
				return keystore.Passphrase{}, &interact.Error{Code: interact.KeystoreLocked, Title: "the passphrase of " + path + " is wrong",
					Err: fmt.Errorf("it is from %s", source), Hint: "use the right passphrase, or restore a backup of the key"}
			}
			r.console.Talk.Line("the passphrase is wrong")
		}
		return r.read(ctx, source, "passphrase of "+path)
	}
}

// choose returns a new passphrase from source. A person enters it twice.
func (r *reader) choose(ctx context.Context, source, path string) (keystore.Passphrase, error) {
	label := "new passphrase of " + path
	if source != promptSource {
		return r.read(ctx, source, label)
	}
	for {
		text, err := r.prompt(ctx, label)
		if err != nil {
			return keystore.Passphrase{}, err
		}
		again, err := r.prompt(ctx, "repeat it")
		switch {
		case err != nil:
			return keystore.Passphrase{}, err
		case again != text:
			r.console.Talk.Line("the passphrases differ")
		default:
			return newPassphrase(text, source)
		}
	}
}

// read returns a passphrase from source.
func (r *reader) read(ctx context.Context, source, label string) (keystore.Passphrase, error) {
	var text string
	var err error
	switch n, isFD := strings.CutPrefix(source, fdSource); {
	case isFD:
		text, err = r.line(n)
	case source == promptSource:
		text, err = r.prompt(ctx, label)
	default:
		text, err = r.credential(strings.TrimPrefix(source, credentialSource))
	}
	if err != nil {
		return keystore.Passphrase{}, locked(err, source)
	}
	return newPassphrase(text, source)
}

func newPassphrase(text, source string) (keystore.Passphrase, error) {
	p, err := keystore.NewPassphrase(text)
	if err != nil {
		return p, locked(err, source)
	}
	return p, nil
}

// locked returns err as an error without the passphrase.
func locked(err error, source string) error {
	if _, explained := errors.AsType[*interact.Error](err); explained || errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the input has ended")
	}
	return &interact.Error{Code: interact.KeystoreLocked, Title: "no passphrase from " + source, Err: err,
		Hint: "sources are prompt, fd:N and credential:NAME; see lmosd help config"}
}

// prompt reads a passphrase from a person.
func (r *reader) prompt(ctx context.Context, label string) (string, error) {
	if !r.console.Interactive() {
		return "", &interact.Error{Code: interact.KeystoreLocked, Title: "a passphrase is needed, and there is no terminal",
			Err:  errors.New(label),
			Hint: "run the command on a terminal, or choose another source: fd:N or credential:NAME; see lmosd help config, node.passphrase"}
	}
	return terminal.ReadHidden(ctx, r.console.Stdin, r.console.Talk, terminal.OneLine(label)+": ")
}

// line reads a line of an open file descriptor. Agents that the node starts do not inherit it.
func (r *reader) line(number string) (string, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return "", errors.New("expected the number of a file descriptor")
	}
	f := r.files[n]
	if f == nil {
		closeOnExec(n)
		f = os.NewFile(uintptr(n), fdSource+number)
		r.files[n] = f
	}
	text, err := terminal.ReadLine(f, maxText)
	return text, cli.Reason(err)
}

// credential reads a systemd credential.
func (r *reader) credential(name string) (string, error) {
	path, ok := r.conf.Credential(name)
	if !ok {
		return "", errors.New("CREDENTIALS_DIRECTORY is not set: systemd did not start this process with credentials")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, cli.Reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return "", &interact.Error{Code: interact.KeyPermissions, Title: "other users can read the credential " + path, Hint: "chmod 400 " + interact.Quote(path)}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), err
}
