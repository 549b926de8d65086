// Package stdio implements lmosd mcp: it forwards MCP messages between standard input and output and the local node. Clients start it only
// once, so it outlives the node: it serves before the node starts, and continues with the next one.
//
// Sources: MCP 2026-07-28, "stdio", "Subscriptions"; MCP 2025-11-25, "Lifecycle", "Resources", "Logging".
package stdio
