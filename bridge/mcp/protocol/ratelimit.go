package protocol

import "github.com/lmosd/lmosd/internal/ratelimit"

// ProgressLimit is the rate of the progress and log messages of one request, or session. More are dropped: they only inform (2026-07-28,
// "Progress", "Logging": both sides limit their rate).
var ProgressLimit = ratelimit.Limit{Rate: 100, Burst: 256}

// Chats reports whether m is one of those messages that may be dropped: progress or a log message.
func (m *Message) Chats() bool { return m.method == Progress || m.method == LogMessage }
