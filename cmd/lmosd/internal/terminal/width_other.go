//go:build !unix

package terminal

import "os"

// terminalWidth returns the columns to write; the system is not asked here.
func terminalWidth(*os.File) int { return defaultWidth }
