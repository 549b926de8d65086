// Package mcpclients edits the configuration files of MCP clients and changes only the entry for lmosd.
package mcpclients
