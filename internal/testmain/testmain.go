// Package testmain runs the tests of a package and fails if a goroutine outlives them.
package testmain

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// gcPercent lets the heap grow to five times the live memory between two collections: most memory of a test is short-lived, and
// collections took a seventh of the CPU time of the suite. Tests that measure the heap use package liveheap, which collects first.
const gcPercent = 400

// libraries are goroutines of libraries that end by themselves, up to a minute after what they serve was closed.
var libraries = []goleak.Option{
	goleak.IgnoreTopFunction("github.com/libp2p/go-libp2p/p2p/transport/quicreuse.(*reuse).gc"),
}

// Run runs the tests of m and exits: with 1 if a test fails or a goroutine is left.
func Run(m *testing.M) {
	debug.SetGCPercent(gcPercent)
	goleak.VerifyTestMain(m, libraries...)
}
