//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalWidth returns the columns of the terminal f.
func terminalWidth(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return defaultWidth
	}
	return int(size.Col)
}
