//go:build !unix

package terminal

import "os"

// Resized returns a channel that receives nothing: this system reports no changes of the size.
func Resized() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
