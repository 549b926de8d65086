//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package terminal

import (
	"errors"
	"os"
)

// ReadKeys returns an error: this system has no terminal that lmosd can control.
func ReadKeys(*os.File) (restore func() error, err error) {
	return nil, errors.New("single keys cannot be read on this system")
}

// hideInput returns an error: this system has no terminal that lmosd can control.
func hideInput(*os.File) (show func() error, err error) {
	return nil, errors.New("the input of a terminal cannot be hidden on this system")
}
