package api

import "fmt"

// A WarningKind is one kind of [Warning]: its code, its title and its usual severity (low, medium or high).
type WarningKind struct{ Code, Title, Severity string }

// The kinds of warnings of a node.
var (
	NoPeers             = WarningKind{"LMOS-W001", "no-peers", "low"}
	LoopbackOnly        = WarningKind{"LMOS-W005", "loopback-only", "medium"}
	DiskLow             = WarningKind{"LMOS-W020", "disk-low", "high"}
	StoreDamaged        = WarningKind{"LMOS-W021", "store-damaged", "high"}
	ClockSkewed         = WarningKind{"LMOS-W031", "clock-skew", "high"}
	LoopHangs           = WarningKind{"LMOS-W032", "loop-hangs", "high"}
	AnnouncePending     = WarningKind{"LMOS-W042", "announce-pending", "low"}
	GrantEnds           = WarningKind{"LMOS-W043", "grant-ends", "medium"}
	GrantWaits          = WarningKind{"LMOS-W044", "grant-waits", "medium"}
	DirectoryFull       = WarningKind{"LMOS-W050", "directory-full", "medium"}
	DirectoryNearlyFull = WarningKind{"LMOS-W051", "directory-nearly-full", "low"}
	RestartNeeded       = WarningKind{"LMOS-W060", "restart-needed", "low"}
	Equivocated         = WarningKind{"LMOS-W061", "equivocation", "high"}
	AuditEquivocated    = WarningKind{"LMOS-W062", "audit-equivocation", "medium"}
)

// WarningKinds returns the kinds of warnings of a node, by code.
func WarningKinds() []WarningKind {
	return []WarningKind{NoPeers, LoopbackOnly, DiskLow, StoreDamaged, ClockSkewed, LoopHangs, AnnouncePending, GrantEnds, GrantWaits,
		DirectoryFull, DirectoryNearlyFull, RestartNeeded, Equivocated, AuditEquivocated}
}

// Warning returns a warning of the kind, with its usual severity and no time.
func (k WarningKind) Warning(hint, format string, args ...any) Warning {
	return Warning{Code: k.Code, Title: k.Title, Severity: k.Severity, Hint: hint, Text: fmt.Sprintf(format, args...)}
}
