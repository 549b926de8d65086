package service

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// A runner runs a program of the system and returns its standard output. The error has the last line of standard error.
type runner func(ctx context.Context, name string, args ...string) (string, error)

// errNoProgram means that PATH has no such program.
var errNoProgram = errors.New("it is not on PATH")

// programs returns the runner for the environment of a command.
func programs(c *cli.Console) runner {
	return func(ctx context.Context, name string, args ...string) (string, error) {
		path := ""
		for _, dir := range filepath.SplitList(c.Variable("PATH")) {
			if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				path = found
				break
			}
		}
		if path == "" {
			return "", errNoProgram
		}
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = c.Env, &out, &errs
		c.Note("%s", line(name, args))
		err := cmd.Run()
		if text := strings.TrimSpace(errs.String()); err != nil && text != "" {
			err = errors.New(text[strings.LastIndexByte(text, '\n')+1:])
		}
		return out.String(), err
	}
}

// line returns a command as a shell reads it.
func line(name string, args []string) string {
	for _, arg := range args {
		name += " " + terminal.Shell(arg)
	}
	return name
}

// noSystemd returns the error of a system without systemd; goos is that of runtime.GOOS.
func noSystemd(goos string, cause error) error {
	e := &interact.Error{Code: interact.Usage, Title: "this system has no systemd", Err: cause}
	switch goos {
	case "darwin":
		e.Hint = "let launchd run the node: a property list in ~/Library/LaunchAgents with the program and the word run, RunAtLoad and KeepAlive"
	case "windows":
		e.Hint = "let the task scheduler run the node at the start of the computer: schtasks /create /sc onstart /tn lmosd /tr \"lmosd run\""
	default:
		e.Hint = "let the service manager of this system, or the container, run the node in the foreground: lmosd run"
	}
	return e
}

// check returns an error if no systemd of the wanted level answers.
func (s *setup) check(ctx context.Context) error {
	if s.goos != "linux" {
		return noSystemd(s.goos, nil)
	}
	_, err := s.systemctl(ctx, "show", "--property=Version")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoProgram):
		return noSystemd(s.goos, errors.New("systemctl is not on PATH"))
	case s.user:
		return &interact.Error{Code: interact.Usage, Title: "the systemd of this user does not answer", Err: err,
			Hint: "log in as this user, and not with su or sudo; for a user without a session: loginctl enable-linger, and XDG_RUNTIME_DIR=/run/user/UID"}
	}
	return noSystemd(s.goos, err)
}

// systemctl runs systemctl for the level of the service.
func (s *setup) systemctl(ctx context.Context, args ...string) (string, error) {
	return s.run(ctx, "systemctl", s.leveled(args)...)
}

// leveled adds the level of the service to the arguments of systemctl.
func (s *setup) leveled(args []string) []string {
	if s.user {
		return append([]string{"--user"}, args...)
	}
	return args
}

// goos is the operating system.
const goos = runtime.GOOS
