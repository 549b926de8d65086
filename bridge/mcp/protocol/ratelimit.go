package protocol

import "github.com/lmosd/lmosd/internal/ratelimit"

// ProgressLimit is the rate of progress and log messages per request or session. Messages above it are dropped (2026-07-28, "Progress",
// "Logging": both sides limit the rate).
var ProgressLimit = ratelimit.Limit{Rate: 100, Burst: 256}

// Droppable reports whether m may be dropped: a progress or a log message.
func (m *Message) Droppable() bool { return m.method == Progress || m.method == LogMessage }
