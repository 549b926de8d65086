//go:build !unix

package command

import (
	"os"
	"os/exec"
)

// Without process groups a command is ended alone, and at once.

func isolate(*exec.Cmd) {}

func terminate(p *os.Process) { _ = p.Kill() }

func kill(p *os.Process) { _ = p.Kill() }

func scarce(error) bool { return false }
