package localnet

import (
	"os"
	"os/signal"
	"syscall"
)

// outlive keeps this process running when the reader of its output has gone, until the returned function is called, so that it stops the
// processes that it started (lmosd demo | head -1).
func outlive() (stop func()) {
	unread := make(chan os.Signal, 1)
	signal.Notify(unread, syscall.SIGPIPE)
	return func() { signal.Stop(unread) }
}
