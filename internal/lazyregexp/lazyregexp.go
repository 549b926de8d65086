// Package lazyregexp compiles regular expressions on first use: compilation at the start of the program would delay each command.
package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that compiles expr on its first call. The function is safe for concurrent use; it panics if expr is invalid.
func New(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
