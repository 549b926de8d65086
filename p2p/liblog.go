package p2p

import (
	"log/slog"

	"github.com/libp2p/go-libp2p/gologshim"
)

// SetLibraryLog makes the library log to h, which decides by level, instead of writing errors to standard error. It applies to the process, and is called
// before the first host is created.
func SetLibraryLog(h slog.Handler) { gologshim.SetDefaultHandler(h) }
