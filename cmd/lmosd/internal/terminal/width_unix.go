//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize returns the columns and lines of the terminal f; 0 if they are unknown.
func terminalSize(f *os.File) (columns, lines int) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}

// terminalWidth returns the columns of the terminal f.
func terminalWidth(f *os.File) int {
	if columns, _ := terminalSize(f); columns > 0 {
		return columns
	}
	return defaultWidth
}
