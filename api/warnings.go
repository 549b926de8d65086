package api

// A WarningKind is one kind of [Warning]: its code, its title and its usual severity (low, medium or high).
type WarningKind struct{ Code, Title, Severity string }

// WarningKinds returns the kinds of warnings of a node, by code.
func WarningKinds() []WarningKind {
	return []WarningKind{
		{"LMOS-W001", "no-peers", "low"},
		{"LMOS-W005", "loopback-only", "medium"},
		{"LMOS-W020", "disk-low", "high"},
		{"LMOS-W021", "store-damaged", "high"},
		{"LMOS-W031", "clock-skew", "high"},
		{"LMOS-W042", "announce-pending", "low"},
		{"LMOS-W043", "grant-ends", "medium"},
		{"LMOS-W044", "grant-waits", "medium"},
		{"LMOS-W050", "directory-full", "medium"},
		{"LMOS-W051", "directory-nearly-full", "low"},
		{"LMOS-W060", "restart-needed", "low"},
		{"LMOS-W061", "equivocation", "high"},
		{"LMOS-W062", "audit-equivocation", "medium"},
	}
}
