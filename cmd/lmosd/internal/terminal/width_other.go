//go:build !unix

package terminal

import "os"

// terminalSize returns 0: the size is not read on this system.
func terminalSize(*os.File) (columns, lines int) { return 0, 0 }

// terminalWidth returns a default: the width is not read on this system.
func terminalWidth(*os.File) int { return defaultWidth }
