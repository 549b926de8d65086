// Package server serves MCP over Streamable HTTP: stateless requests (2026-07-28) and sessions (earlier revisions) at one URL. It
// implements the transport only and passes the messages of the server on unchanged.
//
// Sources: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
package server
