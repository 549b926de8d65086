// Package protocol defines MCP messages (JSON-RPC 2.0), their framing, revisions, error codes and HTTP headers.
//
// A [Message] keeps the text that it was parsed from. A relay replaces single members, such as the id or a token, in the text. All other
// bytes stay unchanged: unknown members, the order of members and the spelling of numbers.
//
// Sources: MCP 2026-07-28 and 2025-11-25, "Base protocol", "Transports"; JSON-RPC 2.0.
package protocol
