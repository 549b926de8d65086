//go:build !unix

package terminal

import "os"

// terminalWidth returns a default: the width is not read on this system.
func terminalWidth(*os.File) int { return defaultWidth }
