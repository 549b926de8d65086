package localnet

import (
	"os"
	"os/signal"
	"syscall"
)

// outlive lets this process go on when nobody reads what it prints any more, until the returned function is called: whoever
// has started processes must come to stop them (lmosd demo | head -1).
func outlive() (stop func()) {
	unread := make(chan os.Signal, 1)
	signal.Notify(unread, syscall.SIGPIPE)
	return func() { signal.Stop(unread) }
}
