//go:build !unix

package command

import (
	"os"
	"os/exec"
)

// Without process groups only the command itself is killed, without a grace period.

func isolate(*exec.Cmd) {}

func terminate(p *os.Process) { _ = p.Kill() }

func kill(p *os.Process) { _ = p.Kill() }

func scarce(error) bool { return false }
